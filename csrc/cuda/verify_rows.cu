#include "draw.cuh"
#include "operators.h"

// Algorithm 2, lines 5-8: accept drafts in turn with probability min(1, p/Q), draw the first other token from [p - Q]+.
namespace packed_ss::cuda {
namespace {

// Draws of the corrections, by sequence and split.
struct Corrections {
  Splits splits;
  Packed* from_residual;  // [N, splits]
  Packed* from_p;         // [N, splits]
};

// Whether the draft of entry j is accepted (line 6). A warp asks, and all of its lanes know.
template <class Element>
__device__ __forceinline__ bool accepts_draft(const VerifyRows& args, const Statistics& statistics, const Settings& settings,
                                              std::int64_t i, std::int64_t j) {
  const std::int64_t vocab_size = args.list.logits.vocab_size;
  const std::int64_t row = args.list.row(i, j);
  const std::int32_t d = args.list.draft_token(i, j);
  if (row < 0 || d < 0 || d >= vocab_size) return false;
  const Processed p = processed_row<true>(statistics, settings, vocab_size, i * args.list.entries + j);
  if (!p.is_finite || p.is_greedy) return p.is_finite && d == p.argmax;
  const float u = word_to_uniform(
      noise_words(philox_key(settings.seed), args.list.position(i, j), 0, static_cast<std::uint32_t>(Stream::kAccept)).x0);
  const float log_q = args.draft_log_q[(i * args.list.draft_width + j) * vocab_size + d];
  return accepts(u, p.log_weight(Element::value(row_logits<Element>(args.list.logits, i, row)[d])), log_q);
}

// The first entry of a sequence that is not accepted, M where all are. A warp asks about one entry at a time.
template <class Element>
__device__ __forceinline__ std::int32_t first_rejected(const VerifyRows& args, const Statistics& statistics,
                                                       const Settings& settings, std::int64_t i) {
  PACKED_SS_SHARED(first, std::int32_t);
  const auto entries = static_cast<std::int32_t>(args.list.entries);
  if (threadIdx.x == 0) first = entries;
  __syncthreads();
  std::int32_t j = warp_id();
  while (j < entries && accepts_draft<Element>(args, statistics, settings, i, j)) j += warp_count();
  if (j < entries && lane_id() == 0) atomicMin(&first, j);
  __syncthreads();
  return first;
}

// The block draws from ids begin ... end - 1 of a row, from the residual (line 7) and from p. log_q [V]: null without a draft.
template <class Element>
__device__ __forceinline__ void correct_split(const typename Element::Bits* logits, std::int32_t begin, std::int32_t end,
                                              const Processed& p, const Noise& noise, const float* log_q, Packed* from_residual,
                                              Packed* from_p) {
  Draw residual_draw{-INFINITY, begin};
  Draw p_draw{-INFINITY, begin};
  for_each_chunk<Element>(logits, begin, end, [&](std::int32_t id, const float (&x)[Element::kIds]) {
#pragma unroll
    for (int q = 0; q < Element::kIds; q += kPhiloxLanes) {
      std::uint32_t words[kPhiloxLanes];
      words_of(noise, id + q, words);
#pragma unroll
      for (int k = 0; k < kPhiloxLanes; ++k) {
        const std::int32_t at = id + q + k;
        const float log_p = p.log_weight(x[q + k]);
        if (at >= end || log_p == -INFINITY) continue;
        const float gumbel = uniform_to_gumbel(word_to_uniform(words[k]));
        consider(p_draw, log_p + gumbel, at);
        consider(residual_draw, residual(log_p, log_q != nullptr ? log_q[at] : -INFINITY) + gumbel, at);
      }
    }
  });
  const Packed best_of_residual = block_max(pack_draw(residual_draw));
  const Packed best_of_p = block_max(pack_draw(p_draw));
  if (threadIdx.x != 0) return;
  *from_residual = best_of_residual;
  *from_p = best_of_p;
}

// The residual decides, and p where it is 0 throughout: that of p equal to Q. Every warp that asks gets the same.
__device__ __forceinline__ std::int32_t corrected_token(const Corrections& corrections, std::int64_t i) {
  const std::int32_t count = corrections.splits.count;
  Best<std::uint32_t> token = unpack_best(warp_best_of(corrections.from_residual + i * count, count));
  if (token.key == 0) token = unpack_best(warp_best_of(corrections.from_p + i * count, count));
  return token.id;
}

// One block is one split of the row of the first entry of a sequence that is not accepted; the last of a sequence writes its
// tokens. Reads sizeof(logit) * V bytes of that row and 4 V of its log Q (nothing of greedy sequences), and in each block 12
// bytes for each split of the sequence's rows; writes 16 bytes a split, and 8 M a sequence.
template <class Element>
__global__ void __launch_bounds__(kThreads, 2)
    verify_rows_kernel(VerifyRows args, Statistics statistics, Corrections corrections) {
  const auto splits = static_cast<unsigned>(corrections.splits.count);
  const std::int64_t i = blockIdx.x / splits;
  const auto split = static_cast<std::int32_t>(blockIdx.x % splits);
  const RowList& list = args.list;
  const auto vocab_size = static_cast<std::int32_t>(list.logits.vocab_size);
  const Settings settings = list.sampling.of(i);
  const std::int32_t h = first_rejected<Element>(args, statistics, settings, i);
  const std::int64_t row = h < list.entries ? list.row(i, h) : -1;
  Processed p{};
  if (row >= 0) p = processed_row<true>(statistics, settings, vocab_size, i * list.entries + h);
  if (p.is_finite && !p.is_greedy) {
    const Noise noise{philox_key(settings.seed), list.position(i, h), static_cast<std::uint32_t>(Stream::kTarget)};
    const float* log_q = list.draft_token(i, h) >= 0 ? args.draft_log_q + (i * list.draft_width + h) * vocab_size : nullptr;
    const std::int64_t at = i * corrections.splits.count + split;
    correct_split<Element>(row_logits<Element>(list.logits, i, row), corrections.splits.begin(split),
                           corrections.splits.end(split, vocab_size), p, noise, log_q, corrections.from_residual + at,
                           corrections.from_p + at);
  }
  if (is_last_block(statistics.tickets + i * list.entries, corrections.splits.count)) {
    const std::int32_t token = !p.is_finite ? -1 : p.is_greedy ? p.argmax : corrected_token(corrections, i);
    for (auto j = static_cast<std::int32_t>(threadIdx.x); j < list.entries; j += kThreads) {
      const std::int64_t at = i * list.entries + j;
      args.ids[at] = j < h ? list.draft_token(i, j) : j == h ? token : -1;
      args.accepted[at] = j < h;
    }
  }
}

Corrections take_corrections(Taker& taker, const RowList& list) {
  Corrections corrections;
  corrections.splits = split_rows(list.sequences, list.logits.vocab_size);
  corrections.from_residual = taker.take<Packed>(list.sequences * corrections.splits.count);
  corrections.from_p = taker.take<Packed>(list.sequences * corrections.splits.count);
  return corrections;
}

}  // namespace

std::int64_t verify_rows_workspace_bytes(const VerifyRows& args) {
  Taker taker{nullptr};
  take_statistics(taker, args.list);
  take_corrections(taker, args.list);
  return taker.used;
}

int launch_verify_rows(const VerifyRows& args, CUstream_st* stream) {
  if (args.list.sequences * args.list.entries == 0) return cudaSuccess;
  if (args.list.logits.vocab_size > kMaxVocabSize) return cudaErrorInvalidValue;
  Taker taker{args.workspace};
  const Statistics statistics = take_statistics(taker, args.list);
  const Corrections corrections = take_corrections(taker, args.list);
  return with_element(args.list.logits.dtype, [&](auto element) -> int {
    using Element = decltype(element);
    // Reads sizeof(logit) * V bytes of every row that is asked for.
    if (const int error = launch_scan<Element, true, true>(args.list, statistics, stream)) return error;
    const unsigned grid = grid_of(args.list.sequences * corrections.splits.count);
    PACKED_SS_LAUNCH(verify_rows_kernel<Element>, grid, kThreads, 0, stream, args, statistics, corrections);
    return cudaGetLastError();
  });
}

}  // namespace packed_ss::cuda
