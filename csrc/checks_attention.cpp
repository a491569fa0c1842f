#include <c10/util/Exception.h>

#include "ops.h"

namespace packed_ss {
namespace {

bool is_supported(at::ScalarType type) {
  return type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf;
}

// Rows [N, R, H, D] in the dtype of q, on its device; `heads` and `like` say where H comes from.
void check_rows(const char* op, const char* name, const at::Tensor& rows, const at::Tensor& q, std::int64_t heads,
                const char* like) {
  TORCH_CHECK_VALUE(rows.dim() == 4 && rows.size(0) == q.size(0) && rows.size(1) == q.size(1) && rows.size(2) == heads &&
                        rows.size(3) == q.size(3),
                    op, ": ", name, " must be [", q.size(0), ", ", q.size(1), ", ", heads, ", ", q.size(3), "] to fit ", like,
                    ", got ", rows.sizes(), ".");
  TORCH_CHECK_VALUE(rows.scalar_type() == q.scalar_type(), op, ": ", name, " must be ", dtype_name(q.scalar_type()),
                    " like q, got ", dtype_name(rows.scalar_type()), ".");
}

void check_query(const char* op, const at::Tensor& q) {
  TORCH_CHECK_VALUE(q.dim() == 4 && is_supported(q.scalar_type()), op,
                    ": q must be [N, R, Hq, D] in float32, float64, bfloat16 or float16, got ", dtype_name(q.scalar_type()), " ",
                    q.sizes(), ".");
  TORCH_CHECK_VALUE(q.size(2) >= 1 && q.size(3) >= 1, op, ": q must have at least one head of at least one element, got ",
                    q.sizes(), ".");
}

// A cache [N, C, Hkv, D] that the kernels can address: one head after the other, whatever lies between slots and sequences.
void check_cache(const char* op, const char* name, const at::Tensor& cache, const at::Tensor& q) {
  TORCH_CHECK_VALUE(cache.dim() == 4 && cache.size(0) == q.size(0) && cache.size(3) == q.size(3), op, ": ", name, " must be [",
                    q.size(0), ", C, Hkv, ", q.size(3), "] to fit q, got ", cache.sizes(), ".");
  TORCH_CHECK_VALUE(cache.scalar_type() == q.scalar_type(), op, ": ", name, " must be ", dtype_name(q.scalar_type()),
                    " like q, got ", dtype_name(cache.scalar_type()), ".");
  TORCH_CHECK_VALUE((cache.size(3) == 1 || cache.stride(3) == 1) && (cache.size(2) == 1 || cache.stride(2) == cache.size(3)), op,
                    ": ", name, " must be contiguous in its last two dimensions, got strides ", cache.strides(), ".");
}

void check_device(const char* op, const char* name, const at::Tensor& tensor, const at::Tensor& q) {
  TORCH_CHECK_VALUE(tensor.device() == q.device(), op, ": ", name, " must be on ", q.device(), " like q, got ", tensor.device(),
                    ".");
}

}  // namespace

void check_tail_attention(const at::Tensor& q, const at::Tensor& k_cache, const at::Tensor& v_cache, const at::Tensor& cache_len,
                          const at::Tensor& tail_mask) {
  constexpr const char* kOp = "tail_attention";
  check_query(kOp, q);
  check_cache(kOp, "k_cache", k_cache, q);
  check_cache(kOp, "v_cache", v_cache, q);
  TORCH_CHECK_VALUE(v_cache.sizes() == k_cache.sizes(), kOp, ": v_cache must have the shape of k_cache, ", k_cache.sizes(),
                    ", got ", v_cache.sizes(), ".");
  TORCH_CHECK_VALUE(k_cache.size(2) >= 1 && q.size(2) % k_cache.size(2) == 0, kOp,
                    ": q must have a multiple of the heads of k_cache, ", k_cache.size(2), ", got ", q.size(2), ".");
  TORCH_CHECK_VALUE(cache_len.scalar_type() == at::kInt && cache_len.dim() == 1 && cache_len.size(0) == q.size(0), kOp,
                    ": cache_len must be int32 [N] with N = ", q.size(0), " as in q, got ", dtype_name(cache_len.scalar_type()),
                    " ", cache_len.sizes(), ".");
  const std::int64_t rows = q.size(1), words = (rows + 31) / 32;
  TORCH_CHECK_VALUE(tail_mask.scalar_type() == at::kInt && tail_mask.dim() == 3 &&
                        (tail_mask.size(0) == 1 || tail_mask.size(0) == q.size(0)) && tail_mask.size(1) == rows &&
                        tail_mask.size(2) == words,
                    kOp, ": tail_mask must be int32 [1 or ", q.size(0), ", ", rows, ", ", words, "], 32 rows to a word, got ",
                    dtype_name(tail_mask.scalar_type()), " ", tail_mask.sizes(), ".");
  check_device(kOp, "k_cache", k_cache, q);
  check_device(kOp, "v_cache", v_cache, q);
  check_device(kOp, "cache_len", cache_len, q);
  check_device(kOp, "tail_mask", tail_mask, q);
}

void check_rope_store(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& cos, const at::Tensor& sin,
                      const std::optional<at::Tensor>& query_scale, const at::Tensor& slots, const at::Tensor& k_cache,
                      const at::Tensor& v_cache) {
  constexpr const char* kOp = "rope_store";
  check_query(kOp, q);
  TORCH_CHECK_VALUE(q.size(3) % 2 == 0, kOp, ": q must have heads of an even number of elements, got ", q.sizes(), ".");
  TORCH_CHECK_VALUE(k.dim() == 4 && k.size(2) >= 1, kOp, ": k must be [N, R, Hkv, D], got ", k.sizes(), ".");
  check_rows(kOp, "k", k, q, k.size(2), "q");
  check_rows(kOp, "v", v, q, k.size(2), "q and k");
  for (const auto& [name, table] : {std::pair<const char*, const at::Tensor&>{"cos", cos}, {"sin", sin}}) {
    TORCH_CHECK_VALUE(is_supported(table.scalar_type()) && table.dim() == 3 && table.size(0) == q.size(0) &&
                          table.size(1) == q.size(1) && table.size(2) == q.size(3) / 2,
                      kOp, ": ", name, " must be floating-point [", q.size(0), ", ", q.size(1), ", ", q.size(3) / 2,
                      "] to fit q, got ", dtype_name(table.scalar_type()), " ", table.sizes(), ".");
    check_device(kOp, name, table, q);
  }
  if (query_scale.has_value()) {
    TORCH_CHECK_VALUE(is_supported(query_scale->scalar_type()) && query_scale->dim() == 2 && query_scale->size(0) == q.size(0) &&
                          query_scale->size(1) == q.size(1),
                      kOp, ": query_scale must be floating-point [", q.size(0), ", ", q.size(1), "] to fit q, got ",
                      dtype_name(query_scale->scalar_type()), " ", query_scale->sizes(), ".");
    check_device(kOp, "query_scale", *query_scale, q);
  }
  TORCH_CHECK_VALUE(
      slots.scalar_type() == at::kInt && slots.dim() == 2 && slots.size(0) == q.size(0) && slots.size(1) == q.size(1), kOp,
      ": slots must be int32 [", q.size(0), ", ", q.size(1), "] to fit q, got ", dtype_name(slots.scalar_type()), " ",
      slots.sizes(), ".");
  check_cache(kOp, "k_cache", k_cache, q);
  check_cache(kOp, "v_cache", v_cache, q);
  TORCH_CHECK_VALUE(k_cache.size(2) == k.size(2), kOp, ": k_cache must have the heads of k, ", k.size(2), ", got ",
                    k_cache.size(2), ".");
  TORCH_CHECK_VALUE(v_cache.sizes() == k_cache.sizes(), kOp, ": v_cache must have the shape of k_cache, ", k_cache.sizes(),
                    ", got ", v_cache.sizes(), ".");
  check_device(kOp, "k", k, q);
  check_device(kOp, "v", v, q);
  check_device(kOp, "slots", slots, q);
  check_device(kOp, "k_cache", k_cache, q);
  check_device(kOp, "v_cache", v_cache, q);
}

}  // namespace packed_ss
