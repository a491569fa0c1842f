// The rows that a row operator is about, which the device says, and the launch that finds what processed_row needs of them.
//
// As in the resolves, a launch has one block for each sequence, row ("slot", W of them) and slice of the vocabulary, whatever
// the device says; blocks of rows that nobody asks for leave at once.
#pragma once

#include "draw_rows.cuh"
#include "filter_rows.cuh"
#include "ordered.h"

namespace packed_ss::cuda {

struct ChosenRow {
  bool is_wanted;
  std::int64_t sequence;
  std::int64_t row;   // of the logits
  std::int64_t slot;  // of the workspace, sequence included
  std::int32_t split;
};

// The row of the logits that is the j-th of a sequence's range.
__device__ __forceinline__ std::int64_t row_in_range(const ChosenRows& chosen, std::int64_t sequence, std::int64_t j) {
  const std::int64_t row = chosen.range[2 * sequence] + j;
  return row < 0 ? 0 : row < chosen.rows ? row : chosen.rows - 1;
}

// The row of a block where rows are cut into `splits` slices. Without a range, the call is about all rows of the logits.
__device__ __forceinline__ ChosenRow row_of_block(const ChosenRows& chosen, std::int32_t splits) {
  ChosenRow result;
  result.slot = blockIdx.x / static_cast<unsigned>(splits);
  result.split = static_cast<std::int32_t>(blockIdx.x % static_cast<unsigned>(splits));
  result.sequence = result.slot / chosen.width;
  result.row = result.slot - result.sequence * chosen.width;
  result.is_wanted = true;
  if (chosen.range != nullptr) {
    result.is_wanted = result.row < chosen.range[2 * result.sequence + 1];
    result.row = row_in_range(chosen, result.sequence, result.row);
  }
  return result;
}

// The position that row j of a sequence predicts, as its noise has it.
__device__ __forceinline__ std::uint32_t noise_position(const ChosenRows& chosen, std::int64_t slot) {
  const std::int32_t position = chosen.positions[slot];
  return position < 0 ? 0u : static_cast<std::uint32_t>(position);
}

namespace {

// One block is one slice of one row: see scan_rows. Zeroes 4 bytes of tickets a row.
template <class Element, bool kSums>
__global__ void __launch_bounds__(kThreads, 4) scan_chosen(ChosenRows chosen, Work work) {
  const ChosenRow row = row_of_block(chosen, work.scan_splits);
  if (row.split == 0 && threadIdx.x == 0) work.tickets[row.slot] = 0;
  if (!row.is_wanted) return;
  scan_slice<Element, kSums>(row_logits<Element>(chosen.logits, row.sequence, row.row),
                             static_cast<std::int32_t>(chosen.logits.vocab_size), chosen.sampling.temperature, work, row.slot,
                             row.split);
}

// One block is one row: see filter_rows. Zeroes 4 bytes of tickets a row.
template <class Element, bool kSums>
__global__ void __launch_bounds__(kFilterThreads, 1) filter_chosen(ChosenRows chosen, Work work) {
  const ChosenRow row = row_of_block(chosen, 1);
  if (threadIdx.x == 0) work.tickets[row.slot] = 0;
  if (!row.is_wanted) return;
  filter_row<Element, kSums>(row_logits<Element>(chosen.logits, row.sequence, row.row),
                             static_cast<std::int32_t>(chosen.logits.vocab_size), chosen.sampling, work, row.slot);
}

}  // namespace

// ---- Launches, on the host ------------------------------------------------------------------------------------------------
// What an operator keeps of its rows beside the largest logits.
struct Kept {
  bool sums;
  bool draws;
  bool corrections;
};

// As plan_work: shapes and sampling alone decide.
inline Work plan_rows(const ChosenRows& chosen, Kept kept, void* base, std::int64_t& bytes) {
  const std::int64_t rows = chosen.sequences * chosen.width;
  const std::int64_t vocab_size = chosen.logits.vocab_size;
  Work work{};
  work.slots = static_cast<std::int32_t>(chosen.width);
  work.filtered = filters(chosen.sampling, vocab_size);
  cut_rows(rows, vocab_size, work.splits, work.slice);
  cut_rows(chosen.sequences, vocab_size, work.correction_splits, work.correction_slice);
  work.scan_splits = work.filtered ? 1 : work.splits;
  Taker taker{base};
  taker.take(work.tickets, rows);
  taker.take(work.largest, rows * work.scan_splits);
  if (kept.sums) taker.take(work.sums, rows * work.scan_splits);
  if (work.filtered) taker.take(work.kept_from, rows);
  if (kept.draws) taker.take(work.drawn, rows * work.splits);
  if (kept.corrections) taker.take(work.corrected, chosen.sequences * 2 * work.correction_splits);
  bytes = taker.used;
  return work;
}

// Blocks of a launch, 0 where there are more than a grid can have.
inline unsigned grid_of(std::int64_t blocks) { return blocks <= INT32_MAX ? static_cast<unsigned>(blocks) : 0; }

template <class Element, bool kSums>
int launch_scan(const ChosenRows& chosen, const Work& work, CUstream_st* stream) {
  const unsigned grid = grid_of(chosen.sequences * chosen.width * work.scan_splits);
  if (work.filtered) {
    PACKED_SS_LAUNCH((filter_chosen<Element, kSums>), grid, kFilterThreads, 0, stream, chosen, work);
  } else {
    PACKED_SS_LAUNCH((scan_chosen<Element, kSums>), grid, kThreads, 0, stream, chosen, work);
  }
  return cudaGetLastError();
}

}  // namespace packed_ss::cuda
