// The processed distribution of rows, and draws from it: argmax(log weight + G).
#pragma once

#include "packed_ss/philox.h"
#include "resolve_tasks.cuh"

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

// What is known of a row: its weights are 0 below kept_from, else exp(scaled score - log_sum).
struct Processed {
  bool is_finite;  // whether its maximum is; nothing below means anything if not
  std::int32_t argmax;
  float maximum;
  float temperature;
  float kept_from;
  float log_sum;  // 0 where nobody wants it normalised

  // Monotone in x, so that the weight of the largest bounds those of others.
  __device__ __forceinline__ float log_weight(float x) const {
    const float score = scaled(x, maximum, temperature);
    return score < kept_from ? -INFINITY : score - log_sum;
  }
};

// The sum of exp((x - maximum) / temperature) over a row, from those of its slices. Every warp that asks gets the same bits.
__device__ __forceinline__ float row_sum(const Work& work, std::int64_t slot, float maximum, float temperature) {
  const float inverse_temperature = 1.0f / temperature;
  const Packed* largest = work.largest + slot * work.scan_splits;
  const float* sums = work.sums + slot * work.scan_splits;
  float sum = 0.0f;
  for (std::int32_t s = lane_id(); s < work.scan_splits; s += kWarp) {
    const std::uint32_t key = unpack_best(largest[s]).key;
    if (is_finite_key(key)) sum += sums[s] * __expf((key_score(key) - maximum) * inverse_temperature);
  }
  return warp_sum(sum);
}

// Combines the slices of a row (scan_rows, filter_rows). Every warp that asks gets the same bits.
template <bool kNormalised>
__device__ __forceinline__ Processed processed_row(const Sampling& sampling, const Work& work, std::int64_t slot) {
  const Best<std::uint32_t> best = unpack_best(warp_best_of(work.largest + slot * work.scan_splits, work.scan_splits));
  Processed row;
  row.is_finite = is_finite_key(best.key);
  row.argmax = best.id;
  row.maximum = key_score(best.key);
  row.temperature = static_cast<float>(sampling.temperature);
  row.kept_from = work.kept_from == nullptr ? -INFINITY : work.kept_from[slot];
  row.log_sum = kNormalised ? logf(row_sum(work, slot, row.maximum, row.temperature)) : 0.0f;
  return row;
}

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
__device__ __forceinline__ Draw draw_slice(const typename Element::Bits* logits, std::int32_t begin, std::int32_t end,
                                           const Processed& row, const Noise& noise, float* stored) {
  // A start that few others beat: the argmax, which is as good a candidate in every slice.
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

// The token in place of a rejected draft, or after the last one. The residual decides, and p where it is 0 throughout: that of p
// equal to Q. Every warp that asks gets the same.
__device__ __forceinline__ std::int32_t corrected_token(const Work& work, std::int64_t sequence) {
  const Packed* corrected = work.corrected + sequence * 2 * work.correction_splits;
  Best<std::uint32_t> token = unpack_best(warp_best_of(corrected, work.correction_splits));
  if (token.key == 0) {
    token = unpack_best(warp_best_of(corrected + work.correction_splits, work.correction_splits));
  }
  return token.id;
}

namespace {

// One block is one slice of one row. Reads sizeof(logit) * V bytes of every row that is wanted, and 8 bytes a slice of it in
// each block; writes 8 bytes a slice. kRejection: draws drafts from normalised weights with noise of their own, and writes
// log Q, 4 V bytes a row; else all draws have the noise of the target. kFinal: the last block of a sequence commits (see
// finish_sequence).
template <class Element, bool kRejection, bool kFinal>
__global__ void __launch_bounds__(kThreads, 2) draw_rows(Resolve args, Work work, Stage stage) {
  const Task task = task_of_block(stage);
  const std::int64_t i = task.sequence;
  if (!is_running(args.call.state, i)) {
    if (kFinal && task.is_first) leave_finished(args, i);
    return;
  }
  const bool verifies = args.call.shape.verifier_rows > 0;
  Verdict verdict{};
  if (verifies && kRejection) {
    verdict = work.verdicts[i];
  } else if (verifies && stage.rows == RowSet::kRetained) {
    verdict = match(args, work, i, work.drawn, work.splits);
  }
  const Row row = row_of(args, work, stage, task, verdict);
  if (row.is_wanted) {
    const auto vocab_size = static_cast<std::int32_t>(args.call.logits.vocab_size);
    const std::int32_t begin = task.split * stage.slice;
    const std::int32_t end = vocab_size - begin < stage.slice ? vocab_size : begin + stage.slice;
    const Processed processed = processed_row<kRejection>(args.sampling, work, row.slot);
    Packed best = no_draw();
    if (processed.is_finite) {
      const Noise noise{philox_key(args.sampling.seed[i]), static_cast<std::uint32_t>(row.position),
                        static_cast<std::uint32_t>(kRejection ? Stream::kDraft : Stream::kTarget)};
      float* stored = kRejection ? args.draft_log_q + (i * args.call.state.width + task.slot) * vocab_size : nullptr;
      best = block_max(pack_draw(draw_slice<Element, kRejection>(row_logits<Element>(args.call.logits, i, row.row), begin, end,
                                                                 processed, noise, stored)));
    }
    if (threadIdx.x == 0) work.drawn[row.slot * work.splits + task.split] = best;
  }
  if (kFinal && is_last_block(work.tickets + i, blocks_per_sequence(stage))) {
    if (kRejection && verifies) {
      verdict.token = corrected_token(work, i);
    } else if (verifies && stage.rows == RowSet::kAll) {
      verdict = match(args, work, i, work.drawn, work.splits);
    }
    finish_sequence(args, work, i, verdict, work.drawn, work.splits, kRejection);
  }
}

}  // namespace
}  // namespace packed_ss::cuda
