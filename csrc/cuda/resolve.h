// The resolves and pack_block on CUDA: arguments and launchers, free of torch. What they do is stated by their plain-torch
// versions in packed_ss/ops.
//
// A launcher queues its kernels on `stream` and returns the first cudaError_t (0 is success). All pointers are device pointers;
// nothing is allocated, read back or waited for, so that a launch can be captured. Every launch has the same grid whatever the
// state holds.
//
//   operator             launches: at most one branch cut   more cuts   only proposals (no verifier rows)
//   resolve_greedy                 2                        2           2
//   resolve_coupled                2                        4           2
//   resolve_rejection              3                        4           2
//   pack_block                     1
// Top-k and top-p add none: one launch takes the place of another.
#pragma once

#include <cstdint>

#include "packed_ss/views.h"

struct CUstream_st;

namespace packed_ss::cuda {

constexpr std::int64_t kMaxVocabSize = std::int64_t{1} << 30;

struct Resolve {
  ResolveCall call;    // logits: float32, bfloat16 or float16, of kMaxVocabSize ids at most; else cudaErrorInvalidValue
  Sampling sampling;   // resolve_greedy does not look at it
  float* draft_log_q;  // [N, W, V]: log Q of the draft, in: that under verification, out: the next; resolve_rejection alone
  void* workspace;     // 16-byte aligned; whatever it holds before a call is overwritten, and nothing needs it afterwards
};

// Bytes of workspace that a call needs. They depend on shapes alone; two calls that run at once need one each.
std::int64_t resolve_greedy_workspace_bytes(const Resolve& args);
std::int64_t resolve_coupled_workspace_bytes(const Resolve& args);
std::int64_t resolve_rejection_workspace_bytes(const Resolve& args);

int launch_resolve_greedy(const Resolve& args, CUstream_st* stream);
int launch_resolve_coupled(const Resolve& args, CUstream_st* stream);
int launch_resolve_rejection(const Resolve& args, CUstream_st* stream);

// Of the state, pack_block reads tokens, length, cache_len, draft and draft_len.
struct PackBlock {
  DecodeState state;
  NextRows next;
};
int launch_pack_block(const PackBlock& args, CUstream_st* stream);

}  // namespace packed_ss::cuda
