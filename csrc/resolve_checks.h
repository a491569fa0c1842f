// Torch's side of the resolves and of pack_block that devices share: checks, and views of the tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "packed_ss/views.h"

// The operands that every resolve has, as in packed_ss/ops/schema.py.
#define PACKED_SS_RESOLVE_PARAMETERS                                                                                             \
  const at::Tensor &logits, const at::Tensor &tokens, const at::Tensor &length, const at::Tensor &cache_len,                     \
      const at::Tensor &draft, const at::Tensor &draft_len, const at::Tensor &finish_reason, const at::Tensor &nfe,              \
      const at::Tensor &advances, const at::Tensor &limit, const at::Tensor &prompt_length, const at::Tensor &stops,             \
      std::int64_t verifier_rows, std::int64_t block_size, at::IntArrayRef cuts, std::int64_t shift, std::int64_t mask_token_id, \
      std::int64_t next_verifier_rows, at::IntArrayRef next_cuts, const std::optional<at::Tensor>&next_ids,                      \
      const std::optional<at::Tensor>&next_positions, const std::optional<at::Tensor>&next_slots
#define PACKED_SS_RESOLVE_ARGUMENTS                                                                                              \
  logits, tokens, length, cache_len, draft, draft_len, finish_reason, nfe, advances, limit, prompt_length, stops, verifier_rows, \
      block_size, cuts, shift, mask_token_id, next_verifier_rows, next_cuts, next_ids, next_positions, next_slots
#define PACKED_SS_SAMPLING_PARAMETERS const at::Tensor &seed, double temperature, std::int64_t top_k, double top_p
#define PACKED_SS_SAMPLING_ARGUMENTS seed, temperature, top_k, top_p
#define PACKED_SS_PACK_PARAMETERS                                                                                   \
  const at::Tensor &tokens, const at::Tensor &length, const at::Tensor &cache_len, const at::Tensor &draft,         \
      const at::Tensor &draft_len, std::int64_t mask_token_id, std::int64_t verifier_rows, std::int64_t block_size, \
      at::IntArrayRef cuts, const at::Tensor &ids, const at::Tensor &positions, const at::Tensor &slots
#define PACKED_SS_PACK_ARGUMENTS \
  tokens, length, cache_len, draft, draft_len, mask_token_id, verifier_rows, block_size, cuts, ids, positions, slots

namespace packed_ss {

// The tensors as views. Each refuses what its operator does not accept (ValueError in Python, one sentence that names the
// operator `op` and the argument), before any memory is touched.
ResolveCall resolve_call(const char* op, PACKED_SS_RESOLVE_PARAMETERS);
Sampling sampling_of(const char* op, const at::Tensor& logits, PACKED_SS_SAMPLING_PARAMETERS);
void check_draft_log_q(const char* op, const at::Tensor& logits, std::int64_t block_size, const at::Tensor& draft_log_q);

// Of the state, only what pack_block reads.
struct PackCall {
  DecodeState state;
  NextRows next;
};
PackCall pack_call(PACKED_SS_PACK_PARAMETERS);

}  // namespace packed_ss
