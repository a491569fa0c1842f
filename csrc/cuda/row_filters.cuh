// Top-k and top-p: the smallest scaled score that is kept of each row, without sorting it.
//
// Both ask for the same thing, the lowest key (order_key) of a token such that what stands above it in the row weighs less than a
// target: in numbers of tokens less than k; in mass less than top_p of all. A radix search finds it, 11 bits of the key at a
// time, from a histogram of weights by digit, in a fixed number of passes. Weights are integers, masses in fixed point, so that
// no order of additions changes a bit; ties share a key and are kept or left together.
#pragma once

#include "row_passes.cuh"

namespace packed_ss::cuda {

constexpr int kDigitBits = 11;
constexpr int kBins = 1 << kDigitBits;
constexpr int kBinsPerThread = kBins / kThreads;
constexpr int kKeyBits = 32;

// Weights of bins, of 64 bits in two words: shared memory adds words of 32 at once.
struct Histogram {
  unsigned low[kBins];
  unsigned high[kBins];
};

__device__ __forceinline__ void add_weight(Histogram& bins, std::uint32_t bin, Packed weight) {
  const auto low = static_cast<unsigned>(weight);
  const unsigned before = atomicAdd(&bins.low[bin], low);
  const unsigned high = static_cast<unsigned>(weight >> 32) + (before + low < before ? 1u : 0u);
  if (high != 0) atomicAdd(&bins.high[bin], high);
}

__device__ __forceinline__ Packed weight_of(const Histogram& bins, int bin) {
  return (Packed{bins.high[bin]} << 32) | bins.low[bin];
}

// The sum of the values of threads before this one.
__device__ __forceinline__ Packed block_sum_before(Packed value, Packed& total) {
  PACKED_SS_SHARED(sums, Packed[kMaxWarps]);
  Packed sum = value;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const Packed other = __shfl_up_sync(kAllLanes, sum, offset);
    if (lane_id() >= offset) sum += other;
  }
  if (lane_id() == kWarp - 1) sums[warp_id()] = sum;
  __syncthreads();
  Packed before = sum - value;
  total = 0;
  for (int w = 0; w < warp_count(); ++w) {
    if (w < warp_id()) before += sums[w];
    total += sums[w];
  }
  __syncthreads();
  return before;
}

// The lowest bin with a weight before which, from the top, less than the target weighs; `above` becomes what does. `total`
// receives the sum of all bins before target(total) is asked for. Bins lie with threads in descending order.
template <class Target>
__device__ __forceinline__ std::uint32_t find_bin(const Histogram& bins, Packed& above, Target target) {
  PACKED_SS_SHARED(lowest, unsigned);
  PACKED_SS_SHARED(above_lowest, Packed);
  const int top = kBins - 1 - static_cast<int>(threadIdx.x) * kBinsPerThread;
  Packed own = 0;
#pragma unroll 1
  for (int k = 0; k < kBinsPerThread; ++k) own += weight_of(bins, top - k);
  if (threadIdx.x == 0) lowest = kBins;
  Packed total = 0;
  Packed before = above + block_sum_before(own, total);
  const Packed most = target(total);
  unsigned bin = kBins;
  Packed before_bin = 0;
#pragma unroll 1
  for (int k = 0; k < kBinsPerThread; ++k) {
    const Packed weight = weight_of(bins, top - k);
    if (weight != 0 && before < most) {
      bin = static_cast<unsigned>(top - k);
      before_bin = before;
    }
    before += weight;
  }
  if (bin < kBins) atomicMin(&lowest, bin);
  __syncthreads();
  if (bin < kBins && bin == lowest) above_lowest = before_bin;
  __syncthreads();
  above = above_lowest;
  const unsigned found = lowest;
  __syncthreads();
  return found;
}

// The score of the lowest key that is kept. weight(x): 0 for tokens that do not count; target(total weight) >= 1.
template <class Element, class Weight, class Target>
__device__ __forceinline__ float lowest_kept(const typename Element::Bits* row, std::int32_t vocab_size, Histogram& bins,
                                             Weight weight, Target target) {
  std::uint32_t prefix = 0;  // the digits found so far
  Packed above = 0;
  Packed most = 0;
  int shift = kKeyBits;
  for (int digit = 0; digit < Element::kKeyDigits; ++digit) {
    const int known = shift;
    shift = shift > kDigitBits ? shift - kDigitBits : 0;
    const std::uint32_t digit_mask = (1u << (known - shift)) - 1;
    for (int bin = static_cast<int>(threadIdx.x); bin < kBins; bin += kThreads) bins.low[bin] = bins.high[bin] = 0;
    __syncthreads();
    // Neighbours often fall into one bin, and where all tokens tie they all do.
    std::uint32_t last_bin = 0;
    Packed pending = 0;
    for_each_chunk<Element>(row, 0, vocab_size, [&](std::int32_t id, const float (&x)[Element::kIds]) {
      for (int k = 0; k < Element::kIds; ++k) {
        const std::uint32_t key = order_key(x[k]);
        if (id + k >= vocab_size || (digit > 0 && key >> known != prefix)) continue;
        const Packed w = weight(x[k]);
        if (w == 0) continue;
        const std::uint32_t bin = (key >> shift) & digit_mask;
        if (bin != last_bin) {
          if (pending != 0) add_weight(bins, last_bin, pending);
          last_bin = bin;
          pending = 0;
        }
        pending += w;
      }
    });
    if (pending != 0) add_weight(bins, last_bin, pending);
    __syncthreads();
    const std::uint32_t bin = find_bin(bins, above, [&](Packed total) {
      if (digit == 0) most = target(total);
      return most;
    });
    prefix = (prefix << (known - shift)) | bin;
  }
  return key_score(prefix << shift);
}

// What a block finds of a row, or of a split of it.
struct Found {
  Packed largest;   // pack_best of the logits
  float sum;        // of exp((x - largest) / temperature) over what is kept; with kSums alone
  float kept_from;  // the scaled score below which nothing is kept; of filtered rows alone
};

// The block finds what filters keep of a row.
template <class Element, bool kSums>
__device__ __forceinline__ Found filter_row(const typename Element::Bits* logits, std::int32_t vocab_size,
                                            const Settings& settings) {
  const auto temperature = static_cast<float>(settings.temperature);
  PACKED_SS_SHARED(bins, Histogram);
  Largest seen = nothing_seen(0);
  for_each_chunk<Element>(logits, 0, vocab_size,
                          [&](std::int32_t id, const float (&x)[Element::kIds]) { consider(seen, id, x); });
  Found found{block_max(pack_best(seen.best)), 0.0f, -INFINITY};
  const std::uint32_t key = unpack_best(found.largest).key;
  if (!is_finite_key(key)) return found;

  const float maximum = key_score(key);
  const std::int64_t k = settings.top_k;
  float kept_from = -INFINITY;
  if (k > 0 && k < vocab_size) {
    kept_from =
        scaled(lowest_kept<Element>(
                   logits, vocab_size, bins, [](float) { return Packed{1}; }, [&](Packed) { return static_cast<Packed>(k); }),
               maximum, temperature);
  }
  const double p = settings.top_p;
  if (p < 1.0) {
    // Masses in units of 2^-bits, so that those of a whole row add up to less than 2^63; one of less than half a unit is 0.
    const int bits = 31 + __clz(vocab_size);
    const double unit = static_cast<double>(Packed{1} << bits);
    const float negligible = -0.6932f * static_cast<float>(bits + 1);
    kept_from = scaled(lowest_kept<Element>(
                           logits, vocab_size, bins,
                           [&](float x) {
                             const float score = scaled(x, maximum, temperature);
                             if (score < kept_from || score < negligible) return Packed{0};
                             return static_cast<Packed>(exp(static_cast<double>(score)) * unit + 0.5);
                           },
                           [&](Packed total) {
                             const double least = ceil(p * static_cast<double>(total));
                             return least < 1.0 ? Packed{1} : static_cast<Packed>(least);
                           }),
                       maximum, temperature);
  }
  found.kept_from = kept_from;
  if (kSums) {
    float sum = 0.0f;
    for_each_chunk<Element>(logits, 0, vocab_size, [&](std::int32_t, const float (&x)[Element::kIds]) {
#pragma unroll
      for (int j = 0; j < Element::kIds; ++j) {
        const float score = scaled(x[j], maximum, temperature);
        if (score >= kept_from) sum += __expf(score);
      }
    });
    found.sum = block_sum(sum);
  }
  return found;
}

}  // namespace packed_ss::cuda
