#include "cpu/uniform_noise.h"

#include <algorithm>

#include "cpu/multiversion.h"

namespace packed_ss::cpu {

PACKED_SS_MULTIVERSION
void uniform_noise_row(std::int64_t seed, std::uint32_t position, std::uint32_t stream, std::int64_t first_group,
                       std::int64_t end_id, float* row) {
  const PhiloxKey key = philox_key(seed);
  std::int64_t id = first_group * kIdsPerGroup;
  for (; id + kIdsPerGroup <= end_id; id += kIdsPerGroup) {
    uniform_noise_group(key, position, stream, static_cast<std::uint32_t>(id / kPhiloxLanes), row + id);
  }
  if (id < end_id) {
    float rest[kIdsPerGroup];
    uniform_noise_group(key, position, stream, static_cast<std::uint32_t>(id / kPhiloxLanes), rest);
    std::copy(rest, rest + (end_id - id), row + id);
  }
}

}  // namespace packed_ss::cpu
