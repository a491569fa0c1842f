// The operators of the ordered layout on CUDA: arguments and launchers, free of torch. What they do is stated by their
// plain-torch versions in packed_ss/ops.
//
// Launchers are as those of resolve.h; they queue
//   argmax_rows, draw_rows, verify_rows                            2 kernels; top-k and top-p add none
//   resolve_ordered, resolve_native, compact_cache, pack_ordered   1
// Logits are float32, bfloat16 or float16, of kMaxVocabSize ids at most; else cudaErrorInvalidValue.
#pragma once

#include <cstdint>

#include "packed_ss/ordered_calls.h"

struct CUstream_st;

namespace packed_ss::cuda {

struct ArgmaxRows {
  Logits logits;           // [N, R, V]
  std::int64_t sequences;  // N
  std::int64_t rows;       // R
  std::int32_t* ids;       // [N, R]
  float* probability;      // [N, R], or null where nobody wants it
  void* workspace;         // as that of Resolve. So below
};

struct DrawRows {
  ChosenRows chosen;
  std::uint32_t stream;  // packed_ss::Stream
  std::int32_t* ids;     // [N, W]
  float* log_q;          // [N, W, V], or null where nobody wants it; left as it is where a row has no finite maximum
  void* workspace;
};

struct VerifyRows {
  ChosenRows chosen;
  const std::int32_t* draft;  // [N, W]
  const float* draft_log_q;   // [N, W, V]
  std::int32_t* ids;          // [N, W]
  std::int32_t* accepted;     // [N, W]
  void* workspace;
};

std::int64_t argmax_rows_workspace_bytes(const ArgmaxRows& args);
std::int64_t draw_rows_workspace_bytes(const DrawRows& args);
std::int64_t verify_rows_workspace_bytes(const VerifyRows& args);

int launch_argmax_rows(const ArgmaxRows& args, CUstream_st* stream);
int launch_draw_rows(const DrawRows& args, CUstream_st* stream);
int launch_verify_rows(const VerifyRows& args, CUstream_st* stream);
int launch_resolve_ordered(const OrderedCall& call, CUstream_st* stream);
int launch_resolve_native(const OrderedCall& call, CUstream_st* stream);
int launch_compact_cache(const CompactCall& call, CUstream_st* stream);
int launch_pack_ordered(const PackOrderedCall& call, CUstream_st* stream);

}  // namespace packed_ss::cuda
