// CPU kernel of uniform_noise, one piece of one row at a time; free of torch.
#pragma once

#include <cstdint>

#include "packed_ss/philox.h"

namespace packed_ss::cpu {

// Philox blocks that are computed side by side, one per vector lane.
constexpr int kBlocksPerGroup = 16;
constexpr int kIdsPerGroup = kBlocksPerGroup * kPhiloxLanes;

// u of the group of kIdsPerGroup ids whose first Philox block is `first_block`. One lane of the vector is one Philox block: the
// loop has no branch and vectorises as it stands.
PACKED_SS_HOST_DEVICE void uniform_noise_group(PhiloxKey key, std::uint32_t position, std::uint32_t stream,
                                               std::uint32_t first_block, float* out) {
  for (std::uint32_t i = 0; i < kBlocksPerGroup; ++i) {
    const PhiloxBlock x = noise_words(key, position, first_block + i, stream);
    out[4 * i + 0] = word_to_uniform(x.x0);
    out[4 * i + 1] = word_to_uniform(x.x1);
    out[4 * i + 2] = word_to_uniform(x.x2);
    out[4 * i + 3] = word_to_uniform(x.x3);
  }
}

// Writes u for vocabulary ids [first_group * kIdsPerGroup, end_id) of one row to row[first_group * kIdsPerGroup ...].
void uniform_noise_row(std::int64_t seed, std::uint32_t position, std::uint32_t stream, std::int64_t first_group,
                       std::int64_t end_id, float* row);

}  // namespace packed_ss::cpu
