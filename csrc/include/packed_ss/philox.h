// Counter-based noise: Philox4x32-10 and the maps from its words to uniform and Gumbel variates.
//
// A word is a function of (seed, position, stream, vocabulary id) and of nothing else:
//   key     = (low, high) half of the 64-bit seed
//   counter = (position, id / 4, stream, 0), of which output lane id % 4 belongs to the id
// Philox is from Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
#pragma once

#include <cmath>
#include <cstdint>

#include "packed_ss/host_device.h"

namespace packed_ss {

// Independent noise for the three draws that one position may need.
enum class Stream : std::uint32_t { kDraft = 0, kAccept = 1, kTarget = 2 };
constexpr int kStreams = 3;

// Vocabulary ids per Philox block.
constexpr int kPhiloxLanes = 4;

struct PhiloxKey {
  std::uint32_t low, high;
};

struct PhiloxBlock {
  std::uint32_t x0, x1, x2, x3;
};

PACKED_SS_HOST_DEVICE PhiloxKey philox_key(std::int64_t seed) {
  const auto bits = static_cast<std::uint64_t>(seed);
  return {static_cast<std::uint32_t>(bits), static_cast<std::uint32_t>(bits >> 32)};
}

PACKED_SS_HOST_DEVICE PhiloxBlock philox4x32_10(PhiloxKey key, PhiloxBlock c) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * c.x0;
    const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * c.x2;
    c = {static_cast<std::uint32_t>(b >> 32) ^ c.x1 ^ key.low, static_cast<std::uint32_t>(b),
         static_cast<std::uint32_t>(a >> 32) ^ c.x3 ^ key.high, static_cast<std::uint32_t>(a)};
    key.low += 0x9E3779B9u;
    key.high += 0xBB67AE85u;
  }
  return c;
}

// The four words of vocabulary ids 4 * block ... 4 * block + 3.
PACKED_SS_HOST_DEVICE PhiloxBlock noise_words(PhiloxKey key, std::uint32_t position, std::uint32_t block, std::uint32_t stream) {
  return philox4x32_10(key, {position, block, stream, 0u});
}

// u = min((x + 1/2) 2^-32, 1 - 2^-24) in float32, open at both ends: 2^-33 <= u <= 1 - 2^-24.
// The product is exact, so contracting it with the sum into one FMA changes no bit.
PACKED_SS_HOST_DEVICE float word_to_uniform(std::uint32_t x) {
  const float u = static_cast<float>(x) * 0x1p-32f + 0x1p-33f;
  return u < 0x1.fffffep-1f ? u : 0x1.fffffep-1f;
}

// G = -log(-log1p(-u)). The largest G, which win, come from the smallest u, and float32 is fine there (2^-33 is the first);
// the usual -log(-log(u)) takes them from u near 1, where float32 has steps of 2^-24.
PACKED_SS_HOST_DEVICE float uniform_to_gumbel(float u) { return -logf(-log1pf(-u)); }

}  // namespace packed_ss
