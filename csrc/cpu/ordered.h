// CPU kernels of the ordered layout's operators, on plain views; free of torch. What they do is stated by their plain-torch
// versions in packed_ss/ops.
#pragma once

#include "cpu/parallel.h"
#include "packed_ss/ordered_calls.h"
#include "packed_ss/philox.h"

namespace packed_ss::cpu {

// ids [N, rows]; probability [N, rows], double of float64 logits, else float, or null.
void argmax_rows(const Logits& logits, std::int64_t sequences, std::int64_t rows, std::int32_t* ids, void* probability,
                 const Workers& workers);

// ids [N, W]; log_q [N, W, V] of the same type, or null.
void draw_rows(const ChosenRows& call, Stream stream, std::int32_t* ids, void* log_q, const Workers& workers);

// draft, ids and accepted [N, W]; draft_log_q [N, W, V].
void verify_rows(const ChosenRows& call, const std::int32_t* draft, const void* draft_log_q, std::int32_t* ids,
                 std::int32_t* accepted, const Workers& workers);

void resolve_ordered(const OrderedCall& call);
void resolve_native(const OrderedCall& call);
void compact_cache(const CompactCall& call, const Workers& workers);
void pack_ordered(const PackOrderedCall& call);

}  // namespace packed_ss::cpu
