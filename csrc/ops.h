// The native operators of torch.ops.packed_ss. Their schemas and their plain-torch versions are in packed_ss/ops.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>

#include "ordered_checks.h"
#include "resolve_checks.h"

// The operators that have a native kernel, by device: a line here registers it and lists it in info().
#define PACKED_SS_CPU_KERNELS(KERNEL)                                                                            \
  KERNEL(uniform_noise)                                                                                          \
  KERNEL(pack_block) KERNEL(resolve_greedy) KERNEL(resolve_coupled) KERNEL(resolve_rejection) KERNEL(rope_store) \
      KERNEL(tail_attention) KERNEL(argmax_rows) KERNEL(draw_rows) KERNEL(verify_rows) KERNEL(resolve_ordered)   \
          KERNEL(resolve_native) KERNEL(compact_cache) KERNEL(pack_ordered)
#define PACKED_SS_CUDA_KERNELS(KERNEL)                                                                            \
  KERNEL(uniform_noise)                                                                                           \
  KERNEL(pack_block) KERNEL(resolve_greedy) KERNEL(resolve_coupled) KERNEL(resolve_rejection) KERNEL(argmax_rows) \
      KERNEL(draw_rows) KERNEL(verify_rows) KERNEL(resolve_ordered) KERNEL(resolve_native) KERNEL(compact_cache)  \
          KERNEL(pack_ordered)

namespace packed_ss {

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
at::Tensor uniform_noise(const at::Tensor& seed, const at::Tensor& position, std::int64_t stream, std::int64_t vocab_size);
void pack_block(PACKED_SS_PACK_PARAMETERS);
void resolve_greedy(PACKED_SS_RESOLVE_PARAMETERS);
void resolve_coupled(PACKED_SS_RESOLVE_PARAMETERS, PACKED_SS_SAMPLING_PARAMETERS);
void resolve_rejection(PACKED_SS_RESOLVE_PARAMETERS, PACKED_SS_SAMPLING_PARAMETERS, const at::Tensor& draft_log_q);
std::tuple<at::Tensor, at::Tensor> argmax_rows(const at::Tensor& logits, bool probability);
void draw_rows(PACKED_SS_DRAW_ROWS_PARAMETERS);
std::tuple<at::Tensor, at::Tensor> verify_rows(PACKED_SS_VERIFY_ROWS_PARAMETERS);
void resolve_ordered(PACKED_SS_RESOLVE_ORDERED_PARAMETERS);
void resolve_native(PACKED_SS_RESOLVE_NATIVE_PARAMETERS);
void compact_cache(PACKED_SS_COMPACT_PARAMETERS);
void pack_ordered(PACKED_SS_PACK_ORDERED_PARAMETERS);
}  // namespace cpu

#ifdef PACKED_SS_WITH_CUDA
namespace cuda {
at::Tensor uniform_noise(const at::Tensor& seed, const at::Tensor& position, std::int64_t stream, std::int64_t vocab_size);
void pack_block(PACKED_SS_PACK_PARAMETERS);
void resolve_greedy(PACKED_SS_RESOLVE_PARAMETERS);
void resolve_coupled(PACKED_SS_RESOLVE_PARAMETERS, PACKED_SS_SAMPLING_PARAMETERS);
void resolve_rejection(PACKED_SS_RESOLVE_PARAMETERS, PACKED_SS_SAMPLING_PARAMETERS, const at::Tensor& draft_log_q);
std::tuple<at::Tensor, at::Tensor> argmax_rows(const at::Tensor& logits, bool probability);
void draw_rows(PACKED_SS_DRAW_ROWS_PARAMETERS);
std::tuple<at::Tensor, at::Tensor> verify_rows(PACKED_SS_VERIFY_ROWS_PARAMETERS);
void resolve_ordered(PACKED_SS_RESOLVE_ORDERED_PARAMETERS);
void resolve_native(PACKED_SS_RESOLVE_NATIVE_PARAMETERS);
void compact_cache(PACKED_SS_COMPACT_PARAMETERS);
void pack_ordered(PACKED_SS_PACK_ORDERED_PARAMETERS);
}  // namespace cuda
#endif

}  // namespace packed_ss
