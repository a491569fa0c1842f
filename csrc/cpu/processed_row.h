// The processed distribution of one row of logits: temperature, top-k, top-p, and draws from it; free of torch.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/filters.h"
#include "cpu/parallel.h"
#include "packed_ss/views.h"

namespace packed_ss::cpu {

// Uses the scratch memory of its thread: one at a time on each.
template <class Element>
class ProcessedRow {
 public:
  using Bits = typename Element::Bits;
  using Value = typename Element::Value;

  // `workers` share the passes over a long vocabulary.
  ProcessedRow(const Bits* logits, std::int64_t vocab_size, const Settings& settings, const Workers& workers)
      : workers_(workers), blocks_((vocab_size + kBlock - 1) / kBlock) {
    static thread_local Workspace<Element> work;
    work.block_keys.resize(blocks_);
    Bits* keys = work.block_keys.data();
    split([&](int, std::int64_t begin, std::int64_t end) { find_block_keys(Element{}, logits, vocab_size, begin, end, keys); });
    const Bits largest = *std::max_element(keys, keys + blocks_);
    finite_ = is_finite_key<Bits, Element::kInf>(largest);
    row_ = {logits,
            vocab_size,
            keys,
            key_value<Element>(largest),
            static_cast<Value>(std::min<double>(settings.temperature, std::numeric_limits<Value>::max())),
            -std::numeric_limits<Value>::infinity(),
            Value{0}};
    if (finite_) row_.kept_from = filter_threshold(Element{}, row_, settings.top_k, settings.top_p, work);
  }

  // Whether the row has a finite maximum; nothing below may be asked of one that has not.
  bool finite() const { return finite_; }

  // The first id of the largest logit.
  std::int32_t best_id() const {
    const Bits* const block = std::max_element(row_.block_keys, row_.block_keys + blocks_);
    std::int64_t id = (block - row_.block_keys) * kBlock;
    while (element_key<Element>(row_.logits[id]) != *block) ++id;
    return static_cast<std::int32_t>(id);
  }

  // Sum of exp(scaled score) over what is kept, of which the largest logit adds 1.
  double mass() const {
    double sums[kMostParts] = {};
    split([&](int part, std::int64_t begin, std::int64_t end) { sums[part] = exp_sum(Element{}, row_, begin, end); });
    double sum = 0;
    for (const double s : sums) sum += s;
    return sum;
  }

  // From here on log p is normalised; a draw alone does not need it.
  void normalise() { row_.log_sum = static_cast<Value>(std::log(mass())); }

  Value log_p(std::int64_t id) const {
    const Value score = scaled(Element::value(row_.logits[id]), row_.maximum, row_.temperature);
    return score >= row_.kept_from ? score - row_.log_sum : -std::numeric_limits<Value>::infinity();
  }

  // argmax(log p + G), the lowest id on ties.
  std::int32_t draw(RowNoise noise) const {
    return best_of([&](std::int64_t begin, std::int64_t end) { return cpu::draw(Element{}, row_, noise, begin, end); });
  }

  // argmax(log [p - Q]+ + G); of log p + G where nothing is left of p.
  std::int32_t draw_residual(RowNoise noise, const Value* log_q) const {
    const std::int32_t id = best_of(
        [&](std::int64_t begin, std::int64_t end) { return cpu::draw_residual(Element{}, row_, noise, begin, end, log_q); });
    return id >= 0 ? id : draw(noise);
  }

  // A draw that also writes log p [V].
  std::int32_t draw_and_store(RowNoise noise, Value* log_p) const {
    return best_of(
        [&](std::int64_t begin, std::int64_t end) { return cpu::draw_and_store(Element{}, row_, noise, begin, end, log_p); });
  }

 private:
  static constexpr int kMostParts = 64;
  static constexpr std::int64_t kBlocksPerPart = 256;

  // Calls body(part, begin, end) for ranges that cover the row's blocks, on several threads where that is worth it.
  template <class Body>
  void split(Body body) const {
    const std::int64_t most = std::min<std::int64_t>(kMostParts, blocks_ / kBlocksPerPart);
    const std::int64_t parts = std::max<std::int64_t>(1, std::min<std::int64_t>(workers_.count(), most));
    if (parts == 1) return body(0, 0, blocks_);
    workers_.share(parts, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part) {
        body(static_cast<int>(part), blocks_ * part / parts, blocks_ * (part + 1) / parts);
      }
    });
  }

  template <class Part>
  std::int32_t best_of(Part draw_part) const {
    Draw<Value> draws[kMostParts];
    split([&](int part, std::int64_t begin, std::int64_t end) { draws[part] = draw_part(begin, end); });
    Draw<Value> best;
    for (const auto& candidate : draws) best = better_draw(best, candidate);
    return best.id;
  }

  const Workers& workers_;
  std::int64_t blocks_;
  bool finite_;
  RowView<Element> row_;
};

}  // namespace packed_ss::cpu
