// Torch's side of the CPU kernels: allocation, threads, registration.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <type_traits>

#include "cpu/row_operators.h"
#include "cpu/state_operators.h"
#include "cpu/torch_workers.h"
#include "cpu/uniform_noise.h"
#include "ops.h"

namespace packed_ss::cpu {

at::Tensor uniform_noise(const at::Tensor& seed, const at::Tensor& position, std::int64_t stream, std::int64_t vocab_size) {
  check_uniform_noise(seed, position, stream, vocab_size);
  const at::Tensor seeds = seed.contiguous();
  const at::Tensor positions = position.contiguous();
  const std::int64_t rows = positions.size(1);
  at::Tensor out = at::empty({positions.size(0), rows, vocab_size}, positions.options().dtype(at::kFloat));

  const auto* seed_of = seeds.const_data_ptr<std::int64_t>();
  const auto* position_of = positions.const_data_ptr<std::int32_t>();
  float* data = out.mutable_data_ptr<float>();
  const std::int64_t groups = (vocab_size + kIdsPerGroup - 1) / kIdsPerGroup;
  constexpr std::int64_t kGroupsPerTask = 256;  // about 16 microseconds on one core, well above the cost of a task

  // All groups of all rows are one range: a single row of a large vocabulary is shared out as well as many short rows.
  at::parallel_for(0, positions.numel() * groups, kGroupsPerTask, [&](std::int64_t begin, std::int64_t end) {
    while (begin < end) {
      const std::int64_t row = begin / groups;
      const std::int64_t first = begin % groups;
      const std::int64_t last = std::min(groups, first + end - begin);
      uniform_noise_row(seed_of[row / rows], static_cast<std::uint32_t>(position_of[row]), static_cast<std::uint32_t>(stream),
                        first, std::min(vocab_size, last * kIdsPerGroup), data + row * vocab_size);
      begin += last - first;
    }
  });
  return out;
}

namespace {

// The operator that runs `kernel` on the view that `view_of` makes of its operands.
template <auto view_of, auto kernel, class = decltype(view_of)>
struct Operator;
template <auto view_of, auto kernel, class View, class... Operands>
struct Operator<view_of, kernel, View (*)(Operands...)> {
  static void call(Operands... operands) {
    const View view = view_of(operands...);
    if constexpr (std::is_invocable_v<decltype(kernel), const View&>) {
      kernel(view);
    } else {
      kernel(view, TorchWorkers());
    }
  }
};

}  // namespace

TORCH_LIBRARY_IMPL(packed_ss, CPU, m) {
#define PACKED_SS_REGISTER(name) \
  if (is_wanted(#name)) m.impl(#name, TORCH_FN(name));
#define PACKED_SS_REGISTER_VIEW(name) \
  if (is_wanted(#name)) m.impl(#name, TORCH_FN((Operator<&name##_view, &name>::call)));
  PACKED_SS_CPU_KERNELS(PACKED_SS_REGISTER)
  PACKED_SS_VIEW_KERNELS(PACKED_SS_REGISTER_VIEW)
}

}  // namespace packed_ss::cpu
