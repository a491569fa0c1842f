#include "cpu/row_kernels.h"

#include <algorithm>

#include "cpu/multiversion.h"
#include "cpu/vector_math.h"

// Bodies are templates inlined into the multiversion functions at the end. Loops over a block have a constant length, no branch
// and no order that matters, so that the compiler vectorises them.
namespace packed_ss::cpu {
namespace {

template <class Element>
PACKED_SS_HOST_DEVICE typename Element::Bits largest_key(const typename Element::Bits* logits, std::int64_t count) {
  typename Element::Bits key = 0;
  for (std::int64_t i = 0; i < count; ++i) key = std::max(key, element_key<Element>(logits[i]));
  return key;
}

template <class Element>
PACKED_SS_HOST_DEVICE Best<typename Element::Bits> largest_body(const typename Element::Bits* logits, std::int64_t begin,
                                                                std::int64_t end) {
  constexpr std::int64_t kChunk = 512;
  constexpr auto kNaN = static_cast<typename Element::Bits>(2 * Element::kInf + 1);
  typename Element::Bits best = 0;
  std::int64_t chunk = begin;
  for (std::int64_t at = begin; at < end; at += kChunk) {
    const auto key = largest_key<Element>(logits + at, std::min(kChunk, end - at));
    if (key > best) {
      best = key;
      chunk = at;
    }
  }
  if (best >= kNaN) {
    for (chunk = begin; element_key<Element>(logits[chunk]) < kNaN;) ++chunk;
    return {static_cast<typename Element::Bits>(~typename Element::Bits{0}), static_cast<std::int32_t>(chunk)};
  }
  while (element_key<Element>(logits[chunk]) != best) ++chunk;
  return {best, static_cast<std::int32_t>(chunk)};
}

template <class Element>
PACKED_SS_HOST_DEVICE void find_block_keys_body(const typename Element::Bits* logits, std::int64_t vocab_size, std::int64_t begin,
                                                std::int64_t end, typename Element::Bits* block_keys) {
  for (std::int64_t block = begin; block < end; ++block) {
    const auto* at = logits + block * kBlock;
    const std::int64_t left = vocab_size - block * kBlock;
    block_keys[block] = left >= kBlock ? largest_key<Element>(at, kBlock) : largest_key<Element>(at, left);
  }
}

// The largest scaled score of a block: as monotone as `scaled` is, so a bound for the others.
template <class Element>
PACKED_SS_HOST_DEVICE typename Element::Value block_maximum(const RowView<Element>& row, std::int64_t block) {
  return scaled(key_value<Element>(row.block_keys[block]), row.maximum, row.temperature);
}

// Scaled scores of a block, -inf where filtered and past the end of the row.
template <class Element>
PACKED_SS_HOST_DEVICE void load_block(const RowView<Element>& row, std::int64_t block, typename Element::Value* scores) {
  using Bits = typename Element::Bits;
  using Value = typename Element::Value;
  constexpr Value kMinusInf = -std::numeric_limits<Value>::infinity();
  const Bits* at = row.logits + block * kBlock;
  const std::int64_t left = row.vocab_size - block * kBlock;
  Bits rest[kBlock];
  if (left < kBlock) {
    constexpr auto kMinusInfBits = static_cast<Bits>(Element::kInf | (Bits{1} << (8 * sizeof(Bits) - 1)));
    std::fill(std::copy(at, at + left, rest), rest + kBlock, kMinusInfBits);
    at = rest;
  }
  const Value maximum = row.maximum, temperature = row.temperature, kept_from = row.kept_from;
  for (std::int64_t j = 0; j < kBlock; ++j) {
    const Value score = scaled(Element::value(at[j]), maximum, temperature);
    scores[j] = score >= kept_from ? score : kMinusInf;
  }
}

template <class Element>
PACKED_SS_HOST_DEVICE double exp_sum_body(const RowView<Element>& row, std::int64_t begin, std::int64_t end) {
  using Value = typename Element::Value;
  constexpr int kLanes = 16;
  double lanes[kLanes] = {};
  for (std::int64_t block = begin; block < end; ++block) {
    const Value most = block_maximum(row, block);
    if (most < row.kept_from || most < kNegligible) continue;
    Value terms[kBlock];
    load_block(row, block, terms);
    for (int j = 0; j < kBlock; ++j) terms[j] = exp_nonpositive(terms[j]);
    for (int half = kBlock / 2; half >= kLanes; half /= 2) {
      for (int j = 0; j < half; ++j) terms[j] += terms[j + half];
    }
    for (int j = 0; j < kLanes; ++j) lanes[j] += static_cast<double>(terms[j]);
  }
  double sum = 0;
  for (int j = 0; j < kLanes; ++j) sum += lanes[j];
  return sum;
}

template <class Value>
PACKED_SS_HOST_DEVICE void find_buckets(const Value* scores, std::int32_t* buckets) {
  constexpr Value kLast = kBuckets - 1;
  for (int j = 0; j < kBlock; ++j) {
    const Value bucket = -scores[j] * static_cast<Value>(kBucketsPerUnit);
    buckets[j] = static_cast<std::int32_t>(bucket < kLast ? bucket : kLast);
  }
}

template <class Element>
PACKED_SS_HOST_DEVICE void add_masses_body(const RowView<Element>& row, double* masses) {
  using Value = typename Element::Value;
  const std::int64_t blocks = (row.vocab_size + kBlock - 1) / kBlock;
  for (std::int64_t block = 0; block < blocks; ++block) {
    const Value most = block_maximum(row, block);
    if (most < row.kept_from || most < kNegligible) continue;
    Value scores[kBlock];
    std::int32_t buckets[kBlock];
    double mass[kBlock];
    load_block(row, block, scores);
    find_buckets(scores, buckets);
    std::copy(scores, scores + kBlock, mass);
    for (int j = 0; j < kBlock; ++j) mass[j] = exp_nonpositive(mass[j]);
    for (int j = 0; j < kBlock; ++j) masses[buckets[j]] += mass[j];
  }
}

template <class Element>
PACKED_SS_HOST_DEVICE std::int64_t kept_scores_body(const RowView<Element>& row, int first, int last,
                                                    typename Element::Value* out) {
  using Value = typename Element::Value;
  const std::int64_t blocks = (row.vocab_size + kBlock - 1) / kBlock;
  std::int64_t count = 0;
  for (std::int64_t block = 0; block < blocks; ++block) {
    if (block_maximum(row, block) < row.kept_from) continue;
    Value scores[kBlock];
    std::int32_t buckets[kBlock];
    load_block(row, block, scores);
    find_buckets(scores, buckets);
    int found = 0;
    for (int j = 0; j < kBlock; ++j) found += buckets[j] >= first && buckets[j] <= last;
    if (found == 0) continue;
    for (int j = 0; j < kBlock; ++j) {
      if (buckets[j] >= first && buckets[j] <= last && scores[j] > -std::numeric_limits<Value>::infinity())
        out[count++] = scores[j];
    }
  }
  return count;
}

// An upper bound of G for u, within 0.06 where u is small: G <= -log u, and log2 u is at least exponent + fraction of its bits
// read as a number. What is added covers the rounding of this and of uniform_to_gumbel.
PACKED_SS_HOST_DEVICE float gumbel_bound(float u) {
  constexpr float kLn2 = 0.693147181f;
  return (127 * kLn2 + 5e-5f) - static_cast<float>(static_cast<std::int32_t>(float_bits(u))) * (kLn2 * 0x1p-23f);
}

enum class Weights { kPlain, kResidual, kStored };

// One block of a draw. Noise is made only if the block's largest weight, with the largest noise there is, could still win; exact
// scores only for ids whose bound could. Rounding is monotone, so no winner is lost, nor a tie.
template <class Element, Weights kWeights>
PACKED_SS_HOST_DEVICE void draw_block(const RowView<Element>& row, RowNoise noise, std::int64_t block,
                                      const typename Element::Value* log_q, typename Element::Value* log_p,
                                      Draw<typename Element::Value>& best) {
  using Value = typename Element::Value;
  constexpr Value kMinusInf = -std::numeric_limits<Value>::infinity();
  const std::int64_t first = block * kBlock;
  const std::int64_t count = std::min(kBlock, row.vocab_size - first);
  const Value most = block_maximum(row, block);
  const bool hopeless = most < row.kept_from || (most - row.log_sum) + static_cast<Value>(kLargestGumbel) < best.score;
  if (hopeless && kWeights != Weights::kStored) return;

  Value weights[kBlock];
  load_block(row, block, weights);
  const Value log_sum = row.log_sum;
  for (int j = 0; j < kBlock; ++j) weights[j] -= log_sum;
  if (kWeights == Weights::kStored) {
    std::copy(weights, weights + count, log_p + first);
    if (hopeless) return;
  }
  if (kWeights == Weights::kResidual) {
    Value q[kBlock];
    std::fill(std::copy(log_q + first, log_q + first + count, q), q + kBlock, Value{0});
    for (int j = 0; j < kBlock; ++j) weights[j] = q[j] < weights[j] ? weights[j] : kMinusInf;
  }

  float u[kBlock];
  uniform_noise_group(noise.key, noise.position, noise.stream, static_cast<std::uint32_t>(first / kPhiloxLanes), u);
  Value bounds[kBlock];
  std::int32_t hopeful = 0;
  const Value least = std::max(best.score, std::numeric_limits<Value>::lowest());
  for (int j = 0; j < kBlock; ++j) bounds[j] = weights[j] + static_cast<Value>(gumbel_bound(u[j]));
  for (int j = 0; j < kBlock; ++j) hopeful += bounds[j] >= least;
  if (hopeful == 0) return;
  for (int j = 0; j < kBlock; ++j) {
    if (!(bounds[j] >= least && bounds[j] >= best.score)) continue;
    const Value weight = kWeights == Weights::kResidual ? residual(weights[j], log_q[first + j]) : weights[j];
    const Draw<Value> candidate{weight + static_cast<Value>(uniform_to_gumbel(u[j])), static_cast<std::int32_t>(first + j)};
    const bool ahead = candidate.score > best.score || (candidate.score == best.score && candidate.id < best.id);
    if (ahead && candidate.score > kMinusInf) best = candidate;
  }
}

template <class Element, Weights kWeights>
PACKED_SS_HOST_DEVICE Draw<typename Element::Value> draw_body(const RowView<Element>& row, RowNoise noise, std::int64_t begin,
                                                              std::int64_t end, const typename Element::Value* log_q,
                                                              typename Element::Value* log_p) {
  // The block of the largest weight first: a good score early on rules out more of the others.
  const std::int64_t start = std::max_element(row.block_keys + begin, row.block_keys + end) - row.block_keys;
  Draw<typename Element::Value> best;
  draw_block<Element, kWeights>(row, noise, start, log_q, log_p, best);
  for (std::int64_t block = begin; block < end; ++block) {
    if (block != start) draw_block<Element, kWeights>(row, noise, block, log_q, log_p, best);
  }
  return best;
}

}  // namespace

#define PACKED_SS_DEFINE(Element)                                                                                                \
  PACKED_SS_MULTIVERSION Best<Element::Bits> largest(Element, const Element::Bits* logits, std::int64_t begin,                   \
                                                     std::int64_t end) {                                                         \
    return largest_body<Element>(logits, begin, end);                                                                            \
  }                                                                                                                              \
  PACKED_SS_MULTIVERSION void find_block_keys(Element, const Element::Bits* logits, std::int64_t vocab_size, std::int64_t begin, \
                                              std::int64_t end, Element::Bits* block_keys) {                                     \
    find_block_keys_body<Element>(logits, vocab_size, begin, end, block_keys);                                                   \
  }                                                                                                                              \
  PACKED_SS_MULTIVERSION double exp_sum(Element, const RowView<Element>& row, std::int64_t begin, std::int64_t end) {            \
    return exp_sum_body<Element>(row, begin, end);                                                                               \
  }                                                                                                                              \
  PACKED_SS_MULTIVERSION void add_masses(Element, const RowView<Element>& row, double* masses) {                                 \
    add_masses_body<Element>(row, masses);                                                                                       \
  }                                                                                                                              \
  PACKED_SS_MULTIVERSION std::int64_t kept_scores(Element, const RowView<Element>& row, int first, int last,                     \
                                                  Element::Value* scores) {                                                      \
    return kept_scores_body<Element>(row, first, last, scores);                                                                  \
  }                                                                                                                              \
  PACKED_SS_MULTIVERSION Draw<Element::Value> draw(Element, const RowView<Element>& row, RowNoise noise, std::int64_t begin,     \
                                                   std::int64_t end) {                                                           \
    return draw_body<Element, Weights::kPlain>(row, noise, begin, end, nullptr, nullptr);                                        \
  }                                                                                                                              \
  PACKED_SS_MULTIVERSION Draw<Element::Value> draw_residual(Element, const RowView<Element>& row, RowNoise noise,                \
                                                            std::int64_t begin, std::int64_t end, const Element::Value* log_q) { \
    return draw_body<Element, Weights::kResidual>(row, noise, begin, end, log_q, nullptr);                                       \
  }                                                                                                                              \
  PACKED_SS_MULTIVERSION Draw<Element::Value> draw_and_store(Element, const RowView<Element>& row, RowNoise noise,               \
                                                             std::int64_t begin, std::int64_t end, Element::Value* log_p) {      \
    return draw_body<Element, Weights::kStored>(row, noise, begin, end, nullptr, log_p);                                         \
  }
PACKED_SS_ELEMENT_TYPES(PACKED_SS_DEFINE)

}  // namespace packed_ss::cpu
