#include "resolve_checks.h"

#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "tensor_checks.h"

namespace packed_ss {
namespace {

class Checker : public TensorChecks {
 public:
  using TensorChecks::TensorChecks;

  CallShape shape(const char* rows_name, std::int64_t verifier_rows, std::int64_t block_size, const char* cuts_name,
                  at::IntArrayRef cuts, std::int64_t shift) const {
    constexpr std::int64_t kMostRows = std::numeric_limits<std::int32_t>::max() / 2;
    TORCH_CHECK_VALUE(block_size >= 1 && block_size <= std::numeric_limits<std::int16_t>::max(), op_,
                      ": block_size must be in 1 ... 32767, got ", block_size, ".");
    TORCH_CHECK_VALUE(verifier_rows >= 0 && verifier_rows <= block_size, op_, ": ", rows_name,
                      " must be in 0 ... block_size = ", block_size, ", got ", verifier_rows, ".");
    TORCH_CHECK_VALUE(shift == 0 || shift == 1, op_, ": shift must be 0 or 1, got ", shift, ".");
    bool ascending = cuts.size() <= kMaxCuts && (cuts.empty() ? verifier_rows > 0 : cuts[0] == 0 && cuts.back() < block_size);
    for (std::size_t k = 1; k < cuts.size(); ++k) ascending = ascending && cuts[k - 1] < cuts[k];
    TORCH_CHECK_VALUE(ascending, op_, ": ", cuts_name, " must ascend from 0, below block_size = ", block_size, ", ", kMaxCuts,
                      " at most, and none only with verifier rows, got ", cuts, ".");
    CallShape result{static_cast<std::int32_t>(verifier_rows),
                     static_cast<std::int32_t>(block_size),
                     static_cast<std::int32_t>(shift),
                     static_cast<std::int32_t>(cuts.size()),
                     {}};
    for (std::size_t k = 0; k < cuts.size(); ++k) result.cuts[k] = static_cast<std::int16_t>(cuts[k]);
    TORCH_CHECK_VALUE(result.rows() <= kMostRows, op_, ": ", cuts_name, " make ", result.rows(), " rows, more than ", kMostRows,
                      ".");
    return result;
  }

  NextRows rows(const char* prefix, const CallShape& shape, std::int64_t mask_token_id, std::int64_t sequences,
                const at::Tensor& ids, const at::Tensor& positions, const at::Tensor& slots) const {
    TORCH_CHECK_VALUE(mask_token_id >= 0 && mask_token_id <= std::numeric_limits<std::int32_t>::max(), op_,
                      ": mask_token_id must be in 0 ... 2^31 - 1, got ", mask_token_id, ".");
    const std::string p = prefix;
    for (const auto& [name, t] : {std::pair{"ids", &ids}, std::pair{"positions", &positions}, std::pair{"slots", &slots}}) {
      tensor((p + name).c_str(), *t, at::kInt, {sequences, shape.rows()}, "[N, rows]");
    }
    return {shape, static_cast<std::int32_t>(mask_token_id), ids.mutable_data_ptr<std::int32_t>(),
            positions.mutable_data_ptr<std::int32_t>(), slots.mutable_data_ptr<std::int32_t>()};
  }
};

DType tag(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16: return DType::kBFloat16;
    case at::kHalf: return DType::kFloat16;
    case at::kDouble: return DType::kFloat64;
    default: return DType::kFloat32;
  }
}

}  // namespace

void check_logits(const char* op, const at::Tensor& logits) {
  const auto dtype = logits.scalar_type();
  TORCH_CHECK_VALUE(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf || dtype == at::kDouble, op,
                    ": logits must be Float, BFloat16, Half or Double, got ", dtype, ".");
  TORCH_CHECK_VALUE(logits.dim() == 3 && logits.size(2) >= 1 && logits.size(2) <= std::numeric_limits<std::int32_t>::max(), op,
                    ": logits must be [N, rows, V] with V in 1 ... 2^31 - 1, got ", logits.sizes(), ".");
  TORCH_CHECK_VALUE(logits.stride(2) == 1 || logits.size(2) == 1, op,
                    ": logits must be contiguous along the vocabulary, got strides ", logits.strides(), ".");
}

Logits logits_view(const at::Tensor& logits) {
  return {logits.const_data_ptr(), tag(logits.scalar_type()), logits.stride(0), logits.stride(1), logits.size(2)};
}

ResolveCall resolve_call(const char* op, PACKED_SS_RESOLVE_PARAMETERS) {
  check_logits(op, logits);
  const Checker check(op, logits.device());
  const std::int64_t n = logits.size(0);
  ResolveCall call{};
  call.shape = check.shape("verifier_rows", verifier_rows, block_size, "cuts", cuts, shift);
  TORCH_CHECK_VALUE(logits.size(1) == call.shape.rows(), op,
                    ": logits must have verifier_rows + len(cuts) * block_size = ", call.shape.rows(), " rows, got ",
                    logits.sizes(), ".");
  check.matrix("tokens", tokens, n, 1, "[N, T] with N as in logits");
  check.tensor("length", length, at::kInt, {n}, "[N]");
  check.tensor("cache_len", cache_len, at::kInt, {n}, "[N]");
  check.tensor("draft", draft, at::kInt, {n, block_size - 1}, "[N, W]");
  check.tensor("draft_len", draft_len, at::kInt, {n}, "[N]");
  check.tensor("finish_reason", finish_reason, at::kInt, {n}, "[N]");
  check.tensor("nfe", nfe, at::kInt, {n}, "[N]");
  check.matrix("advances", advances, n, 1, "[N, calls] with N as in logits");
  check.tensor("limit", limit, at::kInt, {n}, "[N]");
  check.tensor("prompt_length", prompt_length, at::kInt, {n}, "[N]");
  check.matrix("stops", stops, -1, 1, "[S, M] with M >= 1");
  if (next_ids || next_positions || next_slots) {
    TORCH_CHECK_VALUE(next_ids && next_positions && next_slots, op,
                      ": next_ids, next_positions and next_slots must be given together or not at all.");
    const CallShape next = check.shape("next_verifier_rows", next_verifier_rows, block_size, "next_cuts", next_cuts, 0);
    call.next = check.rows("next_", next, mask_token_id, n, *next_ids, *next_positions, *next_slots);
  }
  call.logits = logits_view(logits);
  call.state = {n,
                tokens.size(1),
                block_size - 1,
                advances.size(1),
                stops.size(0),
                stops.size(1),
                written(tokens),
                written(length),
                written(cache_len),
                written(draft),
                written(draft_len),
                written(finish_reason),
                written(nfe),
                written(advances),
                read(limit),
                read(prompt_length),
                read(stops)};
  return call;
}

Sampling sampling_of(const char* op, const at::Tensor& logits, PACKED_SS_SAMPLING_PARAMETERS) {
  Checker(op, logits.device()).tensor("seed", seed, at::kLong, {logits.size(0)}, "[N]");
  const auto in_float32 = static_cast<float>(temperature);
  TORCH_CHECK_VALUE(in_float32 > 0 && std::isfinite(in_float32), op,
                    ": temperature must be a float32 number above 0 and finite, got ", temperature, ".");
  TORCH_CHECK_VALUE(top_k >= 0, op, ": top_k must be 0 (every token) or more, got ", top_k, ".");
  TORCH_CHECK_VALUE(top_p > 0 && top_p <= 1, op, ": top_p must be in (0, 1], got ", top_p, ".");
  return {seed.const_data_ptr<std::int64_t>(), temperature, top_k, top_p};
}

void check_draft_log_q(const char* op, const at::Tensor& logits, std::int64_t block_size, const at::Tensor& draft_log_q) {
  const auto dtype = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  Checker(op, logits.device())
      .tensor("draft_log_q", draft_log_q, dtype, {logits.size(0), block_size - 1, logits.size(2)}, "[N, W, V]");
}

PackCall pack_call(PACKED_SS_PACK_PARAMETERS) {
  const Checker check("pack_block", tokens.device());
  check.matrix("tokens", tokens, -1, 1, "[N, T]");
  const std::int64_t n = tokens.size(0);
  const CallShape shape = check.shape("verifier_rows", verifier_rows, block_size, "cuts", cuts, 0);
  check.tensor("length", length, at::kInt, {n}, "[N]");
  check.tensor("cache_len", cache_len, at::kInt, {n}, "[N]");
  check.tensor("draft", draft, at::kInt, {n, block_size - 1}, "[N, W]");
  check.tensor("draft_len", draft_len, at::kInt, {n}, "[N]");
  PackCall call{};
  call.next = check.rows("", shape, mask_token_id, n, ids, positions, slots);
  // pack_block only reads the state; the view's pointers serve resolves, which write it.
  call.state.sequences = n;
  call.state.capacity = tokens.size(1);
  call.state.width = block_size - 1;
  call.state.tokens = const_cast<std::int32_t*>(read(tokens));
  call.state.length = const_cast<std::int32_t*>(read(length));
  call.state.cache_len = const_cast<std::int32_t*>(read(cache_len));
  call.state.draft = const_cast<std::int32_t*>(read(draft));
  call.state.draft_len = const_cast<std::int32_t*>(read(draft_len));
  return call;
}

}  // namespace packed_ss
