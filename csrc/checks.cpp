#include <c10/util/Exception.h>

#include <limits>

#include "ops.h"
#include "packed_ss/philox.h"

namespace packed_ss {

void check_uniform_noise(const at::Tensor& seed, const at::Tensor& position, std::int64_t stream, std::int64_t vocab_size) {
  TORCH_CHECK_VALUE(seed.scalar_type() == at::kLong && seed.dim() == 1, "uniform_noise: seed must be int64 [N], got ",
                    dtype_name(seed.scalar_type()), " ", seed.sizes(), ".");
  TORCH_CHECK_VALUE(position.scalar_type() == at::kInt && position.dim() == 2 && position.size(0) == seed.size(0),
                    "uniform_noise: position must be int32 [N, R] with N = ", seed.size(0), " as in seed, got ",
                    dtype_name(position.scalar_type()), " ", position.sizes(), ".");
  TORCH_CHECK_VALUE(seed.device() == position.device(), "uniform_noise: seed and position must be on one device, got ",
                    seed.device(), " and ", position.device(), ".");
  TORCH_CHECK_VALUE(stream >= 0 && stream < kStreams, "uniform_noise: stream must be 0 (draft), 1 (accept) or 2 (target), got ",
                    stream, ".");
  TORCH_CHECK_VALUE(vocab_size >= 1 && vocab_size <= std::numeric_limits<std::int32_t>::max(),
                    "uniform_noise: vocab_size must be in 1 ... 2^31 - 1, got ", vocab_size, ".");
}

}  // namespace packed_ss
