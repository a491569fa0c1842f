#include "chosen_rows.cuh"

// Draws argmax(log p + G) of chosen rows, with log p written beside where it is wanted.
namespace packed_ss::cuda {
namespace {

// One block is one slice of one row; the last of a row writes its token. Reads sizeof(logit) * V bytes of every row that is
// wanted, and 8 bytes a slice of it in each block; writes 8 bytes a slice, 4 a row, and with kStores 4 V bytes of log Q.
template <class Element, bool kStores>
__global__ void __launch_bounds__(kThreads, 2) draw_chosen(DrawRows args, Work work) {
  const ChosenRow row = row_of_block(args.chosen, work.splits);
  if (!row.is_wanted) {
    if (row.split == 0 && threadIdx.x == 0) args.ids[row.slot] = -1;
    return;
  }
  const auto vocab_size = static_cast<std::int32_t>(args.chosen.logits.vocab_size);
  const std::int32_t begin = row.split * work.slice;
  const std::int32_t end = vocab_size - begin < work.slice ? vocab_size : begin + work.slice;
  const Processed processed = processed_row<kStores>(args.chosen.sampling, work, row.slot);
  Packed best = no_draw();
  if (processed.is_finite) {
    const Noise noise{philox_key(args.chosen.sampling.seed[row.sequence]), noise_position(args.chosen, row.slot), args.stream};
    float* stored = kStores ? args.log_q + row.slot * vocab_size : nullptr;
    best = block_max(pack_draw(draw_slice<Element, kStores>(row_logits<Element>(args.chosen.logits, row.sequence, row.row), begin,
                                                            end, processed, noise, stored)));
  }
  Packed* drawn = work.drawn + row.slot * work.splits;
  if (threadIdx.x == 0) drawn[row.split] = best;
  if (is_last_block(work.tickets + row.slot, work.splits) && warp_id() == 0) {
    const Best<std::uint32_t> token = unpack_best(warp_best_of(drawn, work.splits));
    if (lane_id() == 0) args.ids[row.slot] = is_finite_key(token.key) ? token.id : -1;
  }
}

Work plan(const DrawRows& args, std::int64_t& bytes) {
  return plan_rows(args.chosen, {args.log_q != nullptr, true, false}, args.workspace, bytes);
}

}  // namespace

std::int64_t draw_rows_workspace_bytes(const DrawRows& args) {
  std::int64_t bytes = 0;
  plan(args, bytes);
  return bytes;
}

int launch_draw_rows(const DrawRows& args, CUstream_st* stream) {
  const std::int64_t rows = args.chosen.sequences * args.chosen.width;
  if (rows == 0) return cudaSuccess;
  if (args.chosen.logits.vocab_size > kMaxVocabSize) return cudaErrorInvalidValue;
  std::int64_t bytes = 0;
  const Work work = plan(args, bytes);
  const unsigned grid = grid_of(rows * work.splits);
  return with_element(args.chosen.logits.dtype, [&](auto element) -> int {
    using Element = decltype(element);
    // Both launches read sizeof(logit) * V bytes of each row that is wanted (the second in part from the L2 cache). The first
    // writes 8 bytes a slice, 12 where log Q is wanted.
    if (args.log_q == nullptr) {
      if (const int error = launch_scan<Element, false>(args.chosen, work, stream)) return error;
      PACKED_SS_LAUNCH((draw_chosen<Element, false>), grid, kThreads, 0, stream, args, work);
    } else {
      if (const int error = launch_scan<Element, true>(args.chosen, work, stream)) return error;
      PACKED_SS_LAUNCH((draw_chosen<Element, true>), grid, kThreads, 0, stream, args, work);
    }
    return cudaGetLastError();
  });
}

}  // namespace packed_ss::cuda
