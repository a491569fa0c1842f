// Rejection sampling of one row: whether its draft token is accepted, and the draw of another one from [p - Q]+.
#pragma once

#include "draw_rows.cuh"

namespace packed_ss::cuda {

// Algorithm 2, line 6, for draft token d of a row with logits [V] and log Q [V] at `position`. One lane may ask.
template <class Element>
__device__ __forceinline__ bool accepts_draft(const typename Element::Bits* logits, std::int64_t vocab_size, const Processed& p,
                                              std::int64_t seed, std::uint32_t position, const float* log_q, std::int32_t d) {
  if (!p.is_finite || d < 0 || d >= vocab_size) return false;
  const float u = word_to_uniform(noise_words(philox_key(seed), position, 0, static_cast<std::uint32_t>(Stream::kAccept)).x0);
  return accepts(u, p.log_weight(Element::value(logits[d])), log_q[d]);
}

// The block draws from slice `split` of row h of a sequence, from the residual and from p, into work.corrected. log_q [V] matters
// with has_draft alone.
template <class Element>
__device__ __forceinline__ void correct_slice(const typename Element::Bits* logits, std::int32_t vocab_size, const Processed& p,
                                              const Noise& noise, bool has_draft, const float* log_q, const Work& work,
                                              std::int64_t sequence, std::int32_t split) {
  const std::int32_t begin = split * work.correction_slice;
  const std::int32_t end = vocab_size - begin < work.correction_slice ? vocab_size : begin + work.correction_slice;
  Draw left{-INFINITY, begin};   // from the residual
  Draw whole{-INFINITY, begin};  // from p
  for_each_chunk<Element>(logits, begin, end, [&](std::int32_t id, const float (&x)[Element::kIds]) {
#pragma unroll
    for (int q = 0; q < Element::kIds; q += kPhiloxLanes) {
      std::uint32_t words[kPhiloxLanes];
      words_of(noise, id + q, words);
#pragma unroll
      for (int k = 0; k < kPhiloxLanes; ++k) {
        const std::int32_t at = id + q + k;
        const float log_p = p.log_weight(x[q + k]);
        if (at >= end || log_p == -INFINITY) continue;
        const float gumbel = uniform_to_gumbel(word_to_uniform(words[k]));
        consider(whole, log_p + gumbel, at);
        consider(left, residual(log_p, has_draft ? log_q[at] : -INFINITY) + gumbel, at);
      }
    }
  });
  const Packed best_left = block_max(pack_draw(left));
  const Packed best_whole = block_max(pack_draw(whole));
  if (threadIdx.x == 0) {
    Packed* corrected = work.corrected + sequence * 2 * work.correction_splits;
    corrected[split] = best_left;
    corrected[work.correction_splits + split] = best_whole;
  }
}

}  // namespace packed_ss::cuda
