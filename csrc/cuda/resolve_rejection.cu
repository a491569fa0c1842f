#include "correct_rows.cuh"
#include "filter_rows.cuh"

// Algorithm 2, lines 5-13: accept with probability min(1, p/Q), correct from [p - Q]+, draw the retained draft from q.
namespace packed_ss::cuda {
namespace {

// Finds h of a sequence: all blocks do, from the sums of its rows.
template <class Element>
__device__ __forceinline__ Verdict accept(const Resolve& args, const Work& work, std::int64_t i) {
  const DecodeState& state = args.call.state;
  const std::int32_t drafts = verified_drafts(state, args.call.shape, i);
  const std::int64_t vocab_size = args.call.logits.vocab_size;
  return first_rejected(drafts, [&](std::int32_t row, Verdict& verdict) {
    const Processed p = processed_row<true>(args.sampling, work, i * work.slots + row);
    verdict = {row, 0, !p.is_finite};
    if (lane_id() != 0 || row >= drafts) return false;
    return accepts_draft<Element>(row_logits<Element>(args.call.logits, i, row), vocab_size, p, args.sampling.seed[i],
                                  static_cast<std::uint32_t>(state.length[i] + row),
                                  args.draft_log_q + (i * state.width + row) * vocab_size, state.draft[i * state.width + row]);
  });
}

// One block is one slice of row h of one sequence. Reads sizeof(logit) * V bytes of that row, 4 V of its log Q, and in each block
// 12 bytes for each slice of the sequence's verifier rows; writes 16 bytes a slice, and 12 a sequence.
template <class Element>
__global__ void __launch_bounds__(kThreads, 2) correct_rows(Resolve args, Work work) {
  const std::int64_t i = blockIdx.x / static_cast<unsigned>(work.correction_splits);
  const auto split = static_cast<std::int32_t>(blockIdx.x % static_cast<unsigned>(work.correction_splits));
  const DecodeState& state = args.call.state;
  if (!is_running(state, i)) return;
  const Verdict verdict = accept<Element>(args, work, i);
  if (split == 0 && threadIdx.x == 0) work.verdicts[i] = verdict;
  if (verdict.failed != 0) return;

  const auto vocab_size = static_cast<std::int32_t>(args.call.logits.vocab_size);
  const Processed p = processed_row<true>(args.sampling, work, i * work.slots + verdict.matches);
  const Noise noise{philox_key(args.sampling.seed[i]), static_cast<std::uint32_t>(state.length[i] + verdict.matches),
                    static_cast<std::uint32_t>(Stream::kTarget)};
  const bool has_draft = verdict.matches < verified_drafts(state, args.call.shape, i);
  const float* log_q = args.draft_log_q + (has_draft ? (i * state.width + verdict.matches) * vocab_size : 0);
  correct_slice<Element>(row_logits<Element>(args.call.logits, i, verdict.matches), vocab_size, p, noise, has_draft, log_q, work,
                         i, split);
}

}  // namespace

std::int64_t resolve_rejection_workspace_bytes(const Resolve& args) { return workspace_bytes(args, Mode::kRejection); }

int launch_resolve_rejection(const Resolve& args, CUstream_st* stream) {
  if (args.call.state.sequences == 0) return cudaSuccess;
  if (args.call.logits.vocab_size > kMaxVocabSize) return cudaErrorInvalidValue;
  std::int64_t bytes = 0;
  const Work work = plan_work(args, Mode::kRejection, args.workspace, bytes);
  return with_element(args.call.logits.dtype, [&](auto element) -> int {
    using Element = decltype(element);
    const Stage retained = stage_of(args, work, RowSet::kRetained);
    if (args.call.shape.verifier_rows > 0) {
      // Reads the rows that may be consulted, sizeof(logit) * V bytes each: |D| + 1 + W of them with up to one branch, |D| +
      // 1 with more; writes 12 bytes a slice.
      const Stage verify = stage_of(args, work, work.all_rows ? RowSet::kAll : RowSet::kVerifier);
      if (const int error = launch_scan<Element, true>(args, work, verify, stream)) return error;
      // Reads row h of each sequence and its log Q, (sizeof(logit) + 4) * V bytes; writes 16 bytes a slice, 12 a sequence.
      const std::int64_t blocks = args.call.state.sequences * work.correction_splits;
      if (blocks > INT32_MAX) return cudaErrorInvalidValue;
      PACKED_SS_LAUNCH(correct_rows<Element>, static_cast<unsigned>(blocks), kThreads, 0, stream, args, work);
      if (const int error = cudaGetLastError()) return error;
    }
    if (!work.all_rows) {
      // Reads the rows that stay open, sizeof(logit) * V bytes each; writes 12 bytes a slice.
      if (const int error = launch_scan<Element, true>(args, work, retained, stream)) return error;
    }
    // Reads the rows that stay open, sizeof(logit) * V bytes each (in part from the L2 cache); writes 4 V bytes of log Q for
    // each, 8 bytes a slice, then the state: 4 (a + W + 6) bytes a sequence, and 12 for each next row.
    PACKED_SS_LAUNCH((draw_rows<Element, true, true>), grid_of(args, retained), kThreads, 0, stream, args, work, retained);
    return cudaGetLastError();
  });
}

}  // namespace packed_ss::cuda
