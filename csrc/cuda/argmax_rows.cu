#include "operators.h"
#include "row_statistics.cuh"

// The largest logit of each row, and what softmax makes of it: 1 / sum of exp(x - largest).
namespace packed_ss::cuda {
namespace {

constexpr int kEntriesPerBlock = kThreads / kWarp;

// One warp is one entry. Reads 8 bytes for each split of its row, 12 with kProbability; writes 4, or 8.
template <bool kProbability>
__global__ void __launch_bounds__(kThreads) argmax_rows_kernel(ArgmaxRows args, Statistics statistics) {
  const std::int64_t entry = std::int64_t{blockIdx.x} * kEntriesPerBlock + warp_id();
  if (entry >= args.list.sequences * args.list.entries) return;
  std::int32_t id = -1;
  float probability = 0.0f;
  if (task_of_entry(args.list, entry, 0).row >= 0) {
    const std::int32_t results = statistics.splits.count;
    const Best<std::uint32_t> best = unpack_best(warp_best_of(statistics.largest + entry * results, results));
    const float sum = kProbability ? row_sum(statistics, entry, results, key_score(best.key), 1.0f) : 1.0f;
    if (is_finite_key(best.key)) {
      id = best.id;
      probability = 1.0f / sum;
    }
  }
  if (lane_id() != 0) return;
  args.ids[entry] = id;
  if (kProbability) args.probability[entry] = probability;
}

template <class Element, bool kProbability>
int launch(const ArgmaxRows& args, const Statistics& statistics, CUstream_st* stream) {
  // Reads sizeof(logit) * V bytes of every row that is asked for.
  if (const int error = launch_scan<Element, kProbability, false>(args.list, statistics, stream)) return error;
  const std::int64_t entries = args.list.sequences * args.list.entries;
  const unsigned grid = grid_of((entries + kEntriesPerBlock - 1) / kEntriesPerBlock);
  PACKED_SS_LAUNCH(argmax_rows_kernel<kProbability>, grid, kThreads, 0, stream, args, statistics);
  return cudaGetLastError();
}

}  // namespace

std::int64_t argmax_rows_workspace_bytes(const ArgmaxRows& args) {
  Taker taker{nullptr};
  take_statistics(taker, args.list);
  return taker.used;
}

int launch_argmax_rows(const ArgmaxRows& args, CUstream_st* stream) {
  if (args.list.sequences * args.list.entries == 0) return cudaSuccess;
  if (args.list.logits.vocab_size > kMaxVocabSize) return cudaErrorInvalidValue;
  Taker taker{args.workspace};
  const Statistics statistics = take_statistics(taker, args.list);
  return with_element(args.list.logits.dtype, [&](auto element) -> int {
    using Element = decltype(element);
    return args.probability == nullptr ? launch<Element, false>(args, statistics, stream)
                                       : launch<Element, true>(args, statistics, stream);
  });
}

}  // namespace packed_ss::cuda
