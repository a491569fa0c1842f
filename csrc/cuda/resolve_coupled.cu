#include "draw_rows.cuh"
#include "filter_rows.cuh"

// Greedy on perturbed scores: target and draft are argmax(log p + G) and argmax(log q + G) with the same noise. A draw takes the
// row's exact maximum first, so that it is a function of the row alone, whatever slices it is cut into.
namespace packed_ss::cuda {

std::int64_t resolve_coupled_workspace_bytes(const Resolve& args) { return workspace_bytes(args, Mode::kCoupled); }

int launch_resolve_coupled(const Resolve& args, CUstream_st* stream) {
  if (args.call.state.sequences == 0) return cudaSuccess;
  if (args.call.logits.vocab_size > kMaxVocabSize) return cudaErrorInvalidValue;
  std::int64_t bytes = 0;
  const Work work = plan_work(args, Mode::kCoupled, args.workspace, bytes);
  return with_element(args.call.logits.dtype, [&](auto element) -> int {
    using Element = decltype(element);
    // Up to one branch, the noise of every row is known beforehand. With more, most rows are for nothing: h comes first.
    if (!work.all_rows && args.call.shape.verifier_rows > 0) {
      const Stage verify = stage_of(args, work, RowSet::kVerifier);
      // Reads rows 0 ... |D| of each sequence, sizeof(logit) * (|D| + 1) * V bytes; writes 8 bytes a slice.
      if (const int error = launch_scan<Element, false>(args, work, verify, stream)) return error;
      // Reads and writes the same again.
      PACKED_SS_LAUNCH((draw_rows<Element, false, false>), grid_of(args, verify), kThreads, 0, stream, args, work, verify);
      if (const int error = cudaGetLastError()) return error;
    }
    const Stage last = stage_of(args, work, work.all_rows ? RowSet::kAll : RowSet::kRetained);
    // Reads the rows that may be consulted, sizeof(logit) * V bytes each, |D| + 1 + W of them with one branch and W - a of the
    // retained ones with more; writes 8 bytes a slice.
    if (const int error = launch_scan<Element, false>(args, work, last, stream)) return error;
    // Reads the same again (16 MiB of 64 rows of V = 131072 in bfloat16 are still in the L2 cache); writes 8 bytes a slice,
    // then the state: 4 (a + W + 6) bytes a sequence, and 12 for each next row.
    PACKED_SS_LAUNCH((draw_rows<Element, false, true>), grid_of(args, last), kThreads, 0, stream, args, work, last);
    return cudaGetLastError();
  });
}

}  // namespace packed_ss::cuda
