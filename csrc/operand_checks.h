// Torch's side of the row, advance and pack operators that devices share: checks, and views of the tensors.
//
// A view's function takes what its operator takes (packed_ss/ops/schema.py), and refuses what the operator does not accept
// (ValueError in Python, one sentence that names the operator and the argument) in the words of packed_ss/ops/checks.py. Values
// in tensors are not looked at.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

#include "packed_ss/ordered_views.h"
#include "packed_ss/row_calls.h"
#include "packed_ss/views.h"

namespace packed_ss {

// One tensor of a list. `shape`: symbols of its sizes, such as "N W".
struct Operand {
  const char* name;
  const char* shape;
  bool written;
};

#define PACKED_SS_OPERAND(name, type, shape) Operand{#name, shape, !std::is_const_v<type>},
inline constexpr Operand kBlockState[] = {PACKED_SS_BLOCK_STATE(PACKED_SS_OPERAND)};
inline constexpr Operand kOrderedState[] = {PACKED_SS_ORDERED_STATE(PACKED_SS_OPERAND)};
inline constexpr Operand kBlockRows[] = {PACKED_SS_BLOCK_ROWS(PACKED_SS_OPERAND)};
inline constexpr Operand kOrderedRows[] = {PACKED_SS_ORDERED_ROWS(PACKED_SS_OPERAND)};
#undef PACKED_SS_OPERAND

// The name that Python has for a dtype.
std::string dtype_name(at::ScalarType dtype);

using OptionalTensor = std::optional<at::Tensor>;

ArgmaxCall argmax_rows_view(const at::Tensor& logits, const OptionalTensor& rows, const OptionalTensor& positions,
                            const OptionalTensor& draft, const at::Tensor& ids, const OptionalTensor& probability);
DrawCall draw_rows_view(const at::Tensor& logits, const OptionalTensor& rows, const at::Tensor& positions,
                        const OptionalTensor& draft, const at::Tensor& seed, const at::Tensor& temperature,
                        const at::Tensor& top_k, const at::Tensor& top_p, std::int64_t stream, const at::Tensor& ids,
                        const OptionalTensor& log_q, const OptionalTensor& next_ids, std::int64_t next_column);
VerifyCall verify_rows_view(const at::Tensor& logits, const at::Tensor& positions, const at::Tensor& seed,
                            const at::Tensor& temperature, const at::Tensor& top_k, const at::Tensor& top_p,
                            const at::Tensor& draft, const at::Tensor& draft_log_q, const at::Tensor& ids,
                            const at::Tensor& accepted);
PackBlock pack_block_view(at::TensorList state, std::int64_t mask_token_id, std::int64_t verifier_rows, std::int64_t block_size,
                          at::IntArrayRef cuts, at::TensorList rows);
PackOrdered pack_ordered_view(at::TensorList state, std::int64_t mask_token_id, std::int64_t spare_slot,
                              std::int64_t waiting_rows, std::int64_t window, bool drafts, bool verifies, at::IntArrayRef cuts,
                              at::TensorList rows);
AdvanceBlock advance_block_view(const at::Tensor& ids, const OptionalTensor& accepted, at::TensorList state,
                                std::int64_t verifier_rows, std::int64_t block_size, at::IntArrayRef cuts, std::int64_t shift,
                                std::int64_t mask_token_id, std::int64_t next_verifier_rows, at::IntArrayRef next_cuts,
                                at::TensorList next_rows);
AdvanceOrdered advance_ordered_view(const at::Tensor& ids, const OptionalTensor& probability, const OptionalTensor& accepted,
                                    at::TensorList state, std::int64_t waiting_rows, std::int64_t window, bool verifies,
                                    at::IntArrayRef cuts, bool by_confidence, std::int64_t mask_token_id, std::int64_t spare_slot,
                                    std::int64_t next_waiting_rows, std::int64_t next_window, bool next_drafts,
                                    bool next_verifies, at::IntArrayRef next_cuts, at::TensorList next_rows);
AdvanceOrdered advance_native_view(const at::Tensor& ids, const at::Tensor& probability, at::TensorList state,
                                   std::int64_t window, double threshold, std::int64_t mask_token_id, std::int64_t spare_slot,
                                   std::int64_t next_waiting_rows, std::int64_t next_window, bool next_drafts, bool next_verifies,
                                   at::IntArrayRef next_cuts, at::TensorList next_rows);
CompactCache compact_cache_view(const at::Tensor& keys, const at::Tensor& values, const at::Tensor& cache_len,
                                const at::Tensor& first_moved, const at::Tensor& moved_from);

}  // namespace packed_ss
