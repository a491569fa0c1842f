// Draws: argmax(log weight + G) over a split of the vocabulary.
#pragma once

#include "packed_ss/philox.h"
#include "row_statistics.cuh"

namespace packed_ss::cuda {

// Above every G there is: -log u for u = 2^-33.
constexpr float kLargestGumbel = 22.874f;
// More than __logf errs by on (0, 1).
constexpr float kLogSlack = 1e-4f;

struct Noise {
  PhiloxKey key;
  std::uint32_t position;
  std::uint32_t stream;
};

// The best draw of a thread so far.
struct Draw {
  float score;
  std::int32_t id;
};

__device__ __forceinline__ void consider(Draw& best, float score, std::int32_t id) {
  if (score > best.score || (score == best.score && id < best.id)) {
    best.score = score;
    best.id = id;
  }
}

__device__ __forceinline__ Packed pack_draw(const Draw& draw) {
  Best<std::uint32_t> best;
  best.key = order_key(draw.score);
  best.id = draw.id;
  return pack_best(best);
}

// The result of a row that has nothing to draw from; it is not finite.
__device__ __forceinline__ Packed no_draw() {
  Best<std::uint32_t> best;
  best.key = ~std::uint32_t{0};
  best.id = 0;
  return pack_best(best);
}

// The words of ids id ... id + 3, id a multiple of 4.
__device__ __forceinline__ void words_of(const Noise& noise, std::int32_t id, std::uint32_t (&words)[kPhiloxLanes]) {
  const PhiloxBlock block = noise_words(noise.key, noise.position, static_cast<std::uint32_t>(id / kPhiloxLanes), noise.stream);
  words[0] = block.x0;
  words[1] = block.x1;
  words[2] = block.x2;
  words[3] = block.x3;
}

__device__ __forceinline__ float gumbel_of(const Noise& noise, std::int32_t id) {
  std::uint32_t words[kPhiloxLanes];
  words_of(noise, id, words);
  const int lane = id % kPhiloxLanes;
  const std::uint32_t low = lane == 0 ? words[0] : words[1];
  const std::uint32_t high = lane == 2 ? words[2] : words[3];
  return uniform_to_gumbel(word_to_uniform(lane < 2 ? low : high));
}

// Draws from four ids. Noise is made, and then its logarithms taken, only where a bound on G says that it could win.
__device__ __forceinline__ void draw_four(Draw& best, const Noise& noise, std::int32_t id,
                                          const float (&log_weight)[kPhiloxLanes]) {
  std::uint32_t words[kPhiloxLanes];
  words_of(noise, id, words);
#pragma unroll
  for (int k = 0; k < kPhiloxLanes; ++k) {
    const float u = word_to_uniform(words[k]);
    // G <= -log u, for -log1p(-u) >= u.
    if (log_weight[k] - __logf(u) + kLogSlack < best.score) continue;
    consider(best, log_weight[k] + uniform_to_gumbel(u), id + k);
  }
}

__device__ __forceinline__ void store_four(float* row, std::int32_t id, std::int32_t end, bool aligned,
                                           const float (&values)[kPhiloxLanes]) {
  if (aligned && id + kPhiloxLanes <= end) {
    *reinterpret_cast<float4*>(row + id) = make_float4(values[0], values[1], values[2], values[3]);
    return;
  }
#pragma unroll
  for (int k = 0; k < kPhiloxLanes; ++k) {
    if (id + k < end) row[id + k] = values[k];
  }
}

// Draws from ids begin ... end - 1; with kStores writes their log weights to `stored` [V].
template <class Element, bool kStores>
__device__ __forceinline__ Draw draw_split(const typename Element::Bits* logits, std::int32_t begin, std::int32_t end,
                                           const Processed& row, const Noise& noise, float* stored) {
  // A start that few others beat: the argmax, which is as good a candidate in every split.
  Draw best;
  best.id = row.argmax;
  best.score = row.log_weight(row.maximum) + gumbel_of(noise, row.argmax);
  const bool aligned = reinterpret_cast<std::uintptr_t>(stored) % sizeof(float4) == 0;
  for_each_chunk<Element>(logits, begin, end, [&](std::int32_t id, const float (&x)[Element::kIds]) {
#pragma unroll
    for (int q = 0; q < Element::kIds; q += kPhiloxLanes) {
      const float top = fmaxf(fmaxf(x[q], x[q + 1]), fmaxf(x[q + 2], x[q + 3]));
      const bool may_win = row.log_weight(top) + kLargestGumbel >= best.score;
      if (!kStores && !may_win) continue;
      float log_weight[kPhiloxLanes];
#pragma unroll
      for (int k = 0; k < kPhiloxLanes; ++k) log_weight[k] = row.log_weight(x[q + k]);
      if (kStores) store_four(stored, id + q, end, aligned, log_weight);
      if (may_win) draw_four(best, noise, id + q, log_weight);
    }
  });
  return best;
}

}  // namespace packed_ss::cuda
