// The native operators of torch.ops.packed_ss. Their schemas and their plain-torch versions are in packed_ss/ops.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string_view>

#include "operand_checks.h"

// The operators that have a native kernel, by device: a line here registers it and lists it in info(). Those of the first list
// have one on each, which takes what the operator's <name>_view (operand_checks.h) returns.
#define PACKED_SS_VIEW_KERNELS(KERNEL) \
  KERNEL(argmax_rows)                  \
  KERNEL(draw_rows)                    \
  KERNEL(verify_rows)                  \
  KERNEL(pack_block)                   \
  KERNEL(pack_ordered) KERNEL(advance_block) KERNEL(advance_ordered) KERNEL(advance_native) KERNEL(compact_cache)
#define PACKED_SS_CPU_KERNELS(KERNEL) KERNEL(uniform_noise) KERNEL(rope_store) KERNEL(tail_attention)
#define PACKED_SS_CUDA_KERNELS(KERNEL) KERNEL(uniform_noise)

namespace packed_ss {

// Whether PACKED_SS_NATIVE leaves this operator to its native kernels: it may list those that have them, separated by commas.
bool is_wanted(std::string_view operator_name);

// Refuses shapes, dtypes and ranges that uniform_noise does not accept (ValueError in Python).
void check_uniform_noise(const at::Tensor& seed, const at::Tensor& position, std::int64_t stream, std::int64_t vocab_size);

// The same for rope_store and tail_attention; the values of slots and cache_len are not looked at.
void check_rope_store(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& cos, const at::Tensor& sin,
                      const std::optional<at::Tensor>& query_scale, const at::Tensor& slots, const at::Tensor& k_cache,
                      const at::Tensor& v_cache);
void check_tail_attention(const at::Tensor& q, const at::Tensor& k_cache, const at::Tensor& v_cache, const at::Tensor& cache_len,
                          const at::Tensor& tail_mask);

namespace cpu {
at::Tensor rope_store(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& cos, const at::Tensor& sin,
                      const std::optional<at::Tensor>& query_scale, const at::Tensor& slots, at::Tensor& k_cache,
                      at::Tensor& v_cache);
at::Tensor tail_attention(const at::Tensor& q, const at::Tensor& k_cache, const at::Tensor& v_cache, const at::Tensor& cache_len,
                          const at::Tensor& tail_mask, double scale);
}  // namespace cpu

}  // namespace packed_ss
