// What the two launches of a row operator share: its workspace, the first launch, and what that says of a row.
//
// Launches have one block for each entry and split of the vocabulary, whatever the device says; blocks of entries that nobody
// asks for leave at once. Results of splits lie in the workspace, and whoever needs a row combines them: no block waits for
// another one of its launch. Where a sequence's settings filter, the block of split 0 has all of the row, and its result is the
// only one.
#pragma once

#include "row_filters.cuh"

namespace packed_ss::cuda {

// How the vocabulary is split.
struct Splits {
  std::int32_t count;
  std::int32_t size;  // ids of all but the last

  __device__ __forceinline__ std::int32_t begin(std::int32_t split) const { return split * size; }
  __device__ __forceinline__ std::int32_t end(std::int32_t split, std::int32_t vocab_size) const {
    return vocab_size - begin(split) < size ? vocab_size : begin(split) + size;
  }
};

// The workspace of the first launch, by entry.
struct Statistics {
  Splits splits;
  unsigned* tickets;  // [N, M], zeroed by the first launch
  Packed* largest;    // [N, M, splits], of logits
  float* sums;        // [N, M, splits], of exp((x - largest) / temperature)
  float* kept_from;   // [N, M], of filtered rows

  // Results that a row of a sequence with these settings has.
  __device__ __forceinline__ std::int32_t results(const Settings& settings, std::int64_t vocab_size) const {
    return settings.filters(vocab_size) ? 1 : splits.count;
  }
};

// What a block is about.
struct Task {
  std::int64_t entry;  // sequence * M + j
  std::int64_t sequence;
  std::int64_t j;
  std::int64_t row;  // of the logits, negative where nobody asks for it
  std::int32_t split;
};

__device__ __forceinline__ Task task_of_entry(const RowList& list, std::int64_t entry, std::int32_t split) {
  Task task;
  task.entry = entry;
  task.sequence = static_cast<unsigned>(entry) / static_cast<unsigned>(list.entries);
  task.j = entry - task.sequence * list.entries;
  task.row = list.row(task.sequence, task.j);
  task.split = split;
  return task;
}

__device__ __forceinline__ Task task_of_block(const RowList& list, const Splits& splits) {
  const auto count = static_cast<unsigned>(splits.count);
  return task_of_entry(list, blockIdx.x / count, static_cast<std::int32_t>(blockIdx.x % count));
}

template <class Element>
__device__ __forceinline__ const typename Element::Bits* row_logits(const Logits& logits, std::int64_t sequence,
                                                                    std::int64_t row) {
  return static_cast<const typename Element::Bits*>(logits.data) + logits.offset(sequence, row);
}

// ---- The first launch -----------------------------------------------------------------------------------------------------
// Adds a chunk to a sum relative to `largest`, the largest number so far.
template <int kIds>
__device__ __forceinline__ void add_to_sum(float& sum, float& largest, float top, const float (&x)[kIds],
                                           float inverse_temperature) {
  if (top == -INFINITY) return;
  if (top > largest) {
    sum *= __expf((largest - top) * inverse_temperature);
    largest = top;
  }
#pragma unroll
  for (int k = 0; k < kIds; ++k) sum += __expf((x[k] - largest) * inverse_temperature);
}

// The block scans ids begin ... end - 1 of a row.
template <class Element, bool kSums>
__device__ __forceinline__ Found scan_split(const typename Element::Bits* logits, std::int32_t begin, std::int32_t end,
                                            double temperature) {
  const float inverse_temperature = kSums ? 1.0f / static_cast<float>(temperature) : 1.0f;
  Largest seen = nothing_seen(begin);
  float sum = 0.0f;
  float largest = -INFINITY;
  for_each_chunk<Element>(logits, begin, end, [&](std::int32_t id, const float (&x)[Element::kIds]) {
    const float top = consider(seen, id, x);
    if (kSums) add_to_sum(sum, largest, top, x, inverse_temperature);
  });
  Found found{block_max(pack_best(seen.best)), 0.0f, -INFINITY};
  if (kSums) {
    const std::uint32_t key = unpack_best(found.largest).key;
    const bool counts = is_finite_key(key) && largest != -INFINITY;
    found.sum = block_sum(counts ? sum * __expf((largest - key_score(key)) * inverse_temperature) : 0.0f);
  }
  return found;
}

namespace {

// One block is one split of the row of one entry, or with filters (split 0) the row. Reads sizeof(logit) * V bytes of every row
// that is asked for, from the L2 cache 2 to 8 times more where it is filtered; writes 4 bytes an entry (8 if filtered), and 8 a
// split, 12 with kSums. kSamples: settings come from the device; else the sums are those of softmax.
template <class Element, bool kSums, bool kSamples>
__global__ void __launch_bounds__(kThreads, kSamples ? 2 : 4) scan_rows_kernel(RowList list, Statistics statistics) {
  const Task task = task_of_block(list, statistics.splits);
  if (task.split == 0 && threadIdx.x == 0) statistics.tickets[task.entry] = 0;
  if (task.row < 0) return;
  const auto vocab_size = static_cast<std::int32_t>(list.logits.vocab_size);
  const auto* logits = row_logits<Element>(list.logits, task.sequence, task.row);
  const Settings settings = kSamples ? list.sampling.of(task.sequence) : Settings{0, 1.0, 0, 1.0};
  const std::int64_t result = task.entry * statistics.splits.count + task.split;
  Found found;
  if (kSamples && settings.filters(vocab_size)) {
    if (task.split > 0) return;
    found = filter_row<Element, kSums>(logits, vocab_size, settings);
    if (threadIdx.x == 0) statistics.kept_from[task.entry] = found.kept_from;
  } else {
    found = scan_split<Element, kSums>(logits, statistics.splits.begin(task.split), statistics.splits.end(task.split, vocab_size),
                                       settings.temperature);
  }
  if (threadIdx.x == 0) {
    statistics.largest[result] = found.largest;
    if (kSums) statistics.sums[result] = found.sum;
  }
}

}  // namespace

// ---- What it says of a row ------------------------------------------------------------------------------------------------
// The processed distribution: with is_greedy all of it is at the argmax, else weights are exp(log_weight(logit)).
struct Processed {
  bool is_finite;  // whether its maximum is; nothing below means anything if not
  bool is_greedy;
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

// The sum of exp((x - maximum) / temperature) over a row, from its first `results`. Every warp that asks gets the same bits.
__device__ __forceinline__ float row_sum(const Statistics& statistics, std::int64_t entry, std::int32_t results, float maximum,
                                         float temperature) {
  const float inverse_temperature = 1.0f / temperature;
  const Packed* largest = statistics.largest + entry * statistics.splits.count;
  const float* sums = statistics.sums + entry * statistics.splits.count;
  float sum = 0.0f;
  for (std::int32_t s = lane_id(); s < results; s += kWarp) {
    const std::uint32_t key = unpack_best(largest[s]).key;
    if (is_finite_key(key)) sum += sums[s] * __expf((key_score(key) - maximum) * inverse_temperature);
  }
  return warp_sum(sum);
}

// Combines the results of a row. Every warp that asks gets the same bits.
template <bool kNormalised>
__device__ __forceinline__ Processed processed_row(const Statistics& statistics, const Settings& settings,
                                                   std::int64_t vocab_size, std::int64_t entry) {
  const std::int32_t results = statistics.results(settings, vocab_size);
  const Best<std::uint32_t> best = unpack_best(warp_best_of(statistics.largest + entry * statistics.splits.count, results));
  Processed row;
  row.is_finite = is_finite_key(best.key);
  row.is_greedy = settings.is_greedy();
  row.argmax = best.id;
  row.maximum = key_score(best.key);
  row.temperature = static_cast<float>(settings.temperature);
  row.kept_from = settings.filters(vocab_size) ? statistics.kept_from[entry] : -INFINITY;
  row.log_sum = kNormalised ? logf(row_sum(statistics, entry, results, row.maximum, row.temperature)) : 0.0f;
  return row;
}

// True in the block that is the last of `blocks` to come here; it sees what thread 0 of the others wrote before. The counter
// starts again at 0. All threads of a block have read what they need when it comes here.
__device__ __forceinline__ bool is_last_block(unsigned* ticket, std::int32_t blocks) {
  PACKED_SS_SHARED(is_last, int);
  __syncthreads();
  if (threadIdx.x == 0) {
    const auto top = static_cast<unsigned>(blocks - 1);
    __threadfence();
    is_last = atomicInc(ticket, top) == top;
    __threadfence();
  }
  __syncthreads();
  return is_last != 0;
}

// ---- On the host: shapes alone decide, so that settings may change between replays ----------------------------------------
// How to split the vocabulary for a launch over `rows` rows.
inline Splits split_rows(std::int64_t rows, std::int64_t vocab_size) {
  constexpr std::int64_t kLeastSize = 2048;     // ids: one chunk for each thread
  constexpr std::int64_t kEnoughBlocks = 1024;  // for 132 multiprocessors, 8 blocks each
  const std::int64_t most = (vocab_size + kLeastSize - 1) / kLeastSize;
  const std::int64_t useful = (kEnoughBlocks + rows - 1) / (rows > 0 ? rows : 1);
  const std::int64_t count = useful < 1 ? 1 : useful < most ? useful : most;
  const std::int64_t size = ((vocab_size + count - 1) / count + kSplitUnit - 1) / kSplitUnit * kSplitUnit;
  return {static_cast<std::int32_t>((vocab_size + size - 1) / size), static_cast<std::int32_t>(size)};
}

// Hands out a workspace, in pieces of 16 bytes. With `base` null pointers are offsets, and `used` tells how much there must be.
struct Taker {
  void* base;
  std::int64_t used = 0;

  template <class Item>
  Item* take(std::int64_t count) {
    const std::uintptr_t at = reinterpret_cast<std::uintptr_t>(base) + static_cast<std::uintptr_t>(used);
    used += (count * static_cast<std::int64_t>(sizeof(Item)) + 15) / 16 * 16;
    return reinterpret_cast<Item*>(at);
  }
};

inline Statistics take_statistics(Taker& taker, const RowList& list) {
  const std::int64_t entries = list.sequences * list.entries;
  Statistics statistics;
  statistics.splits = split_rows(entries, list.logits.vocab_size);
  const std::int64_t results = entries * statistics.splits.count;
  statistics.tickets = taker.take<unsigned>(entries);
  statistics.largest = taker.take<Packed>(results);
  statistics.sums = taker.take<float>(results);
  statistics.kept_from = taker.take<float>(entries);
  return statistics;
}

// Blocks of a launch, 0 where there are more than a grid can have.
inline unsigned grid_of(std::int64_t blocks) { return blocks <= INT32_MAX ? static_cast<unsigned>(blocks) : 0; }

template <class Element, bool kSums, bool kSamples>
int launch_scan(const RowList& list, const Statistics& statistics, CUstream_st* stream) {
  const unsigned grid = grid_of(list.sequences * list.entries * statistics.splits.count);
  PACKED_SS_LAUNCH((scan_rows_kernel<Element, kSums, kSamples>), grid, kThreads, 0, stream, list, statistics);
  return cudaGetLastError();
}

}  // namespace packed_ss::cuda
