#include "cpu/uniform_noise.h"

#include <algorithm>

#include "cpu/multiversion.h"

namespace packed_ss::cpu {
namespace {

// One lane of the vector is one Philox block: the loop has no branch and vectorises as it stands.
PACKED_SS_HOST_DEVICE void fill_group(PhiloxKey key, std::uint32_t position, std::uint32_t stream, std::uint32_t first_block,
                                      float* out) {
  for (std::uint32_t i = 0; i < kBlocksPerGroup; ++i) {
    const PhiloxBlock x = noise_words(key, position, first_block + i, stream);
    out[4 * i + 0] = word_to_uniform(x.x0);
    out[4 * i + 1] = word_to_uniform(x.x1);
    out[4 * i + 2] = word_to_uniform(x.x2);
    out[4 * i + 3] = word_to_uniform(x.x3);
  }
}

}  // namespace

PACKED_SS_MULTIVERSION
void uniform_noise_row(std::int64_t seed, std::uint32_t position, std::uint32_t stream, std::int64_t first_group,
                       std::int64_t end_id, float* row) {
  const PhiloxKey key = philox_key(seed);
  std::int64_t id = first_group * kIdsPerGroup;
  for (; id + kIdsPerGroup <= end_id; id += kIdsPerGroup) {
    fill_group(key, position, stream, static_cast<std::uint32_t>(id / kPhiloxLanes), row + id);
  }
  if (id < end_id) {
    float rest[kIdsPerGroup];
    fill_group(key, position, stream, static_cast<std::uint32_t>(id / kPhiloxLanes), rest);
    std::copy(rest, rest + (end_id - id), row + id);
  }
}

}  // namespace packed_ss::cpu
