#include "draw.cuh"
#include "operators.h"

// Draws argmax(log p + G) of rows, with log p written beside where it is wanted. A draw takes the row's exact maximum first, so
// that it is a function of the row alone, whatever the splits.
namespace packed_ss::cuda {
namespace {

// The block stores ids begin ... end - 1 of a distribution that is all at `argmax`.
__device__ __forceinline__ void store_one_hot(float* stored, std::int32_t begin, std::int32_t end, std::int32_t argmax) {
  for (std::int32_t id = begin + static_cast<std::int32_t>(threadIdx.x); id < end; id += kThreads) {
    stored[id] = id == argmax ? 0.0f : -INFINITY;
  }
}

// One block is one split of the row of one entry; the last of an entry writes its token. Reads sizeof(logit) * V bytes of every
// row that is asked for (none of greedy sequences), and 8 bytes a split of it in each block; writes 8 bytes a split, 8 an entry,
// and with kStores 4 V bytes of log Q.
template <class Element, bool kStores>
__global__ void __launch_bounds__(kThreads, 2) draw_rows_kernel(DrawRows args, Statistics statistics, Packed* drawn) {
  const Task task = task_of_block(args.list, statistics.splits);
  if (task.row < 0) {
    if (task.split == 0 && threadIdx.x == 0) args.ids[task.entry] = -1;
    return;
  }
  const auto vocab_size = static_cast<std::int32_t>(args.list.logits.vocab_size);
  const std::int32_t begin = statistics.splits.begin(task.split);
  const std::int32_t end = statistics.splits.end(task.split, vocab_size);
  const Settings settings = args.list.sampling.of(task.sequence);
  const Processed row = processed_row<kStores>(statistics, settings, vocab_size, task.entry);
  float* stored = kStores ? args.log_q + task.entry * vocab_size : nullptr;
  Packed best = no_draw();
  if (row.is_finite && row.is_greedy) {
    best = pack_draw({row.maximum, row.argmax});
    if (kStores) store_one_hot(stored, begin, end, row.argmax);
  } else if (row.is_finite) {
    const Noise noise{philox_key(settings.seed), args.list.position(task.sequence, task.j), args.stream};
    best = block_max(pack_draw(draw_split<Element, kStores>(row_logits<Element>(args.list.logits, task.sequence, task.row), begin,
                                                            end, row, noise, stored)));
  }
  drawn += task.entry * statistics.splits.count;
  if (threadIdx.x == 0) drawn[task.split] = best;
  if (is_last_block(statistics.tickets + task.entry, statistics.splits.count) && warp_id() == 0) {
    const Best<std::uint32_t> token = unpack_best(warp_best_of(drawn, statistics.splits.count));
    const bool is_finite = is_finite_key(token.key);
    if (lane_id() != 0) return;
    args.ids[task.entry] = is_finite ? token.id : -1;
    if (is_finite && args.next_ids != nullptr) {
      args.next_ids[task.sequence * args.next_stride + args.next_column + task.j] = token.id;
    }
  }
}

template <class Element, bool kStores>
int launch(const DrawRows& args, const Statistics& statistics, Packed* drawn, CUstream_st* stream) {
  // Both launches read sizeof(logit) * V bytes of each row that is asked for (the second in part from the L2 cache).
  if (const int error = launch_scan<Element, kStores, true>(args.list, statistics, stream)) return error;
  const unsigned grid = grid_of(args.list.sequences * args.list.entries * statistics.splits.count);
  PACKED_SS_LAUNCH((draw_rows_kernel<Element, kStores>), grid, kThreads, 0, stream, args, statistics, drawn);
  return cudaGetLastError();
}

Packed* take_drawn(Taker& taker, const RowList& list, const Statistics& statistics) {
  return taker.take<Packed>(list.sequences * list.entries * statistics.splits.count);
}

}  // namespace

std::int64_t draw_rows_workspace_bytes(const DrawRows& args) {
  Taker taker{nullptr};
  take_drawn(taker, args.list, take_statistics(taker, args.list));
  return taker.used;
}

int launch_draw_rows(const DrawRows& args, CUstream_st* stream) {
  if (args.list.sequences * args.list.entries == 0) return cudaSuccess;
  if (args.list.logits.vocab_size > kMaxVocabSize) return cudaErrorInvalidValue;
  Taker taker{args.workspace};
  const Statistics statistics = take_statistics(taker, args.list);
  Packed* drawn = take_drawn(taker, args.list, statistics);
  return with_element(args.list.logits.dtype, [&](auto element) -> int {
    using Element = decltype(element);
    return args.log_q == nullptr ? launch<Element, false>(args, statistics, drawn, stream)
                                 : launch<Element, true>(args, statistics, drawn, stream);
  });
}

}  // namespace packed_ss::cuda
