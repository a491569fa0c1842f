// CPU kernels of the operators on states and caches, on plain views; free of torch. What they do is stated by their plain-torch
// versions in packed_ss/ops.
#pragma once

#include "cpu/parallel.h"
#include "packed_ss/ordered_views.h"
#include "packed_ss/views.h"

namespace packed_ss::cpu {

void pack_block(const PackBlock& call);
void pack_ordered(const PackOrdered& call);
void advance_block(const AdvanceBlock& call);
void advance_ordered(const AdvanceOrdered& call);
void advance_native(const AdvanceOrdered& call);
void compact_cache(const CompactCache& call, const Workers& workers);

}  // namespace packed_ss::cpu
