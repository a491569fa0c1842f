#include "block_team.cuh"
#include "launch.h"
#include "ordered.h"

namespace packed_ss::cuda {
namespace {

constexpr std::int64_t kWordsPerThread = 4;

// Things to write for one sequence: its rows, and the words of their masks.
__host__ __device__ __forceinline__ std::int64_t things(const OrderedRows& rows) {
  return rows.shape.rows() * (1 + rows.mask_words());
}

// A few blocks are one sequence. All of them read its window, 8 W + 4 P bytes; together they write 12 bytes a row, and 4 for each
// word of its mask.
__global__ void __launch_bounds__(kMostTeam) pack_ordered_kernel(PackOrderedCall call, std::int32_t blocks) {
  PACKED_SS_SHARED(words, std::uint32_t[kWindowWords]);
  PACKED_SS_SHARED(unused, std::int32_t[2]);
  const std::int64_t i = blockIdx.x / static_cast<unsigned>(blocks);
  const auto block = static_cast<std::int32_t>(blockIdx.x % static_cast<unsigned>(blocks));
  // The sequence as the only one there is, so that one block alone writes `consulted`.
  OrderedState state = call.state;
  state.order += i * state.width;
  state.draft += i * state.width;
  state.waiting += i * state.waiting_width;
  OrderedRows rows = call.rows;
  rows.consulted = block == 0 ? rows.consulted + 2 * i : unused;
  const DraftBits bits = find_draft_bits(state, rows, 0, words, BlockTeam{});

  const std::int64_t row_count = call.rows.shape.rows();
  const std::int64_t per_row = call.rows.mask_words();
  const std::int64_t step = std::int64_t{blocks} * blockDim.x;
  for (std::int64_t at = std::int64_t{block} * blockDim.x + threadIdx.x; at < things(call.rows); at += step) {
    if (at < row_count) {
      write_ordered_row(call.state, call.rows, i, at, bits);
    } else {
      write_mask_word(call.state, call.rows, i, (at - row_count) / per_row, (at - row_count) % per_row, bits);
    }
  }
}

}  // namespace

int launch_pack_ordered(const PackOrderedCall& call, CUstream_st* stream) {
  const std::int64_t sequences = call.state.sequences;
  if (sequences == 0) return cudaSuccess;
  const std::int64_t most = things(call.rows);
  const unsigned threads = team_threads(most / kWordsPerThread);
  const std::int64_t share = threads * kWordsPerThread;
  const std::int64_t blocks = most > share ? (most + share - 1) / share : 1;
  if (blocks > INT32_MAX || sequences * blocks > INT32_MAX) return cudaErrorInvalidValue;
  PACKED_SS_LAUNCH(pack_ordered_kernel, static_cast<unsigned>(sequences * blocks), threads, 0, stream, call,
                   static_cast<std::int32_t>(blocks));
  return cudaGetLastError();
}

}  // namespace packed_ss::cuda
