#include "chosen_rows.cuh"

// The largest logit of each row, and what softmax makes of it: 1 / sum of exp(x - largest).
namespace packed_ss::cuda {
namespace {

constexpr Sampling kPlainSoftmax{nullptr, 1.0, 0, 1.0};

// One warp is one row. Reads 8 bytes for each slice of it, 12 with kProbability; writes 4, or 8.
template <bool kProbability>
__global__ void __launch_bounds__(kThreads) argmax_of_slices(ArgmaxRows args, Work work) {
  const std::int64_t slot = std::int64_t{blockIdx.x} * (kThreads / kWarp) + warp_id();
  if (slot >= args.sequences * args.rows) return;
  const Best<std::uint32_t> best = unpack_best(warp_best_of(work.largest + slot * work.scan_splits, work.scan_splits));
  const bool is_finite = is_finite_key(best.key);
  const float sum = kProbability ? row_sum(work, slot, key_score(best.key), 1.0f) : 1.0f;
  if (lane_id() != 0) return;
  args.ids[slot] = is_finite ? best.id : -1;
  if (kProbability) args.probability[slot] = is_finite ? 1.0f / sum : 0.0f;
}

ChosenRows every_row(const ArgmaxRows& args) {
  return {args.logits, args.sequences, args.rows, args.rows, nullptr, nullptr, kPlainSoftmax};
}

Work plan(const ArgmaxRows& args, std::int64_t& bytes) {
  return plan_rows(every_row(args), {args.probability != nullptr, false, false}, args.workspace, bytes);
}

}  // namespace

std::int64_t argmax_rows_workspace_bytes(const ArgmaxRows& args) {
  std::int64_t bytes = 0;
  plan(args, bytes);
  return bytes;
}

int launch_argmax_rows(const ArgmaxRows& args, CUstream_st* stream) {
  const std::int64_t rows = args.sequences * args.rows;
  if (rows == 0) return cudaSuccess;
  if (args.logits.vocab_size > kMaxVocabSize) return cudaErrorInvalidValue;
  std::int64_t bytes = 0;
  const Work work = plan(args, bytes);
  const ChosenRows all = every_row(args);
  constexpr int kRowsPerBlock = kThreads / kWarp;
  const unsigned slices = grid_of(rows * work.splits);
  const unsigned blocks = grid_of((rows + kRowsPerBlock - 1) / kRowsPerBlock);
  return with_element(args.logits.dtype, [&](auto element) -> int {
    using Element = decltype(element);
    // Reads sizeof(logit) * V bytes of every row; writes 8 bytes a slice, 12 with probabilities.
    if (args.probability == nullptr) {
      PACKED_SS_LAUNCH((scan_chosen<Element, false>), slices, kThreads, 0, stream, all, work);
      if (const int error = cudaGetLastError()) return error;
      PACKED_SS_LAUNCH(argmax_of_slices<false>, blocks, kThreads, 0, stream, args, work);
    } else {
      PACKED_SS_LAUNCH((scan_chosen<Element, true>), slices, kThreads, 0, stream, all, work);
      if (const int error = cudaGetLastError()) return error;
      PACKED_SS_LAUNCH(argmax_of_slices<true>, blocks, kThreads, 0, stream, args, work);
    }
    return cudaGetLastError();
  });
}

}  // namespace packed_ss::cuda
