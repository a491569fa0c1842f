// CPU kernel of uniform_noise, one piece of one row at a time; free of torch.
#pragma once

#include <cstdint>

#include "packed_ss/philox.h"

namespace packed_ss::cpu {

// Philox blocks that are computed side by side, one per vector lane.
constexpr int kBlocksPerGroup = 16;
constexpr int kIdsPerGroup = kBlocksPerGroup * kPhiloxLanes;

// Writes u for vocabulary ids [first_group * kIdsPerGroup, end_id) of one row to row[first_group * kIdsPerGroup ...].
void uniform_noise_row(std::int64_t seed, std::uint32_t position, std::uint32_t stream, std::int64_t first_group,
                       std::int64_t end_id, float* row);

}  // namespace packed_ss::cpu
