#include "operand_checks.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <limits>
#include <span>
#include <string_view>

namespace packed_ss {

std::string dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat: return "float32";
    case at::kDouble: return "float64";
    case at::kHalf: return "float16";
    case at::kBFloat16: return "bfloat16";
    case at::kByte: return "uint8";
    case at::kChar: return "int8";
    case at::kShort: return "int16";
    case at::kInt: return "int32";
    case at::kLong: return "int64";
    case at::kBool: return "bool";
    case at::kComplexFloat: return "complex64";
    case at::kComplexDouble: return "complex128";
    default: return c10::toString(dtype);
  }
}

namespace {

constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();

using DTypes = std::initializer_list<at::ScalarType>;

std::string names_of(DTypes dtypes) {
  std::string names;
  const auto* const last = dtypes.end() - 1;
  for (const auto* at = dtypes.begin(); at != dtypes.end(); ++at) {
    names += (at == dtypes.begin() ? "" : at == last ? " or " : ", ") + dtype_name(*at);
  }
  return names;
}

// Whether the elements of the last dimension lie side by side.
bool is_dense(const at::Tensor& t) { return t.dim() > 0 && (t.stride(-1) == 1 || t.size(-1) <= 1); }

// What a tensor is, for the end of a refusal.
std::string got(const at::Tensor& t, bool gapless) {
  return c10::str("got ", gapless ? "" : "non-contiguous ", dtype_name(t.scalar_type()), " ", t.sizes(), " on ", t.device());
}
std::string got(const at::Tensor& t) { return got(t, t.is_contiguous()); }

// What the symbols of shapes stand for. Free ones are bound at their first use.
class Sizes {
 public:
  const std::int64_t* find(std::string_view symbol) const {
    for (std::size_t k = 0; k < count_; ++k) {
      const std::string_view known = entries_[k].symbol;  // nearly all have one letter
      if (known.size() == symbol.size() && known[0] == symbol[0] && (known.size() == 1 || known == symbol)) {
        return &entries_[k].size;
      }
    }
    return nullptr;
  }
  void bind(std::string_view symbol, std::int64_t size) {
    if (const std::int64_t* const known = find(symbol)) {
      *const_cast<std::int64_t*>(known) = size;
    } else {
      entries_.at(count_++) = {symbol, size};
    }
  }
  std::int64_t operator[](std::string_view symbol) const { return *find(symbol); }

  // How many symbols are bound, and forgetting all that came later.
  std::size_t count() const { return count_; }
  void keep(std::size_t count) { count_ = count; }

 private:
  struct Entry {
    std::string_view symbol;
    std::int64_t size;
  };
  std::array<Entry, 16> entries_;
  std::size_t count_ = 0;
};

// Calls body(symbol) for each of a shape such as "N W".
template <class Body>
void each_symbol(std::string_view shape, Body body) {
  while (!shape.empty()) {
    const std::size_t end = shape.find(' ');
    body(shape.substr(0, end));
    shape = end == std::string_view::npos ? "" : shape.substr(end + 1);
  }
}

bool ascend(at::IntArrayRef cuts) {
  for (std::size_t k = 1; k < cuts.size(); ++k) {
    if (cuts[k - 1] >= cuts[k]) return false;
  }
  return true;
}

// Checks the operands of one operator, all on one device.
class Checker {
 public:
  Checker(const char* op, at::Device device) : op(op), device(device) {}
  // A state's device is that of its first tensor.
  Checker(const char* op, at::TensorList state) : Checker(op, state.empty() ? at::Device(at::kCPU) : state[0].device()) {}

  // Refuses a tensor of another dtype, shape or device, or one that is not contiguous (`strided`: along its last dimension).
  void tensor(const char* name, const at::Tensor& t, DTypes dtypes, const char* shape, bool strided = false) {
    bool fits = std::find(dtypes.begin(), dtypes.end(), t.scalar_type()) != dtypes.end() && t.device() == device;
    const bool gapless = strided ? is_dense(t) : t.is_contiguous();
    const std::size_t bound = sizes.count();
    std::int64_t dim = 0;
    each_symbol(shape, [&](std::string_view symbol) {
      if (dim < t.dim()) {
        const std::int64_t* const size = sizes.find(symbol);
        fits = fits && (size != nullptr ? t.size(dim) == *size : t.size(dim) >= (symbol == "N" || symbol == "S" ? 0 : 1));
        if (size == nullptr) sizes.bind(symbol, t.size(dim));
      }
      ++dim;
    });
    if (fits && dim == t.dim() && gapless) return;
    sizes.keep(bound);
    refuse(name, t, dtypes, shape, gapless);
  }
  void tensor(const char* name, const OptionalTensor& t, DTypes dtypes, const char* shape, bool strided = false) {
    if (t) tensor(name, *t, dtypes, shape, strided);
  }

  // The same for each tensor of a list.
  void list(const char* what, std::span<const Operand> operands, at::TensorList tensors) {
    if (tensors.size() != operands.size()) {
      std::string names;
      for (const Operand& operand : operands) names += (names.empty() ? "" : ", ") + std::string(operand.name);
      TORCH_CHECK_VALUE(false, op, ": ", what, " must have ", operands.size(), " tensors (", names, "), got ", tensors.size(),
                        ".");
    }
    for (std::size_t k = 0; k < operands.size(); ++k) tensor(operands[k].name, tensors[k], {at::kInt}, operands[k].shape);
  }

  // Tokens of all rows of a call, or of its verifier rows.
  void ids(const at::Tensor& t, std::int64_t verified, std::int64_t rows) const {
    const std::int64_t n = sizes["N"];
    const bool fits = t.dim() == 2 && t.size(0) == n && (t.size(1) == verified || t.size(1) == rows);
    TORCH_CHECK_VALUE(fits && t.scalar_type() == at::kInt && t.is_contiguous() && t.device() == device, op,
                      ": ids must be contiguous int32 [", n, ", ", rows, "], a column for each row, or [", n, ", ", verified,
                      "], one for each verifier row, on ", device, ", ", got(t), ".");
  }

  std::int32_t mask(std::int64_t mask_token_id) const {
    TORCH_CHECK_VALUE(mask_token_id >= 0 && mask_token_id <= kInt32Max, op, ": mask_token_id must be in 0 ... 2^31 - 1, got ",
                      mask_token_id, ".");
    return static_cast<std::int32_t>(mask_token_id);
  }

  const char* op;
  at::Device device;
  Sizes sizes;

 private:
  [[noreturn]] void refuse(const char* name, const at::Tensor& t, DTypes dtypes, const char* shape, bool gapless) const {
    std::string symbols, known;
    each_symbol(shape, [&](std::string_view symbol) {
      symbols += (symbols.empty() ? "" : ", ") + std::string(symbol);
      const std::int64_t* const size = sizes.find(symbol);
      if (size != nullptr) known += (known.empty() ? " with " : ", ") + std::string(symbol) + " = " + std::to_string(*size);
    });
    TORCH_CHECK_VALUE(false, op, ": ", name, " must be contiguous ", names_of(dtypes), " [", symbols, "]", known, " on ", device,
                      ", ", got(t, gapless), ".");
  }
};

// Operators that only read a state share its view with those that write it.
enum class Access { kRead, kWrite };

std::int32_t* data(const at::Tensor& t, Access access) {
  return access == Access::kWrite ? t.mutable_data_ptr<std::int32_t>()
                                  : const_cast<std::int32_t*>(t.const_data_ptr<std::int32_t>());
}
std::int32_t* written(const at::Tensor& t) { return data(t, Access::kWrite); }
const std::int32_t* read(const OptionalTensor& t) { return t ? t->const_data_ptr<std::int32_t>() : nullptr; }
const void* read_scores(const OptionalTensor& t) { return t ? t->const_data_ptr() : nullptr; }
void* written_scores(const OptionalTensor& t) { return t ? t->mutable_data_ptr() : nullptr; }

// ---- Row operators

constexpr DTypes kLogits = {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble};

DType tag(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16: return DType::kBFloat16;
    case at::kHalf: return DType::kFloat16;
    case at::kDouble: return DType::kFloat64;
    default: return DType::kFloat32;
  }
}

// The dtype in which rows of these logits are computed.
at::ScalarType wide(const at::Tensor& logits) { return logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

RowList row_list(Checker& check, const at::Tensor& logits, const OptionalTensor& rows, const OptionalTensor& positions,
                 const OptionalTensor& draft, const at::Tensor& ids) {
  const auto dtype = logits.scalar_type();
  TORCH_CHECK_VALUE(std::find(kLogits.begin(), kLogits.end(), dtype) != kLogits.end(), check.op, ": logits must be ",
                    names_of(kLogits), ", got ", dtype_name(dtype), ".");
  TORCH_CHECK_VALUE(logits.dim() == 3 && logits.size(2) >= 1 && logits.size(2) <= kInt32Max, check.op,
                    ": logits must be [N, R, V] with V in 1 ... 2^31 - 1, got ", logits.sizes(), ".");
  TORCH_CHECK_VALUE(is_dense(logits), check.op, ": logits must be contiguous along the vocabulary, got strides ",
                    logits.strides(), ".");
  check.sizes.bind("N", logits.size(0));
  check.sizes.bind("V", logits.size(2));
  check.tensor("ids", ids, {at::kInt}, "N M");
  check.tensor("rows", rows, {at::kInt}, "N M");
  TORCH_CHECK_VALUE(rows || ids.size(1) <= logits.size(1), check.op, ": ids must have at most ", logits.size(1),
                    " columns without rows, one a row of logits, got ", ids.size(1), ".");
  check.tensor("positions", positions, {at::kInt}, "N M", true);
  check.tensor("draft", draft, {at::kInt}, "N W", true);
  return {{logits.const_data_ptr(), tag(dtype), logits.stride(0), logits.stride(1), logits.size(2)},
          logits.size(0),
          logits.size(1),
          ids.size(1),
          read(rows),
          read(positions),
          positions ? positions->stride(0) : 0,
          read(draft),
          draft ? draft->stride(0) : 0,
          draft ? draft->size(1) : 0,
          {}};
}

Sampling sampling(Checker& check, const at::Tensor& seed, const at::Tensor& temperature, const at::Tensor& top_k,
                  const at::Tensor& top_p) {
  check.tensor("seed", seed, {at::kLong}, "N");
  check.tensor("temperature", temperature, {at::kDouble}, "N");
  check.tensor("top_k", top_k, {at::kLong}, "N");
  check.tensor("top_p", top_p, {at::kDouble}, "N");
  return {seed.const_data_ptr<std::int64_t>(), temperature.const_data_ptr<double>(), top_k.const_data_ptr<std::int64_t>(),
          top_p.const_data_ptr<double>()};
}

// ---- States and rows

#define PACKED_SS_FILL(name, type, shape) view.name = data(*tensor++, access);

BlockState block_state(Checker& check, at::TensorList state, std::int64_t block_size, Access access) {
  check.sizes.bind("W", block_size - 1);
  check.list("state", kBlockState, state);
  BlockState view{};
  view.sequences = check.sizes["N"];
  view.capacity = check.sizes["T"];
  view.width = check.sizes["W"];
  view.calls = check.sizes["calls"];
  view.stop_count = check.sizes["S"];
  view.stop_length = check.sizes["M"];
  const at::Tensor* tensor = state.begin();
  PACKED_SS_BLOCK_STATE(PACKED_SS_FILL)
  return view;
}

BlockShape block_shape(const Checker& check, const char* prefix, std::int64_t verifier_rows, std::int64_t block_size,
                       at::IntArrayRef cuts) {
  constexpr std::int64_t kInt16Max = std::numeric_limits<std::int16_t>::max();
  TORCH_CHECK_VALUE(block_size >= 2 && block_size <= kInt16Max, check.op, ": block_size must be in 2 ... ", kInt16Max, ", got ",
                    block_size, ".");
  TORCH_CHECK_VALUE(verifier_rows >= 0 && verifier_rows <= block_size, check.op, ": ", prefix,
                    "verifier_rows must be in 0 ... block_size = ", block_size, ", got ", verifier_rows, ".");
  const bool inside = cuts.empty() ? verifier_rows > 0 : cuts[0] == 0 && cuts.back() < block_size;
  TORCH_CHECK_VALUE(inside && cuts.size() <= kMaxCuts && ascend(cuts), check.op, ": ", prefix,
                    "cuts must ascend from 0, below block_size = ", block_size, ", ", kMaxCuts,
                    " at most, and none only with verifier rows, got ", cuts, ".");
  BlockShape shape{static_cast<std::int32_t>(verifier_rows),
                   static_cast<std::int32_t>(block_size),
                   0,
                   static_cast<std::int32_t>(cuts.size()),
                   {}};
  for (std::size_t k = 0; k < cuts.size(); ++k) shape.cuts[k] = static_cast<std::int16_t>(cuts[k]);
  return shape;
}

BlockRows block_rows(Checker& check, const char* prefix, const char* what, std::int64_t mask_token_id, std::int64_t verifier_rows,
                     std::int64_t block_size, at::IntArrayRef cuts, at::TensorList rows) {
  BlockRows view{};
  view.shape = block_shape(check, prefix, verifier_rows, block_size, cuts);
  view.mask_token_id = check.mask(mask_token_id);
  check.sizes.bind("R", view.shape.rows());
  check.list(what, kBlockRows, rows);
  constexpr Access access = Access::kWrite;
  const at::Tensor* tensor = rows.begin();
  PACKED_SS_BLOCK_ROWS(PACKED_SS_FILL)
  return view;
}

OrderedState ordered_state(Checker& check, at::TensorList state, Access access) {
  check.list("state", kOrderedState, state);
  OrderedState view{};
  view.sequences = check.sizes["N"];
  view.capacity = check.sizes["T"];
  view.width = check.sizes["W"];
  view.waiting_width = check.sizes["P"];
  view.calls = check.sizes["calls"];
  view.stop_count = check.sizes["S"];
  view.stop_length = check.sizes["M"];
  const at::Tensor* tensor = state.begin();
  PACKED_SS_ORDERED_STATE(PACKED_SS_FILL)
  return view;
}

OrderedShape ordered_shape(const Checker& check, const char* prefix, std::int64_t waiting_rows, std::int64_t window, bool drafts,
                           bool verifies, at::IntArrayRef cuts) {
  const std::int64_t width = check.sizes["W"];
  TORCH_CHECK_VALUE(waiting_rows >= 0 && waiting_rows <= check.sizes["P"], check.op, ": ", prefix,
                    "waiting_rows must be in 0 ... ", check.sizes["P"], ", got ", waiting_rows, ".");
  TORCH_CHECK_VALUE(window >= 1 && window <= width && width <= kMostWindow, check.op, ": ", prefix,
                    "window must be in 1 ... W = ", width, ", and W at most ", kMostWindow, ", got ", window, ".");
  const bool inside = cuts.empty() || (cuts[0] == 0 && cuts.back() < window);
  TORCH_CHECK_VALUE(inside && cuts.size() <= kMaxCuts && ascend(cuts), check.op, ": ", prefix,
                    "cuts must ascend from 0, below window = ", window, ", ", kMaxCuts, " at most, got ", cuts, ".");
  OrderedShape shape{static_cast<std::int32_t>(waiting_rows),
                     static_cast<std::int32_t>(window),
                     drafts ? 1 : 0,
                     verifies ? 1 : 0,
                     static_cast<std::int32_t>(cuts.size()),
                     {}};
  for (std::size_t k = 0; k < cuts.size(); ++k) shape.cuts[k] = static_cast<std::int16_t>(cuts[k]);
  return shape;
}

OrderedRows ordered_rows(Checker& check, const char* prefix, const char* what, std::int64_t mask_token_id,
                         std::int64_t spare_slot, std::int64_t waiting_rows, std::int64_t window, bool drafts, bool verifies,
                         at::IntArrayRef cuts, at::TensorList rows) {
  OrderedRows view{};
  view.shape = ordered_shape(check, prefix, waiting_rows, window, drafts, verifies, cuts);
  view.mask_token_id = check.mask(mask_token_id);
  TORCH_CHECK_VALUE(spare_slot >= 0 && spare_slot <= kInt32Max, check.op, ": spare_slot must be in 0 ... 2^31 - 1, got ",
                    spare_slot, ".");
  view.spare_slot = static_cast<std::int32_t>(spare_slot);
  check.sizes.bind("R", view.shape.rows());
  check.sizes.bind("words", view.mask_words());
  check.list(what, kOrderedRows, rows);
  constexpr Access access = Access::kWrite;
  const at::Tensor* tensor = rows.begin();
  PACKED_SS_ORDERED_ROWS(PACKED_SS_FILL)
  return view;
}

#undef PACKED_SS_FILL

}  // namespace

ArgmaxCall argmax_rows_view(const at::Tensor& logits, const OptionalTensor& rows, const OptionalTensor& positions,
                            const OptionalTensor& draft, const at::Tensor& ids, const OptionalTensor& probability) {
  Checker check("argmax_rows", logits.device());
  const RowList list = row_list(check, logits, rows, positions, draft, ids);
  check.tensor("probability", probability, {wide(logits)}, "N M");
  return {list, written(ids), written_scores(probability)};
}

DrawCall draw_rows_view(const at::Tensor& logits, const OptionalTensor& rows, const at::Tensor& positions,
                        const OptionalTensor& draft, const at::Tensor& seed, const at::Tensor& temperature,
                        const at::Tensor& top_k, const at::Tensor& top_p, std::int64_t stream, const at::Tensor& ids,
                        const OptionalTensor& log_q, const OptionalTensor& next_ids, std::int64_t next_column) {
  Checker check("draw_rows", logits.device());
  RowList list = row_list(check, logits, rows, positions, draft, ids);
  list.sampling = sampling(check, seed, temperature, top_k, top_p);
  TORCH_CHECK_VALUE(stream == 0 || stream == 2, check.op, ": stream must be 0 (DRAFT) or 2 (TARGET), got ", stream, ".");
  check.tensor("log_q", log_q, {wide(logits)}, "N M V");
  DrawCall call{list, static_cast<std::uint32_t>(stream), written(ids), written_scores(log_q), nullptr, 0, next_column};
  if (!next_ids) return call;
  check.tensor("next_ids", next_ids, {at::kInt}, "N next_R");
  call.next_ids = written(*next_ids);
  call.next_stride = next_ids->size(1);
  TORCH_CHECK_VALUE(next_column >= 0 && next_column + list.entries <= call.next_stride, check.op,
                    ": next_column must leave room for ", list.entries, " of the ", call.next_stride,
                    " columns of next_ids, got ", next_column, ".");
  return call;
}

VerifyCall verify_rows_view(const at::Tensor& logits, const at::Tensor& positions, const at::Tensor& seed,
                            const at::Tensor& temperature, const at::Tensor& top_k, const at::Tensor& top_p,
                            const at::Tensor& draft, const at::Tensor& draft_log_q, const at::Tensor& ids,
                            const at::Tensor& accepted) {
  Checker check("verify_rows", logits.device());
  RowList list = row_list(check, logits, std::nullopt, positions, draft, ids);
  list.sampling = sampling(check, seed, temperature, top_k, top_p);
  check.tensor("draft_log_q", draft_log_q, {wide(logits)}, "N W V");
  check.tensor("accepted", accepted, {at::kInt}, "N M");
  return {list, draft_log_q.const_data_ptr(), written(ids), written(accepted)};
}

PackBlock pack_block_view(at::TensorList state, std::int64_t mask_token_id, std::int64_t verifier_rows, std::int64_t block_size,
                          at::IntArrayRef cuts, at::TensorList rows) {
  Checker check("pack_block", state);
  const BlockState view = block_state(check, state, block_size, Access::kRead);
  return {view, block_rows(check, "", "rows", mask_token_id, verifier_rows, block_size, cuts, rows)};
}

AdvanceBlock advance_block_view(const at::Tensor& ids, const OptionalTensor& accepted, at::TensorList state,
                                std::int64_t verifier_rows, std::int64_t block_size, at::IntArrayRef cuts, std::int64_t shift,
                                std::int64_t mask_token_id, std::int64_t next_verifier_rows, at::IntArrayRef next_cuts,
                                at::TensorList next_rows) {
  Checker check("advance_block", state);
  AdvanceBlock call{};
  call.state = block_state(check, state, block_size, Access::kWrite);
  call.shape = block_shape(check, "", verifier_rows, block_size, cuts);
  TORCH_CHECK_VALUE(shift == 0 || shift == 1, check.op, ": shift must be 0 or 1, got ", shift, ".");
  call.shape.shift = static_cast<std::int32_t>(shift);
  check.ids(ids, verifier_rows, call.shape.rows());
  check.sizes.bind("v", verifier_rows);
  check.tensor("accepted", accepted, {at::kInt}, "N v");
  call.ids = read(ids);
  call.columns = ids.size(1);
  call.accepted = read(accepted);
  if (!next_rows.empty()) {
    call.next = block_rows(check, "next_", "next_rows", mask_token_id, next_verifier_rows, block_size, next_cuts, next_rows);
  }
  return call;
}

PackOrdered pack_ordered_view(at::TensorList state, std::int64_t mask_token_id, std::int64_t spare_slot,
                              std::int64_t waiting_rows, std::int64_t window, bool drafts, bool verifies, at::IntArrayRef cuts,
                              at::TensorList rows) {
  Checker check("pack_ordered", state);
  const OrderedState view = ordered_state(check, state, Access::kRead);
  return {view, ordered_rows(check, "", "rows", mask_token_id, spare_slot, waiting_rows, window, drafts, verifies, cuts, rows)};
}

AdvanceOrdered advance_ordered_view(const at::Tensor& ids, const OptionalTensor& probability, const OptionalTensor& accepted,
                                    at::TensorList state, std::int64_t waiting_rows, std::int64_t window, bool verifies,
                                    at::IntArrayRef cuts, bool by_confidence, std::int64_t mask_token_id, std::int64_t spare_slot,
                                    std::int64_t next_waiting_rows, std::int64_t next_window, bool next_drafts,
                                    bool next_verifies, at::IntArrayRef next_cuts, at::TensorList next_rows) {
  Checker check("advance_ordered", state);
  AdvanceOrdered call{};
  call.state = ordered_state(check, state, Access::kWrite);
  call.shape = ordered_shape(check, "", waiting_rows, window, false, verifies, cuts);
  const std::int64_t rows = call.shape.head_rows();
  check.ids(ids, call.shape.verifier_rows(), rows);
  TORCH_CHECK_VALUE(!(by_confidence && verifies) || (probability && ids.size(1) == rows), check.op, ": ids must have all ", rows,
                    " columns, and probability be given, for an order by confidence.");
  check.sizes.bind("M", ids.size(1));
  check.tensor("probability", probability, {at::kFloat, at::kDouble}, "N M");
  check.sizes.bind("window", window);
  check.tensor("accepted", accepted, {at::kInt}, "N window");
  call.ids = read(ids);
  call.columns = ids.size(1);
  call.probability = read_scores(probability);
  call.wide = probability && probability->scalar_type() == at::kDouble;
  call.accepted = read(accepted);
  call.by_confidence = by_confidence;
  if (!next_rows.empty()) {
    call.next = ordered_rows(check, "next_", "next_rows", mask_token_id, spare_slot, next_waiting_rows, next_window, next_drafts,
                             next_verifies, next_cuts, next_rows);
  }
  return call;
}

AdvanceOrdered advance_native_view(const at::Tensor& ids, const at::Tensor& probability, at::TensorList state,
                                   std::int64_t window, double threshold, std::int64_t mask_token_id, std::int64_t spare_slot,
                                   std::int64_t next_waiting_rows, std::int64_t next_window, bool next_drafts, bool next_verifies,
                                   at::IntArrayRef next_cuts, at::TensorList next_rows) {
  Checker check("advance_native", state);
  AdvanceOrdered call{};
  call.state = ordered_state(check, state, Access::kWrite);
  call.shape = ordered_shape(check, "", 0, window, false, false, {0});
  TORCH_CHECK_VALUE(call.state.waiting_width >= window, check.op, ": waiting must have a column for each of the ", window,
                    " positions, got ", call.state.waiting_width, ".");
  check.ids(ids, window, window);
  check.sizes.bind("window", window);
  check.tensor("probability", probability, {at::kFloat, at::kDouble}, "N window");
  TORCH_CHECK_VALUE(threshold >= 0 && threshold <= 1, check.op, ": threshold must be in [0, 1], got ", threshold, ".");
  call.ids = read(ids);
  call.columns = window;
  call.probability = probability.const_data_ptr();
  call.wide = probability.scalar_type() == at::kDouble;
  call.threshold = threshold;
  if (!next_rows.empty()) {
    call.next = ordered_rows(check, "next_", "next_rows", mask_token_id, spare_slot, next_waiting_rows, next_window, next_drafts,
                             next_verifies, next_cuts, next_rows);
  }
  return call;
}

CompactCache compact_cache_view(const at::Tensor& keys, const at::Tensor& values, const at::Tensor& cache_len,
                                const at::Tensor& first_moved, const at::Tensor& moved_from) {
  Checker check("compact_cache", keys.device());
  const std::int64_t n = cache_len.numel();
  TORCH_CHECK_VALUE(keys.dim() == 5 && keys.size(1) >= n && keys.stride(4) == 1 && keys.stride(3) == keys.size(4), check.op,
                    ": keys must be [layers, N, C, Hkv, D] with contiguous slots and N at least ", n, ", ", got(keys), ".");
  TORCH_CHECK_VALUE(values.sizes() == keys.sizes() && values.strides() == keys.strides() &&
                        values.scalar_type() == keys.scalar_type() && values.device() == keys.device(),
                    check.op, ": values must be as keys are, ", got(values), ".");
  check.sizes.bind("N", n);
  check.tensor("cache_len", cache_len, {at::kInt}, "N");
  check.tensor("first_moved", first_moved, {at::kInt}, "N");
  check.tensor("moved_from", moved_from, {at::kInt}, "N T");
  const std::int64_t bytes = keys.element_size();
  return {keys.size(0),
          n,
          keys.size(2),
          moved_from.size(1),
          keys.stride(0) * bytes,
          keys.stride(1) * bytes,
          keys.stride(2) * bytes,
          keys.size(3) * keys.size(4) * bytes,
          keys.mutable_data_ptr(),
          values.mutable_data_ptr(),
          read(cache_len),
          read(first_moved),
          read(moved_from)};
}

}  // namespace packed_ss
