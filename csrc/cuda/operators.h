// The operators on CUDA: arguments and launchers, free of torch. What they do is stated by their plain-torch versions in
// packed_ss/ops.
//
// A launcher queues its kernels on `stream` and returns the first cudaError_t (0 is success). All pointers are device pointers;
// nothing is allocated, read back or waited for, so that a launch can be captured. Launches have the same grid whatever the
// device holds, settings included:
//   argmax_rows, draw_rows, verify_rows                                                        2 launches
//   pack_block, pack_ordered, advance_block, advance_ordered, advance_native, compact_cache    1
#pragma once

#include <cstdint>

#include "packed_ss/ordered_views.h"
#include "packed_ss/views.h"

struct CUstream_st;

namespace packed_ss::cuda {

// Logits are float32, bfloat16 or float16, of so many ids at most; else cudaErrorInvalidValue.
constexpr std::int64_t kMaxVocabSize = std::int64_t{1} << 30;

// `draft` of the list is not looked at. So in DrawRows.
struct ArgmaxRows {
  RowList list;
  std::int32_t* ids;   // [N, M]
  float* probability;  // [N, M], null where nobody wants it
  void* workspace;     // 16-byte aligned; whatever it holds before a call is overwritten, and nothing needs it afterwards
};

struct DrawRows {
  RowList list;
  std::uint32_t stream;      // packed_ss::Stream
  std::int32_t* ids;         // [N, M]
  float* log_q;              // [N, M, V], null where nobody wants it
  std::int32_t* next_ids;    // where tokens go too, from `next_column` on; null where nobody wants them there
  std::int64_t next_stride;  // between sequences, of `next_ids`
  std::int64_t next_column;
  void* workspace;
};

// Entries are all rows of the logits in turn, those of the list's draft first.
struct VerifyRows {
  RowList list;
  const float* draft_log_q;  // [N, draft_width, V]
  std::int32_t* ids;         // [N, M]
  std::int32_t* accepted;    // [N, M]
  void* workspace;
};

// Bytes of workspace that a call needs. They depend on shapes alone; two calls that run at once need one each.
std::int64_t argmax_rows_workspace_bytes(const ArgmaxRows& args);
std::int64_t draw_rows_workspace_bytes(const DrawRows& args);
std::int64_t verify_rows_workspace_bytes(const VerifyRows& args);

int launch_argmax_rows(const ArgmaxRows& args, CUstream_st* stream);
int launch_draw_rows(const DrawRows& args, CUstream_st* stream);
int launch_verify_rows(const VerifyRows& args, CUstream_st* stream);
int launch_pack_block(const PackBlock& args, CUstream_st* stream);
int launch_advance_block(const AdvanceBlock& args, CUstream_st* stream);
int launch_pack_ordered(const PackOrdered& args, CUstream_st* stream);
int launch_advance_ordered(const AdvanceOrdered& args, CUstream_st* stream);
int launch_advance_native(const AdvanceOrdered& args, CUstream_st* stream);
int launch_compact_cache(const CompactCache& args, CUstream_st* stream);

}  // namespace packed_ss::cuda
