// Torch's side of the ordered layout's operators on CUDA: outputs, workspace, current device and stream. Built only where torch
// has CUDA.
#include "cuda/bindings_launch.h"
#include "cuda/ordered.h"
#include "ops.h"

namespace packed_ss::cuda {

std::tuple<at::Tensor, at::Tensor> argmax_rows(const at::Tensor& logits, bool probability) {
  const Logits view = argmax_rows_logits(logits);
  check_element("argmax_rows", logits);
  const std::int64_t n = logits.size(0);
  const std::int64_t rows = logits.size(1);
  at::Tensor ids = at::empty({n, rows}, logits.options().dtype(at::kInt));
  at::Tensor top = at::empty({n, probability ? rows : 0}, logits.options().dtype(at::kFloat));
  const ArgmaxRows args{
      view, n, rows, ids.mutable_data_ptr<std::int32_t>(), probability ? top.mutable_data_ptr<float>() : nullptr, nullptr};
  run(args, logits, argmax_rows_workspace_bytes, launch_argmax_rows);
  return {ids, top};
}

void draw_rows(PACKED_SS_DRAW_ROWS_PARAMETERS) {
  const ChosenRows chosen = draw_rows_call(PACKED_SS_DRAW_ROWS_ARGUMENTS);
  check_element("draw_rows", logits);
  const DrawRows args{chosen, static_cast<std::uint32_t>(stream), ids.mutable_data_ptr<std::int32_t>(),
                      log_q ? log_q->mutable_data_ptr<float>() : nullptr, nullptr};
  run(args, logits, draw_rows_workspace_bytes, launch_draw_rows);
}

std::tuple<at::Tensor, at::Tensor> verify_rows(PACKED_SS_VERIFY_ROWS_PARAMETERS) {
  const ChosenRows chosen = verify_rows_call(PACKED_SS_VERIFY_ROWS_ARGUMENTS);
  check_element("verify_rows", logits);
  at::Tensor ids = at::empty(draft.sizes(), draft.options());
  at::Tensor accepted = at::empty(draft.sizes(), draft.options());
  const VerifyRows args{chosen,
                        draft.const_data_ptr<std::int32_t>(),
                        draft_log_q.const_data_ptr<float>(),
                        ids.mutable_data_ptr<std::int32_t>(),
                        accepted.mutable_data_ptr<std::int32_t>(),
                        nullptr};
  run(args, logits, verify_rows_workspace_bytes, launch_verify_rows);
  return {ids, accepted};
}

void resolve_ordered(PACKED_SS_RESOLVE_ORDERED_PARAMETERS) {
  run(resolve_ordered_call(PACKED_SS_RESOLVE_ORDERED_ARGUMENTS), ids, launch_resolve_ordered);
}

void resolve_native(PACKED_SS_RESOLVE_NATIVE_PARAMETERS) {
  run(resolve_native_call(PACKED_SS_RESOLVE_NATIVE_ARGUMENTS), ids, launch_resolve_native);
}

void compact_cache(PACKED_SS_COMPACT_PARAMETERS) { run(compact_call(PACKED_SS_COMPACT_ARGUMENTS), keys, launch_compact_cache); }

void pack_ordered(PACKED_SS_PACK_ORDERED_PARAMETERS) {
  run(pack_ordered_call(PACKED_SS_PACK_ORDERED_ARGUMENTS), tokens, launch_pack_ordered);
}

}  // namespace packed_ss::cuda
