// CPU kernels of the three resolves and of pack_block, on plain views; free of torch. What they do is stated by their plain-torch
// versions in packed_ss/ops.
#pragma once

#include "cpu/parallel.h"
#include "packed_ss/views.h"

namespace packed_ss::cpu {

void resolve_greedy(const ResolveCall& call, const Workers& workers);

void resolve_coupled(const ResolveCall& call, const Sampling& sampling, const Workers& workers);

// draft_log_q [N, W, V]: float64 for float64 logits, else float32. Of the next draft the rows that count are written.
void resolve_rejection(const ResolveCall& call, const Sampling& sampling, void* draft_log_q, const Workers& workers);

void pack_block(const DecodeState& state, const NextRows& next);

}  // namespace packed_ss::cpu
