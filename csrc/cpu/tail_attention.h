// CPU kernel of tail_attention, free of torch: the work of one piece, and what merges pieces of the keys.
//
// All query heads of a key/value head are computed together. A *lane* is one query: lane m of a key/value head is row m / G of
// its head m % G, with G = heads / kv_heads. Lanes lie along the vectors, so keys and values are broadcast and nothing is
// summed across a vector; a lane's result does not depend on which other lanes there are.
#pragma once

#include <cstdint>

#include "packed_ss/views.h"

namespace packed_ss::cpu {

// Keys that are packed, scored and folded into the running softmax at once.
constexpr std::int64_t kKeyBlock = 96;

// Strides count elements; the innermost dimension is contiguous, of the caches also the one before.
struct TailAttention {
  DType dtype;
  const void* q;  // [sequences, rows, heads, size]
  std::int64_t q_sequence, q_row, q_head;
  const void* k_cache;  // [sequences, slots, kv_heads, size]
  std::int64_t k_sequence, k_slot;
  const void* v_cache;
  std::int64_t v_sequence, v_slot;
  const std::int32_t* cache_len;  // [sequences], each 0 ... slots
  const std::int32_t* tail_mask;  // [sequences, rows, words]
  std::int64_t mask_sequence;     // 0 where the mask is shared
  void* out;                      // [sequences, rows, heads, size], contiguous
  std::int64_t sequences, rows, heads, kv_heads, size, slots, words;
  double scale;
};

// Lanes [first_lane, end_lane) of a key/value head against key slots [first_key, end_key); first_key is a multiple of kKeyBlock.
struct Piece {
  std::int64_t sequence, kv_head, first_lane, end_lane, first_key, end_key;
};

// One past the last slot that some row of the sequence sees.
std::int64_t visible_end(const TailAttention& args, std::int64_t sequence);

// The same kernel for one instruction set. Scratch and state hold nothing that depends on the length of the cache.
struct TailAttentionKernel {
  // Bytes for `lanes` lanes, multiples of 64: working memory of a call, and the softmax state that it leaves.
  std::int64_t (*scratch_bytes)(const TailAttention& args, std::int64_t lanes);
  std::int64_t (*state_bytes)(const TailAttention& args, std::int64_t lanes);
  // Reads the keys and values of the piece, and leaves maximum, sum and weighted values of its lanes in `state`.
  void (*attend)(const TailAttention& args, const Piece& piece, void* scratch, void* state);
  // Merges `count` states of the piece's lanes, `stride` bytes apart, into the first, and writes their result to args.out.
  void (*finish)(const TailAttention& args, const Piece& piece, void* states, std::int64_t stride, std::int64_t count);
};

enum class InstructionSet { kPortable, kAvx2, kAvx512 };

// The kernel for this instruction set, or the widest one below it that was built.
const TailAttentionKernel& tail_attention_kernel(InstructionSet set);

}  // namespace packed_ss::cpu
