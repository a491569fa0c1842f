#include "chosen_rows.cuh"
#include "correct_rows.cuh"

// Algorithm 2, lines 5-8, over chosen rows: accept drafts in turn with probability min(1, p/Q), draw the first other token.
namespace packed_ss::cuda {
namespace {

// Rows of a sequence that may be consulted.
__device__ __forceinline__ std::int32_t rows_to_verify(const ChosenRows& chosen, std::int64_t i) {
  const std::int32_t count = chosen.range[2 * i + 1];
  return count < 0 ? 0 : count < chosen.width ? count : static_cast<std::int32_t>(chosen.width);
}

// Finds h of a sequence: all blocks do, from the sums of its rows. With h = count, every draft is accepted.
template <class Element>
__device__ __forceinline__ Verdict accept(const VerifyRows& args, const Work& work, std::int64_t i, std::int32_t count) {
  const std::int64_t vocab_size = args.chosen.logits.vocab_size;
  return first_rejected(count, [&](std::int32_t j, Verdict& verdict) {
    verdict = {j, 0, 0};
    if (j == count) return false;
    const std::int64_t slot = i * args.chosen.width + j;
    const Processed p = processed_row<true>(args.chosen.sampling, work, slot);
    verdict.failed = !p.is_finite;
    if (lane_id() != 0) return false;
    return accepts_draft<Element>(row_logits<Element>(args.chosen.logits, i, row_in_range(args.chosen, i, j)), vocab_size, p,
                                  args.chosen.sampling.seed[i], noise_position(args.chosen, slot),
                                  args.draft_log_q + slot * vocab_size, args.draft[slot]);
  });
}

// One block is one slice of row h of one sequence; the last of a sequence writes its tokens. Reads sizeof(logit) * V bytes of
// that row, 4 V of its log Q, and in each block 12 bytes for each slice of the sequence's rows; writes 16 bytes a slice, and 8 W
// a sequence.
template <class Element>
__global__ void __launch_bounds__(kThreads, 2) verify_chosen(VerifyRows args, Work work) {
  const std::int64_t i = blockIdx.x / static_cast<unsigned>(work.correction_splits);
  const auto split = static_cast<std::int32_t>(blockIdx.x % static_cast<unsigned>(work.correction_splits));
  const std::int64_t width = args.chosen.width;
  const std::int32_t count = rows_to_verify(args.chosen, i);
  const Verdict verdict = accept<Element>(args, work, i, count);
  const std::int32_t h = verdict.matches;
  const bool corrects = h < count && verdict.failed == 0;
  if (corrects) {
    const std::int64_t slot = i * width + h;
    const auto vocab_size = static_cast<std::int32_t>(args.chosen.logits.vocab_size);
    const Processed p = processed_row<true>(args.chosen.sampling, work, slot);
    const Noise noise{philox_key(args.chosen.sampling.seed[i]), noise_position(args.chosen, slot),
                      static_cast<std::uint32_t>(Stream::kTarget)};
    correct_slice<Element>(row_logits<Element>(args.chosen.logits, i, row_in_range(args.chosen, i, h)), vocab_size, p, noise,
                           args.draft[slot] >= 0, args.draft_log_q + slot * vocab_size, work, i, split);
  }
  if (is_last_block(work.tickets + i * width, work.correction_splits)) {
    const std::int32_t token = corrects ? corrected_token(work, i) : -1;
    for (auto j = static_cast<std::int32_t>(threadIdx.x); j < width; j += kThreads) {
      const std::int64_t slot = i * width + j;
      args.ids[slot] = j < h ? args.draft[slot] : j == h ? token : -1;
      args.accepted[slot] = j < h;
    }
  }
}

Work plan(const VerifyRows& args, std::int64_t& bytes) {
  return plan_rows(args.chosen, {true, false, true}, args.workspace, bytes);
}

}  // namespace

std::int64_t verify_rows_workspace_bytes(const VerifyRows& args) {
  std::int64_t bytes = 0;
  plan(args, bytes);
  return bytes;
}

int launch_verify_rows(const VerifyRows& args, CUstream_st* stream) {
  if (args.chosen.sequences * args.chosen.width == 0) return cudaSuccess;
  if (args.chosen.logits.vocab_size > kMaxVocabSize) return cudaErrorInvalidValue;
  std::int64_t bytes = 0;
  const Work work = plan(args, bytes);
  const unsigned grid = grid_of(args.chosen.sequences * work.correction_splits);
  return with_element(args.chosen.logits.dtype, [&](auto element) -> int {
    using Element = decltype(element);
    // Reads the rows that may be consulted, sizeof(logit) * V bytes each; writes 12 bytes a slice.
    if (const int error = launch_scan<Element, true>(args.chosen, work, stream)) return error;
    PACKED_SS_LAUNCH(verify_chosen<Element>, grid, kThreads, 0, stream, args, work);
    return cudaGetLastError();
  });
}

}  // namespace packed_ss::cuda
