// Torch's side of the ordered layout's operators on the CPU.
#include <ATen/ops/empty.h>

#include "cpu/ordered.h"
#include "cpu/torch_workers.h"
#include "ops.h"

namespace packed_ss::cpu {

std::tuple<at::Tensor, at::Tensor> argmax_rows(const at::Tensor& logits, bool probability) {
  const Logits view = argmax_rows_logits(logits);
  const std::int64_t n = logits.size(0);
  const std::int64_t rows = logits.size(1);
  const auto dtype = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor ids = at::empty({n, rows}, logits.options().dtype(at::kInt));
  at::Tensor top = at::empty({n, probability ? rows : 0}, logits.options().dtype(dtype));
  argmax_rows(view, n, rows, ids.mutable_data_ptr<std::int32_t>(), probability ? top.mutable_data_ptr() : nullptr,
              TorchWorkers());
  return {ids, top};
}

void draw_rows(PACKED_SS_DRAW_ROWS_PARAMETERS) {
  const ChosenRows call = draw_rows_call(PACKED_SS_DRAW_ROWS_ARGUMENTS);
  draw_rows(call, static_cast<Stream>(stream), ids.mutable_data_ptr<std::int32_t>(), log_q ? log_q->mutable_data_ptr() : nullptr,
            TorchWorkers());
}

std::tuple<at::Tensor, at::Tensor> verify_rows(PACKED_SS_VERIFY_ROWS_PARAMETERS) {
  const ChosenRows call = verify_rows_call(PACKED_SS_VERIFY_ROWS_ARGUMENTS);
  at::Tensor ids = at::empty(draft.sizes(), draft.options());
  at::Tensor accepted = at::empty(draft.sizes(), draft.options());
  verify_rows(call, draft.const_data_ptr<std::int32_t>(), draft_log_q.const_data_ptr(), ids.mutable_data_ptr<std::int32_t>(),
              accepted.mutable_data_ptr<std::int32_t>(), TorchWorkers());
  return {ids, accepted};
}

void resolve_ordered(PACKED_SS_RESOLVE_ORDERED_PARAMETERS) {
  resolve_ordered(resolve_ordered_call(PACKED_SS_RESOLVE_ORDERED_ARGUMENTS));
}

void resolve_native(PACKED_SS_RESOLVE_NATIVE_PARAMETERS) {
  resolve_native(resolve_native_call(PACKED_SS_RESOLVE_NATIVE_ARGUMENTS));
}

void compact_cache(PACKED_SS_COMPACT_PARAMETERS) { compact_cache(compact_call(PACKED_SS_COMPACT_ARGUMENTS), TorchWorkers()); }

void pack_ordered(PACKED_SS_PACK_ORDERED_PARAMETERS) { pack_ordered(pack_ordered_call(PACKED_SS_PACK_ORDERED_ARGUMENTS)); }

}  // namespace packed_ss::cpu
