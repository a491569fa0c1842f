// Work shared out by torch's threads.
#pragma once

#include <ATen/Parallel.h>

#include "cpu/parallel.h"

namespace packed_ss::cpu {

class TorchWorkers final : public Workers {
 public:
  int count() const override { return at::in_parallel_region() ? 1 : at::get_num_threads(); }
  void share(std::int64_t tasks, RangeBody body) const override { at::parallel_for(0, tasks, 1, body); }
};

}  // namespace packed_ss::cpu
