#include "ordered_checks.h"

#include <limits>

#include "resolve_checks.h"
#include "tensor_checks.h"

namespace packed_ss {
namespace {

// Of operands that the operator only reads; the view's pointers serve operators that write.
std::int32_t* only_read(const at::Tensor& t) { return const_cast<std::int32_t*>(read(t)); }

// The shape of a call over a state with W = `width` and P = `most_waiting`.
OrderedShape checked_shape(const char* op, std::int64_t waiting_rows, std::int64_t most_waiting, std::int64_t window,
                           std::int64_t width, bool drafts, bool verifies, at::IntArrayRef cuts) {
  TORCH_CHECK_VALUE(waiting_rows >= 0 && waiting_rows <= most_waiting, op, ": waiting_rows must be in 0 ... ", most_waiting,
                    ", got ", waiting_rows, ".");
  TORCH_CHECK_VALUE(window >= 1 && window <= width && width <= kMostWindow, op, ": window must be in 1 ... W = ", width,
                    ", and W at most ", kMostWindow, ", got ", window, ".");
  bool ascending = cuts.empty() || (cuts[0] == 0 && cuts.back() < window);
  for (std::size_t k = 1; k < cuts.size(); ++k) ascending = ascending && cuts[k - 1] < cuts[k];
  TORCH_CHECK_VALUE(ascending, op, ": cuts must ascend from 0, below window = ", window, ", got ", cuts, ".");
  OrderedShape shape{static_cast<std::int32_t>(waiting_rows),
                     static_cast<std::int32_t>(window),
                     drafts ? 1 : 0,
                     verifies ? 1 : 0,
                     static_cast<std::int32_t>(cuts.size()),
                     {}};
  for (std::size_t k = 0; k < cuts.size(); ++k) shape.cuts[k] = static_cast<std::int16_t>(cuts[k]);
  return shape;
}

void check_ids(const char* op, const at::Tensor& ids, bool fits, const char* meaning) {
  TORCH_CHECK_VALUE(ids.scalar_type() == at::kInt && ids.dim() == 2 && fits && ids.is_contiguous(), op,
                    ": ids must be contiguous Int ", meaning, ", got ", ids.is_contiguous() ? "" : "non-contiguous ",
                    ids.scalar_type(), " ", ids.sizes(), " on ", ids.device(), ".");
}

void check_probability(const char* op, const at::Tensor& ids, const at::Tensor& probability) {
  const auto dtype = probability.scalar_type();
  TORCH_CHECK_VALUE((dtype == at::kFloat || dtype == at::kDouble) && probability.sizes() == ids.sizes() &&
                        probability.is_contiguous() && probability.device() == ids.device(),
                    op, ": probability must be contiguous Float or Double ", ids.sizes(), " as ids on ", ids.device(), ", got ",
                    probability.is_contiguous() ? "" : "non-contiguous ", dtype, " ", probability.sizes(), " on ",
                    probability.device(), ".");
}

OrderedState checked_state(const char* op, const at::Tensor& ids, PACKED_SS_ORDERED_PARAMETERS) {
  const TensorChecks check(op, ids.device());
  const std::int64_t n = ids.size(0);
  check.matrix("tokens", tokens, n, 1, "[N, T] with N as in ids");
  for (const auto& [name, t] : {std::pair{"length", &length},
                                {"cache_len", &cache_len},
                                {"finish_reason", &finish_reason},
                                {"nfe", &nfe},
                                {"end", &end},
                                {"stopped", &stopped},
                                {"prompt_length", &prompt_length},
                                {"moved", &moved}}) {
    check.tensor(name, *t, at::kInt, {n}, "[N]");
  }
  check.matrix("advances", advances, n, 1, "[N, calls] with N as in ids");
  check.matrix("stops", stops, -1, 1, "[S, M] with M >= 1");
  check.matrix("order", order, n, 1, "[N, W] with N as in ids");
  check.tensor("draft", draft, at::kInt, order.sizes(), "[N, W] as in order");
  check.matrix("waiting", waiting, n, 1, "[N, P] with N as in ids");
  check.tensor("cached", cached, at::kInt, tokens.sizes(), "[N, T] as in tokens");
  check.tensor("source", source, at::kInt, tokens.sizes(), "[N, T] as in tokens");
  check.tensor("retained", retained, at::kInt, {n, 2}, "[N, 2]");
  return {n,
          tokens.size(1),
          order.size(1),
          waiting.size(1),
          advances.size(1),
          stops.size(0),
          stops.size(1),
          written(tokens),
          written(length),
          written(cache_len),
          written(finish_reason),
          written(nfe),
          written(advances),
          written(end),
          written(stopped),
          read(prompt_length),
          read(stops),
          written(order),
          written(draft),
          written(waiting),
          written(cached),
          written(source),
          written(moved),
          written(retained)};
}

// W rows of each sequence at most; the rest of the view is the operator's own.
ChosenRows chosen_rows(const char* op, PACKED_SS_CHOSEN_PARAMETERS) {
  check_logits(op, logits);
  const TensorChecks check(op, logits.device());
  const std::int64_t n = logits.size(0);
  check.tensor("rows", rows, at::kInt, {n, 2}, "[N, 2]");
  check.matrix("positions", positions, n, 1, "[N, W]");
  const Sampling sampling = sampling_of(op, logits, seed, temperature, top_k, top_p);
  return {logits_view(logits), n, logits.size(1), positions.size(1), read(rows), read(positions), sampling};
}

void check_log_q(const char* op, const char* name, const at::Tensor& logits, const at::Tensor& log_q, std::int64_t width) {
  const auto dtype = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  TensorChecks(op, logits.device()).tensor(name, log_q, dtype, {logits.size(0), width, logits.size(2)}, "[N, W, V]");
}

}  // namespace

Logits argmax_rows_logits(const at::Tensor& logits) {
  check_logits("argmax_rows", logits);
  return logits_view(logits);
}

ChosenRows draw_rows_call(PACKED_SS_DRAW_ROWS_PARAMETERS) {
  constexpr const char* kOp = "draw_rows";
  const ChosenRows call = chosen_rows(kOp, PACKED_SS_CHOSEN_ARGUMENTS);
  TORCH_CHECK_VALUE(stream == 0 || stream == 2, kOp, ": stream must be 0 (DRAFT) or 2 (TARGET), got ", stream, ".");
  TensorChecks(kOp, logits.device()).tensor("ids", ids, at::kInt, positions.sizes(), "[N, W] as in positions");
  if (log_q) check_log_q(kOp, "log_q", logits, *log_q, call.width);
  return call;
}

ChosenRows verify_rows_call(PACKED_SS_VERIFY_ROWS_PARAMETERS) {
  constexpr const char* kOp = "verify_rows";
  const ChosenRows call = chosen_rows(kOp, PACKED_SS_CHOSEN_ARGUMENTS);
  TensorChecks(kOp, logits.device()).tensor("draft", draft, at::kInt, positions.sizes(), "[N, W] as in positions");
  check_log_q(kOp, "draft_log_q", logits, draft_log_q, call.width);
  return call;
}

OrderedCall resolve_ordered_call(PACKED_SS_RESOLVE_ORDERED_PARAMETERS) {
  constexpr const char* kOp = "resolve_ordered";
  check_ids(kOp, ids, true, "[N, rows]");
  const OrderedState state = checked_state(kOp, ids, PACKED_SS_ORDERED_ARGUMENTS);
  const OrderedShape shape = checked_shape(kOp, waiting_rows, state.waiting_width, window, state.width, false, verifies, cuts);
  const std::int64_t verifier_rows = verifies ? window : 0;
  TORCH_CHECK_VALUE(ids.size(1) == shape.head_rows() || ids.size(1) == verifier_rows, kOp,
                    ": ids must have a column for each verifier and proposal row, ", shape.head_rows(),
                    " in all, or for each verifier row, got ", ids.sizes(), ".");
  TORCH_CHECK_VALUE(!(by_confidence && verifies) || ids.size(1) == shape.head_rows(), kOp, ": ids must have the ",
                    shape.head_rows(), " columns of all rows for an order by confidence, got ", ids.sizes(), ".");
  if (probability) {
    check_probability(kOp, ids, *probability);
  } else {
    TORCH_CHECK_VALUE(!(by_confidence && verifies), kOp, ": probability must be given for an order by confidence.");
  }
  if (accepted) {
    TensorChecks(kOp, ids.device()).tensor("accepted", *accepted, at::kInt, {state.sequences, state.width}, "[N, W]");
  }
  return {state,
          shape,
          read(ids),
          ids.size(1),
          probability ? probability->const_data_ptr() : nullptr,
          probability && probability->scalar_type() == at::kDouble,
          accepted ? read(*accepted) : nullptr,
          by_confidence,
          0};
}

OrderedCall resolve_native_call(PACKED_SS_RESOLVE_NATIVE_PARAMETERS) {
  constexpr const char* kOp = "resolve_native";
  check_ids(kOp, ids, ids.dim() == 2 && ids.size(1) == window, "[N, window]");
  const OrderedState state = checked_state(kOp, ids, PACKED_SS_ORDERED_ARGUMENTS);
  const OrderedShape shape = checked_shape(kOp, state.waiting_width, state.waiting_width, window, state.width, false, false, {0});
  TORCH_CHECK_VALUE(state.waiting_width >= window, kOp, ": waiting must have a column for each of the ", window,
                    " positions, got ", state.waiting_width, ".");
  check_probability(kOp, ids, probability);
  TORCH_CHECK_VALUE(threshold >= 0 && threshold <= 1, kOp, ": threshold must be in [0, 1], got ", threshold, ".");
  const bool wide = probability.scalar_type() == at::kDouble;
  return {state, shape, read(ids), window, probability.const_data_ptr(), wide, nullptr, false, threshold};
}

CompactCall compact_call(PACKED_SS_COMPACT_PARAMETERS) {
  constexpr const char* kOp = "compact_cache";
  const std::int64_t n = cache_len.numel();
  TORCH_CHECK_VALUE(keys.dim() == 5 && keys.size(1) >= n && keys.stride(4) == 1 && keys.stride(3) == keys.size(4), kOp,
                    ": keys must be [layers, N, C, Hkv, D] with contiguous slots and N at least ", n, ", got ",
                    keys.scalar_type(), " ", keys.sizes(), " on ", keys.device(), ".");
  TORCH_CHECK_VALUE(values.sizes() == keys.sizes() && values.strides() == keys.strides() &&
                        values.scalar_type() == keys.scalar_type() && values.device() == keys.device(),
                    kOp, ": values must be as keys are, got ", values.scalar_type(), " ", values.sizes(), " on ", values.device(),
                    ".");
  const TensorChecks check(kOp, keys.device());
  check.tensor("cache_len", cache_len, at::kInt, {n}, "[N]");
  check.tensor("moved", moved, at::kInt, {n}, "[N]");
  check.matrix("source", source, n, 1, "[N, T]");
  const std::int64_t bytes = keys.element_size();
  return {keys.size(0),
          n,
          keys.size(2),
          source.size(1),
          keys.stride(0) * bytes,
          keys.stride(1) * bytes,
          keys.stride(2) * bytes,
          keys.size(3) * keys.size(4) * bytes,
          keys.mutable_data_ptr(),
          values.mutable_data_ptr(),
          read(cache_len),
          read(source),
          read(moved)};
}

PackOrderedCall pack_ordered_call(PACKED_SS_PACK_ORDERED_PARAMETERS) {
  constexpr const char* kOp = "pack_ordered";
  constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();
  const TensorChecks check(kOp, tokens.device());
  check.matrix("tokens", tokens, -1, 1, "[N, T]");
  const std::int64_t n = tokens.size(0);
  check.tensor("cache_len", cache_len, at::kInt, {n}, "[N]");
  check.matrix("order", order, n, 1, "[N, W]");
  check.tensor("draft", draft, at::kInt, order.sizes(), "[N, W] as in order");
  check.matrix("waiting", waiting, n, 1, "[N, P]");
  const OrderedShape shape = checked_shape(kOp, waiting_rows, waiting.size(1), window, order.size(1), drafts, verifies, cuts);
  TORCH_CHECK_VALUE(spare_slot >= 0 && spare_slot <= kInt32Max, kOp, ": spare_slot must be in 0 ... 2^31 - 1, got ", spare_slot,
                    ".");
  TORCH_CHECK_VALUE(mask_token_id >= 0 && mask_token_id <= kInt32Max, kOp, ": mask_token_id must be in 0 ... 2^31 - 1, got ",
                    mask_token_id, ".");
  const std::int64_t rows = shape.rows();
  check.tensor("ids", ids, at::kInt, {n, rows}, "[N, rows]");
  check.tensor("positions", positions, at::kInt, {n, rows}, "[N, rows]");
  check.tensor("slots", slots, at::kInt, {n, rows}, "[N, rows]");
  check.tensor("tail_mask", tail_mask, at::kInt, {n, rows, (rows + 31) / 32}, "[N, rows, words]");
  check.tensor("consulted", consulted, at::kInt, {n, 2}, "[N, 2]");
  PackOrderedCall call{};
  call.state.sequences = n;
  call.state.capacity = tokens.size(1);
  call.state.width = order.size(1);
  call.state.waiting_width = waiting.size(1);
  call.state.tokens = only_read(tokens);
  call.state.cache_len = only_read(cache_len);
  call.state.order = only_read(order);
  call.state.draft = only_read(draft);
  call.state.waiting = only_read(waiting);
  call.rows = {shape,
               static_cast<std::int32_t>(mask_token_id),
               static_cast<std::int32_t>(spare_slot),
               written(ids),
               written(positions),
               written(slots),
               written(tail_mask),
               written(consulted)};
  return call;
}

}  // namespace packed_ss
