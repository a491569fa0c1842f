// Passes over the logits of one row, in blocks of 64 ids; free of torch. Each is compiled for every element type (element.h),
// which the first argument names, and for several instruction sets.
#pragma once

#include <cstdint>
#include <limits>

#include "cpu/element.h"
#include "cpu/uniform_noise.h"
#include "packed_ss/philox.h"
#include "packed_ss/scores.h"

#define PACKED_SS_ELEMENT_TYPES(USE) USE(Float32) USE(Float64) USE(BFloat16) USE(Float16)

namespace packed_ss::cpu {

// Ids of a block: those whose noise is made together.
constexpr std::int64_t kBlock = kIdsPerGroup;

// A scaled score this far below the largest adds less to a sum of exponentials than rounding does, for any vocabulary.
constexpr float kNegligible = -60.0f;

// G(u) <= -log u <= kLargestGumbel for every u that there is.
constexpr float kLargestGumbel = 22.874f;

// Buckets of scaled scores in top-p's histogram of masses: of width 1/64, the last one takes all that is below.
constexpr int kBuckets = 2048;
constexpr float kBucketsPerUnit = 64.0f;

// A row and what has been found out about it.
template <class Element>
struct RowView {
  using Bits = typename Element::Bits;
  using Value = typename Element::Value;
  const Bits* logits;
  std::int64_t vocab_size;
  const Bits* block_keys;  // the largest key of every block
  Value maximum;
  Value temperature;
  Value kept_from;  // tokens of a lower scaled score are filtered out
  Value log_sum;    // log p = scaled score - log_sum
};

// The noise of a row's draw.
struct RowNoise {
  PhiloxKey key;
  std::uint32_t position;
  std::uint32_t stream;
};

// A token and its score log weight + G; the id is -1 where no weight is positive.
template <class Value>
struct Draw {
  Value score = -std::numeric_limits<Value>::infinity();
  std::int32_t id = -1;
};

#define PACKED_SS_DECLARE(Element)                                                                                               \
  /* The largest of logits[begin ... end), as its key, and the first id that has it; of NaNs the first. */                       \
  Best<Element::Bits> largest(Element, const Element::Bits* logits, std::int64_t begin, std::int64_t end);                       \
  /* Writes the largest key of blocks begin ... end - 1. */                                                                      \
  void find_block_keys(Element, const Element::Bits* logits, std::int64_t vocab_size, std::int64_t begin, std::int64_t end,      \
                       Element::Bits* block_keys);                                                                               \
  /* Sum of exp(scaled score) over what is kept of blocks begin ... end - 1. */                                                  \
  double exp_sum(Element, const RowView<Element>& row, std::int64_t begin, std::int64_t end);                                    \
  /* Adds exp(scaled score), in float64, of everything kept to its bucket. */                                                    \
  void add_masses(Element, const RowView<Element>& row, double* masses);                                                         \
  /* Writes the scaled scores of buckets first ... last, of what is kept, to `scores` [vocab_size]; returns their number. */     \
  std::int64_t kept_scores(Element, const RowView<Element>& row, int first, int last, Element::Value* scores);                   \
  /* argmax(log p + G) over blocks begin ... end - 1. */                                                                         \
  Draw<Element::Value> draw(Element, const RowView<Element>& row, RowNoise noise, std::int64_t begin, std::int64_t end);         \
  /* The same, of log [p - Q]+ + G. */                                                                                           \
  Draw<Element::Value> draw_residual(Element, const RowView<Element>& row, RowNoise noise, std::int64_t begin, std::int64_t end, \
                                     const Element::Value* log_q);                                                               \
  /* The same as draw; writes log p of these blocks to `log_p` [vocab_size]. */                                                  \
  Draw<Element::Value> draw_and_store(Element, const RowView<Element>& row, RowNoise noise, std::int64_t begin,                  \
                                      std::int64_t end, Element::Value* log_p);
PACKED_SS_ELEMENT_TYPES(PACKED_SS_DECLARE)
#undef PACKED_SS_DECLARE

// The better of two draws from different ids of one row.
template <class Value>
Draw<Value> better_draw(Draw<Value> a, Draw<Value> b) {
  const bool second = b.id >= 0 && (a.id < 0 || b.score > a.score || (b.score == a.score && b.id < a.id));
  return second ? b : a;
}

}  // namespace packed_ss::cpu
