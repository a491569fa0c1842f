#include "cpu/resolve_rows.h"
#include "cpu/row_kernels.h"

namespace packed_ss::cpu {

void resolve_greedy(const ResolveCall& call, const Workers& workers) {
  constexpr double kCost = 0.1;
  with_element(call.logits.dtype, [&](auto element) {
    using Element = decltype(element);
    const auto argmax = [&](RowTask task) {
      return largest(element, row_logits<Element>(call.logits, task), 0, call.logits.vocab_size);
    };
    const auto verify = [&](RowTask task, std::int32_t drafts, const Workers&) -> Verdict {
      const auto best = argmax(task);
      const bool finite = is_finite_key<typename Element::Bits, Element::kInf>(best.key);
      const bool accepted =
          finite && task.row < drafts && call.state.draft[task.sequence * call.state.width + task.row] == best.id;
      return {best.id, finite, accepted};
    };
    const auto propose = [&](RowTask task, std::int32_t, const Workers&) -> Proposal { return {argmax(task).id, true}; };
    resolve_rows(call, kCost, workers, verify, propose);
  });
}

}  // namespace packed_ss::cpu
