// What the kernels of the resolves share: the workspace, which rows a launch is about, the verdict, and the end of a call.
//
// A launch has one block for each sequence, row ("slot") and slice of the vocabulary. Results of slices lie in the workspace, and
// whoever needs a row's result combines them: no launch waits for a block of its own grid, but for the last one of a resolve, in
// which the block that takes a sequence's last ticket commits and writes the next rows. State changes there and nowhere else, so
// that all blocks before see the state from before the call.
#pragma once

#include <cstdint>

#include "packed_ss/commit.h"
#include "resolve.h"
#include "row_scan.cuh"

namespace packed_ss::cuda {

// h and the token of row h. Where that row has no finite maximum, `failed` is set and the token means nothing.
struct Verdict {
  std::int32_t matches;
  std::int32_t token;
  std::int32_t failed;
};

enum class RowSet : std::int32_t {
  kAll,       // every row of the call that may be consulted
  kVerifier,  // rows 0 ... v - 1
  kRetained   // the rows that propose the next draft, which h decides
};

// Device memory of a call, and how rows are cut into slices. Results are [N, slots, splits]; a row's slot is the row itself
// with `all_rows`, else the verifier row, or v + j for the row of draft token j.
struct Work {
  bool all_rows;
  bool filtered;  // top-k or top-p is active
  std::int32_t slots;
  std::int32_t splits;       // slices of a row
  std::int32_t slice;        // ids of a slice
  std::int32_t scan_splits;  // the same of the scan's results: filter_rows does not cut rows
  std::int32_t correction_splits;
  std::int32_t correction_slice;
  unsigned* tickets;  // [N] or [N, slots], zeroed by every launch before the last
  Verdict* verdicts;  // [N], resolve_rejection alone
  Packed* largest;    // [N, slots, scan_splits], of logits
  float* sums;        // [N, slots, scan_splits], of exp((x - largest) / temperature)
  float* kept_from;   // [N, slots], with filters
  Packed* drawn;      // [N, slots, splits], of log weight + G
  Packed* corrected;  // [N, 2, correction_splits], of the residual and of p
};

// One launch: which rows, in how many slots, and how they are cut.
struct Stage {
  RowSet rows;
  std::int32_t slots;  // 0: one block for each sequence, and no row
  std::int32_t splits;
  std::int32_t slice;
};

struct Task {
  std::int64_t sequence;
  std::int32_t slot;  // of the stage
  std::int32_t split;
  bool is_first;  // of its sequence
};

__host__ __device__ __forceinline__ std::int64_t blocks_per_sequence(const Stage& stage) {
  return stage.slots == 0 ? 1 : std::int64_t{stage.slots} * stage.splits;
}

__device__ __forceinline__ Task task_of_block(const Stage& stage) {
  const auto per_sequence = static_cast<unsigned>(blocks_per_sequence(stage));
  const unsigned inside = blockIdx.x % per_sequence;
  const auto splits = static_cast<unsigned>(stage.splits);
  Task task;
  task.sequence = blockIdx.x / per_sequence;
  task.slot = static_cast<std::int32_t>(inside / splits);
  task.split = static_cast<std::int32_t>(inside % splits);
  task.is_first = inside == 0;
  return task;
}

// A row that a block is about. Its draw has the noise of `position`, the absolute index of the token that it predicts.
struct Row {
  bool is_wanted;    // else nobody will ask for its result
  std::int64_t row;  // of the call
  std::int32_t position;
  std::int64_t slot;  // of the workspace, sequence included
};

// Slot of draft token j, whose row is `open.first + j`.
__device__ __forceinline__ std::int64_t draft_slot(const Resolve& args, const Work& work, std::int64_t sequence,
                                                   const ProposalRows& open, std::int32_t j) {
  return sequence * work.slots + (work.all_rows ? open.first : args.call.shape.verifier_rows) + j;
}

// The rows that propose the next draft if the sequence goes on after this call: then a = h + 1.
__device__ __forceinline__ ProposalRows rows_to_draft(const CallShape& shape, const Verdict& verdict) {
  return shape.verifier_rows > 0 ? retained_rows(shape, verdict.matches, verdict.matches + 1) : open_rows(shape);
}

// `verdict` matters for retained rows only.
__device__ __forceinline__ Row row_of(const Resolve& args, const Work& work, const Stage& stage, const Task& task,
                                      const Verdict& verdict) {
  const CallShape& shape = args.call.shape;
  const std::int32_t n = args.call.state.length[task.sequence];
  Row result;
  if (stage.slots == 0) {
    result = {false, 0, 0, 0};
  } else if (stage.rows == RowSet::kRetained) {
    const ProposalRows open = rows_to_draft(shape, verdict);
    const std::int32_t first = shape.verifier_rows > 0 ? n + verdict.matches + 1 : n;
    result = {verdict.failed == 0 && task.slot < open.count, open.first + task.slot, first + task.slot,
              draft_slot(args, work, task.sequence, open, task.slot)};
  } else {
    const std::int32_t drafts = verified_drafts(args.call.state, shape, task.sequence);
    result = {task.slot <= drafts, task.slot, n + task.slot, task.sequence * work.slots + task.slot};
    if (task.slot >= shape.verifier_rows) {
      const std::int32_t inside = (task.slot - shape.verifier_rows) % shape.block_size;
      const std::int32_t cut = shape.cuts[(task.slot - shape.verifier_rows) / shape.block_size];
      result.is_wanted = inside >= 2 - shape.shift && cut <= drafts;
      result.position = n - 1 + cut + inside + shape.shift;
    }
  }
  return result;
}

template <class Element>
__device__ __forceinline__ const typename Element::Bits* row_logits(const Logits& logits, std::int64_t sequence,
                                                                    std::int64_t row) {
  return static_cast<const typename Element::Bits*>(logits.data) + logits.offset(sequence, row);
}

// ---- Verdicts -------------------------------------------------------------------------------------------------------------
// One integer for a verifier row that is not accepted: the minimum over rows is the verdict.
__device__ __forceinline__ Packed pack_verdict(const Verdict& v) {
  return (static_cast<Packed>(v.matches) << 33) | (static_cast<Packed>(v.failed != 0) << 32) |
         static_cast<std::uint32_t>(v.token);
}
__device__ __forceinline__ Verdict unpack_verdict(Packed packed) {
  Verdict result;
  result.matches = static_cast<std::int32_t>(packed >> 33);
  result.failed = static_cast<std::int32_t>(packed >> 32) & 1;
  result.token = static_cast<std::int32_t>(packed & 0xffffffffu);
  return result;
}

// The block asks of rows 0, 1, ... of a sequence, a warp at a time, judge(row, drafts) -> (accepted, verdict if not); row
// `drafts` cannot be accepted. Lane 0 of the judging warp has to know.
template <class Judge>
__device__ __forceinline__ Verdict first_rejected(std::int32_t drafts, Judge judge) {
  PACKED_SS_SHARED(first, Packed);
  if (threadIdx.x == 0) first = ~Packed{0};
  __syncthreads();
  for (std::int32_t row = warp_id(); row <= drafts; row += warp_count()) {
    Verdict verdict;
    const bool accepted = judge(row, verdict);
    if (lane_id() == 0 && !accepted) atomicMin(&first, pack_verdict(verdict));
  }
  __syncthreads();
  const Verdict verdict = unpack_verdict(first);
  __syncthreads();
  return verdict;
}

// The verdict of sampling modes that accept the target's own token: `results` [N, slots, splits] has it for every verifier row.
__device__ __forceinline__ Verdict match(const Resolve& args, const Work& work, std::int64_t sequence, const Packed* results,
                                         std::int32_t splits) {
  const DecodeState& state = args.call.state;
  const std::int32_t drafts = verified_drafts(state, args.call.shape, sequence);
  return first_rejected(drafts, [&](std::int32_t row, Verdict& verdict) {
    const Best<std::uint32_t> target = unpack_best(warp_best_of(results + (sequence * work.slots + row) * splits, splits));
    const bool finite = is_finite_key(target.key);
    verdict = {row, target.id, !finite};
    return finite && row < drafts && state.draft[sequence * state.width + row] == target.id;
  });
}

// ---- The end of a call ----------------------------------------------------------------------------------------------------
// True in the block that is the last of its sequence to come here; it sees what thread 0 of the others wrote before. The counter
// starts again at 0. All threads of a block have read what they need of the state when it comes here.
__device__ __forceinline__ bool is_last_block(unsigned* ticket, std::int64_t blocks) {
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

__device__ __forceinline__ void write_next_rows(const Resolve& args, std::int64_t sequence) {
  if (args.call.next.ids == nullptr) return;
  const std::int64_t rows = args.call.next.shape.rows();
  for (std::int64_t r = threadIdx.x; r < rows; r += blockDim.x) write_row(args.call.state, args.call.next, sequence, r);
}

// What a call does to a sequence that had finished before.
__device__ __forceinline__ void leave_finished(const Resolve& args, std::int64_t sequence) {
  if (threadIdx.x == 0) store_draft_length(args.call.state, sequence, 0);
  __syncthreads();
  write_next_rows(args, sequence);
}

// Commits (or counts a call that only proposes), stores the draft that `results` [N, slots, splits] has, and writes the next
// rows. With `ends_at_failed`, the draft ends before a row that has no finite maximum.
__device__ __forceinline__ void finish_sequence(const Resolve& args, const Work& work, std::int64_t sequence,
                                                const Verdict& verdict, const Packed* results, std::int32_t splits,
                                                bool ends_at_failed) {
  PACKED_SS_SHARED(draft_count, std::int32_t);
  const DecodeState& state = args.call.state;
  const CallShape& shape = args.call.shape;
  const ProposalRows open = shape.cut_count > 0 ? rows_to_draft(shape, verdict) : ProposalRows{0, 0};
  if (threadIdx.x == 0) {
    if (shape.verifier_rows > 0) {
      commit(state, sequence, verdict.matches, verdict.token, verdict.failed != 0);
    } else {
      propose_only(state, sequence);
    }
    draft_count = is_running(state, sequence) ? open.count : 0;
  }
  __syncthreads();
  const std::int32_t most = draft_count;
  __syncthreads();
  for (std::int32_t j = warp_id(); j < most; j += warp_count()) {
    const Packed packed = warp_best_of(results + draft_slot(args, work, sequence, open, j) * splits, splits);
    if (lane_id() != 0) continue;
    const Best<std::uint32_t> best = unpack_best(packed);
    store_draft(state, sequence, j, best.id);
    if (ends_at_failed && !is_finite_key(best.key)) atomicMin(&draft_count, j);
  }
  __syncthreads();
  if (threadIdx.x == 0) store_draft_length(state, sequence, draft_count);
  __syncthreads();
  write_next_rows(args, sequence);
}

// ---- Launches, on the host ------------------------------------------------------------------------------------------------
enum class Mode { kGreedy, kCoupled, kRejection };

// Whether top-k or top-p is active.
inline bool filters(const Sampling& sampling, std::int64_t vocab_size) {
  return (sampling.top_k > 0 && sampling.top_k < vocab_size) || sampling.top_p < 1.0;
}

// Cuts rows into slices, for a launch over `rows` of them.
inline void cut_rows(std::int64_t rows, std::int64_t vocab_size, std::int32_t& splits, std::int32_t& slice) {
  constexpr std::int64_t kLeastSlice = 2048;    // ids: one chunk for each thread
  constexpr std::int64_t kEnoughBlocks = 1024;  // for 132 multiprocessors, 8 blocks each
  const std::int64_t most = (vocab_size + kLeastSlice - 1) / kLeastSlice;
  const std::int64_t useful = (kEnoughBlocks + rows - 1) / (rows > 0 ? rows : 1);
  const std::int64_t parts = useful < 1 ? 1 : useful < most ? useful : most;
  const std::int64_t ids = ((vocab_size + parts - 1) / parts + kSliceUnit - 1) / kSliceUnit * kSliceUnit;
  slice = static_cast<std::int32_t>(ids);
  splits = static_cast<std::int32_t>((vocab_size + ids - 1) / ids);
}

// Hands out a workspace, 16 bytes aligned.
struct Taker {
  void* base;
  std::int64_t used = 0;

  template <class Item>
  void take(Item*& pointer, std::int64_t count) {
    pointer = reinterpret_cast<Item*>(static_cast<char*>(base) + used);
    used += (count * static_cast<std::int64_t>(sizeof(Item)) + 15) / 16 * 16;
  }
};

// Shapes alone decide; with `base` null the pointers are offsets from it. `bytes` receives how much there is.
inline Work plan_work(const Resolve& args, Mode mode, void* base, std::int64_t& bytes) {
  const CallShape& shape = args.call.shape;
  const std::int64_t n = args.call.state.sequences;
  const std::int64_t vocab_size = args.call.logits.vocab_size;
  const std::int64_t width = shape.block_size - 1;
  Work work{};
  const bool samples = mode != Mode::kGreedy;
  const bool verifies_sampled = mode == Mode::kRejection && shape.verifier_rows > 0;
  work.all_rows = samples && shape.verifier_rows > 0 && shape.cut_count <= 1;
  work.filtered = samples && filters(args.sampling, vocab_size);
  const std::int64_t drafted = shape.cut_count > 0 ? width : 0;
  const std::int64_t at_once = shape.verifier_rows > drafted ? shape.verifier_rows : drafted;
  work.slots = static_cast<std::int32_t>(work.all_rows ? shape.rows() : shape.verifier_rows + drafted);
  cut_rows(n * (work.all_rows ? work.slots : at_once), vocab_size, work.splits, work.slice);
  cut_rows(n, vocab_size, work.correction_splits, work.correction_slice);
  work.scan_splits = work.filtered ? 1 : work.splits;

  Taker taker{base};
  const std::int64_t slots = n * work.slots;
  taker.take(work.tickets, n);
  taker.take(work.largest, slots * work.scan_splits);
  if (verifies_sampled) taker.take(work.verdicts, n);
  if (mode == Mode::kRejection) taker.take(work.sums, slots * work.scan_splits);
  if (work.filtered) taker.take(work.kept_from, slots);
  if (samples) taker.take(work.drawn, slots * work.splits);
  if (verifies_sampled) taker.take(work.corrected, n * 2 * work.correction_splits);
  bytes = taker.used;
  return work;
}

inline std::int64_t workspace_bytes(const Resolve& args, Mode mode) {
  std::int64_t bytes = 0;
  plan_work(args, mode, nullptr, bytes);
  return bytes;
}

inline Stage stage_of(const Resolve& args, const Work& work, RowSet rows) {
  const CallShape& shape = args.call.shape;
  const std::int32_t drafted = shape.cut_count > 0 ? shape.block_size - 1 : 0;
  const std::int32_t slots = rows == RowSet::kAll ? work.slots : rows == RowSet::kVerifier ? shape.verifier_rows : drafted;
  return {rows, slots, work.splits, work.slice};
}

// Blocks of a launch, 0 where there are more than a grid can have.
inline unsigned grid_of(const Resolve& args, const Stage& stage) {
  const std::int64_t blocks = args.call.state.sequences * blocks_per_sequence(stage);
  return blocks <= INT32_MAX ? static_cast<unsigned>(blocks) : 0;
}

}  // namespace packed_ss::cuda
