// Torch's side of the CUDA kernels: allocation, current device and stream, errors of launches, registration. Built only where
// torch has CUDA.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "cuda/operators.h"
#include "ops.h"
#include "packed_ss/uniform_noise.h"

namespace packed_ss::cuda {
namespace {

// Launches on the current device.
template <class Arguments>
void run(const Arguments& args, int (*launch)(const Arguments&, CUstream_st*)) {
  C10_CUDA_CHECK(static_cast<cudaError_t>(launch(args, c10::cuda::getCurrentCUDAStream().stream())));
}

// The same of arguments with a workspace. Its memory comes from torch's allocator, which orders its reuse after the kernels and
// serves captures too.
template <class Arguments>
void run(Arguments args, std::int64_t (*workspace_bytes)(const Arguments&), int (*launch)(const Arguments&, CUstream_st*)) {
  const at::Tensor workspace = at::empty({workspace_bytes(args)}, at::TensorOptions().dtype(at::kByte).device(at::kCUDA));
  args.workspace = workspace.mutable_data_ptr();
  run(args, launch);
}

// Refuses logits that the kernels have no element for, or more ids than fit.
void check_element(const char* op, const Logits& logits) {
  TORCH_CHECK_VALUE(logits.dtype != DType::kFloat64, op, ": logits on a GPU must be float32, bfloat16 or float16, got float64.");
  TORCH_CHECK_VALUE(logits.vocab_size <= kMaxVocabSize, op, ": logits on a GPU must have V in 1 ... 2^30, got ",
                    logits.vocab_size, ".");
}

void argmax_rows(const ArgmaxCall& call) {
  check_element("argmax_rows", call.list.logits);
  run(ArgmaxRows{call.list, call.ids, static_cast<float*>(call.probability), nullptr}, argmax_rows_workspace_bytes,
      launch_argmax_rows);
}

void draw_rows(const DrawCall& call) {
  check_element("draw_rows", call.list.logits);
  run(DrawRows{call.list, call.stream, call.ids, static_cast<float*>(call.log_q), call.next_ids, call.next_stride,
               call.next_column, nullptr},
      draw_rows_workspace_bytes, launch_draw_rows);
}

void verify_rows(const VerifyCall& call) {
  check_element("verify_rows", call.list.logits);
  run(VerifyRows{call.list, static_cast<const float*>(call.draft_log_q), call.ids, call.accepted, nullptr},
      verify_rows_workspace_bytes, launch_verify_rows);
}

void pack_block(const PackBlock& call) { run(call, launch_pack_block); }
void pack_ordered(const PackOrdered& call) { run(call, launch_pack_ordered); }
void advance_block(const AdvanceBlock& call) { run(call, launch_advance_block); }
void advance_ordered(const AdvanceOrdered& call) { run(call, launch_advance_ordered); }
void advance_native(const AdvanceOrdered& call) { run(call, launch_advance_native); }
void compact_cache(const CompactCache& call) { run(call, launch_compact_cache); }

at::Tensor uniform_noise(const at::Tensor& seed, const at::Tensor& position, std::int64_t stream, std::int64_t vocab_size) {
  check_uniform_noise(seed, position, stream, vocab_size);
  const c10::cuda::CUDAGuard guard(position.device());
  const at::Tensor seeds = seed.contiguous();
  const at::Tensor positions = position.contiguous();
  at::Tensor out = at::empty({positions.size(0), positions.size(1), vocab_size}, positions.options().dtype(at::kFloat));
  run(UniformNoise{seeds.const_data_ptr<std::int64_t>(), positions.const_data_ptr<std::int32_t>(), positions.size(0),
                   positions.size(1), static_cast<std::uint32_t>(stream), vocab_size, out.mutable_data_ptr<float>()},
      launch_uniform_noise);
  return out;
}

template <class... Rest>
at::Device device_of(const at::Tensor& t, const Rest&...) {
  return t.device();
}
template <class... Rest>
at::Device device_of(at::TensorList list, const Rest&...) {
  return list[0].device();
}

// The operator that runs `kernel` on the view that `view_of` makes of its operands, on the device of the first.
template <auto view_of, auto kernel, class = decltype(view_of)>
struct Operator;
template <auto view_of, auto kernel, class View, class... Operands>
struct Operator<view_of, kernel, View (*)(Operands...)> {
  static void call(Operands... operands) {
    const View view = view_of(operands...);
    const c10::cuda::CUDAGuard guard(device_of(operands...));
    kernel(view);
  }
};

}  // namespace

TORCH_LIBRARY_IMPL(packed_ss, CUDA, m) {
#define PACKED_SS_REGISTER(name) \
  if (is_wanted(#name)) m.impl(#name, TORCH_FN(name));
#define PACKED_SS_REGISTER_VIEW(name) \
  if (is_wanted(#name)) m.impl(#name, TORCH_FN((Operator<&name##_view, &name>::call)));
  PACKED_SS_CUDA_KERNELS(PACKED_SS_REGISTER)
  PACKED_SS_VIEW_KERNELS(PACKED_SS_REGISTER_VIEW)
}

}  // namespace packed_ss::cuda
