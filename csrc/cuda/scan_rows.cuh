// The largest logit of rows, and with kSums the sum of exp((x - largest) / temperature).
#pragma once

#include "resolve_tasks.cuh"

namespace packed_ss::cuda {

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

// The block scans a slice of a row. The largest logit of it goes to work.largest [slots, scan_splits], and with kSums the sum of
// exp((x - largest) / temperature) to work.sums.
template <class Element, bool kSums>
__device__ __forceinline__ void scan_slice(const typename Element::Bits* logits, std::int32_t vocab_size, double temperature,
                                           const Work& work, std::int64_t slot, std::int32_t split) {
  const std::int32_t begin = split * work.slice;
  const std::int32_t end = vocab_size - begin < work.slice ? vocab_size : begin + work.slice;
  const float inverse_temperature = kSums ? 1.0f / static_cast<float>(temperature) : 1.0f;
  Largest seen = nothing_seen(begin);
  float sum = 0.0f;
  float largest = -INFINITY;
  for_each_chunk<Element>(logits, begin, end, [&](std::int32_t id, const float (&x)[Element::kIds]) {
    const float top = consider(seen, id, x);
    if (kSums) add_to_sum(sum, largest, top, x, inverse_temperature);
  });
  const Packed best = block_max(pack_best(seen.best));
  if (kSums) {
    const std::uint32_t key = unpack_best(best).key;
    const bool counts = is_finite_key(key) && largest != -INFINITY;
    sum = block_sum(counts ? sum * __expf((largest - key_score(key)) * inverse_temperature) : 0.0f);
  }
  if (threadIdx.x == 0) {
    const std::int64_t at = slot * work.scan_splits + split;
    work.largest[at] = best;
    if (kSums) work.sums[at] = sum;
  }
}

namespace {

// One block is one slice of one row. Reads sizeof(logit) * V bytes of every row that is wanted; writes 8 bytes (12 with
// kSums) for each slice. kFinal (resolve_greedy): the last block of a sequence commits (see finish_sequence); else tickets
// are zeroed, 4 N bytes.
template <class Element, bool kSums, bool kFinal>
__global__ void __launch_bounds__(kThreads, 4) scan_rows(Resolve args, Work work, Stage stage) {
  const Task task = task_of_block(stage);
  const std::int64_t i = task.sequence;
  if (!kFinal && task.is_first && threadIdx.x == 0) work.tickets[i] = 0;
  if (!is_running(args.call.state, i)) {
    if (kFinal && task.is_first) leave_finished(args, i);
    return;
  }
  Verdict verdict{};
  if (stage.rows == RowSet::kRetained && args.call.shape.verifier_rows > 0) {
    // The largest logits of verifier rows decide in resolve_greedy, noisy draws in resolve_coupled.
    if (kSums) {
      verdict = work.verdicts[i];
    } else if (work.drawn == nullptr) {
      verdict = match(args, work, i, work.largest, work.scan_splits);
    } else {
      verdict = match(args, work, i, work.drawn, work.splits);
    }
  }
  const Row row = row_of(args, work, stage, task, verdict);
  if (row.is_wanted) {
    scan_slice<Element, kSums>(row_logits<Element>(args.call.logits, i, row.row),
                               static_cast<std::int32_t>(args.call.logits.vocab_size), args.sampling.temperature, work, row.slot,
                               task.split);
  }
  if (kFinal && is_last_block(work.tickets + i, blocks_per_sequence(stage))) {
    finish_sequence(args, work, i, verdict, work.largest, work.scan_splits, false);
  }
}

}  // namespace
}  // namespace packed_ss::cuda
