// Torch's side of the ordered layout's operators that devices share: checks, and views of the tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "packed_ss/ordered_calls.h"

// Operands as in packed_ss/ops/schema.py.
#define PACKED_SS_ORDERED_PARAMETERS                                                                                \
  const at::Tensor &tokens, const at::Tensor &length, const at::Tensor &cache_len, const at::Tensor &finish_reason, \
      const at::Tensor &nfe, const at::Tensor &advances, const at::Tensor &end, const at::Tensor &stopped,          \
      const at::Tensor &prompt_length, const at::Tensor &stops, const at::Tensor &order, const at::Tensor &draft,   \
      const at::Tensor &waiting, const at::Tensor &cached, const at::Tensor &source, const at::Tensor &moved,       \
      const at::Tensor &retained
#define PACKED_SS_ORDERED_ARGUMENTS                                                                                           \
  tokens, length, cache_len, finish_reason, nfe, advances, end, stopped, prompt_length, stops, order, draft, waiting, cached, \
      source, moved, retained
#define PACKED_SS_RESOLVE_ORDERED_PARAMETERS                                                                             \
  const at::Tensor &ids, const std::optional<at::Tensor>&probability, const std::optional<at::Tensor>&accepted,          \
      PACKED_SS_ORDERED_PARAMETERS, std::int64_t waiting_rows, std::int64_t window, bool verifies, at::IntArrayRef cuts, \
      bool by_confidence
#define PACKED_SS_RESOLVE_ORDERED_ARGUMENTS \
  ids, probability, accepted, PACKED_SS_ORDERED_ARGUMENTS, waiting_rows, window, verifies, cuts, by_confidence
#define PACKED_SS_RESOLVE_NATIVE_PARAMETERS \
  const at::Tensor &ids, const at::Tensor &probability, PACKED_SS_ORDERED_PARAMETERS, std::int64_t window, double threshold
#define PACKED_SS_RESOLVE_NATIVE_ARGUMENTS ids, probability, PACKED_SS_ORDERED_ARGUMENTS, window, threshold
#define PACKED_SS_COMPACT_PARAMETERS \
  const at::Tensor &keys, const at::Tensor &values, const at::Tensor &cache_len, const at::Tensor &source, const at::Tensor &moved
#define PACKED_SS_COMPACT_ARGUMENTS keys, values, cache_len, source, moved
#define PACKED_SS_PACK_ORDERED_PARAMETERS                                                                                        \
  const at::Tensor &tokens, const at::Tensor &cache_len, const at::Tensor &order, const at::Tensor &draft,                       \
      const at::Tensor &waiting, std::int64_t mask_token_id, std::int64_t spare_slot, std::int64_t waiting_rows,                 \
      std::int64_t window, bool drafts, bool verifies, at::IntArrayRef cuts, const at::Tensor &ids, const at::Tensor &positions, \
      const at::Tensor &slots, const at::Tensor &tail_mask, const at::Tensor &consulted
#define PACKED_SS_PACK_ORDERED_ARGUMENTS                                                                                  \
  tokens, cache_len, order, draft, waiting, mask_token_id, spare_slot, waiting_rows, window, drafts, verifies, cuts, ids, \
      positions, slots, tail_mask, consulted
#define PACKED_SS_CHOSEN_PARAMETERS                                                                                          \
  const at::Tensor &logits, const at::Tensor &rows, const at::Tensor &positions, const at::Tensor &seed, double temperature, \
      std::int64_t top_k, double top_p
#define PACKED_SS_CHOSEN_ARGUMENTS logits, rows, positions, seed, temperature, top_k, top_p
#define PACKED_SS_DRAW_ROWS_PARAMETERS \
  PACKED_SS_CHOSEN_PARAMETERS, std::int64_t stream, const at::Tensor &ids, const std::optional<at::Tensor>&log_q
#define PACKED_SS_DRAW_ROWS_ARGUMENTS PACKED_SS_CHOSEN_ARGUMENTS, stream, ids, log_q
#define PACKED_SS_VERIFY_ROWS_PARAMETERS PACKED_SS_CHOSEN_PARAMETERS, const at::Tensor &draft, const at::Tensor &draft_log_q
#define PACKED_SS_VERIFY_ROWS_ARGUMENTS PACKED_SS_CHOSEN_ARGUMENTS, draft, draft_log_q

namespace packed_ss {

// The tensors as views. Each refuses what its operator does not accept (ValueError in Python, one sentence that names the
// operator and the argument), before any memory is touched.
Logits argmax_rows_logits(const at::Tensor& logits);
ChosenRows draw_rows_call(PACKED_SS_DRAW_ROWS_PARAMETERS);
ChosenRows verify_rows_call(PACKED_SS_VERIFY_ROWS_PARAMETERS);
OrderedCall resolve_ordered_call(PACKED_SS_RESOLVE_ORDERED_PARAMETERS);
OrderedCall resolve_native_call(PACKED_SS_RESOLVE_NATIVE_PARAMETERS);
CompactCall compact_call(PACKED_SS_COMPACT_PARAMETERS);
PackOrderedCall pack_ordered_call(PACKED_SS_PACK_ORDERED_PARAMETERS);

}  // namespace packed_ss
