#include "scan_rows.cuh"

// Algorithm 1, lines 6-10: accept while the draft is the argmax, append the argmax, retain the suffix of Z.
namespace packed_ss::cuda {

std::int64_t resolve_greedy_workspace_bytes(const Resolve& args) { return workspace_bytes(args, Mode::kGreedy); }

int launch_resolve_greedy(const Resolve& args, CUstream_st* stream) {
  if (args.call.state.sequences == 0) return cudaSuccess;
  if (args.call.logits.vocab_size > kMaxVocabSize) return cudaErrorInvalidValue;
  std::int64_t bytes = 0;
  const Work work = plan_work(args, Mode::kGreedy, args.workspace, bytes);
  return with_element(args.call.logits.dtype, [&](auto element) -> int {
    using Element = decltype(element);
    const Stage verify = stage_of(args, work, RowSet::kVerifier);
    // Reads rows 0 ... |D| of each sequence, sizeof(logit) * (|D| + 1) * V bytes; writes 8 bytes a slice.
    PACKED_SS_LAUNCH((scan_rows<Element, false, false>), grid_of(args, verify), kThreads, 0, stream, args, work, verify);
    if (const int error = cudaGetLastError()) return error;
    const Stage draft = stage_of(args, work, RowSet::kRetained);
    // Reads the rows that stay open, sizeof(logit) * (W - a) * V bytes (packed), and 8 bytes a slice of all verifier rows in
    // each block; writes 8 bytes a slice, then the state: 4 (a + W + 6) bytes a sequence, and 12 for each next row.
    PACKED_SS_LAUNCH((scan_rows<Element, false, true>), grid_of(args, draft), kThreads, 0, stream, args, work, draft);
    return cudaGetLastError();
  });
}

}  // namespace packed_ss::cuda
