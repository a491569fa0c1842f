#include "cpu/processed_row.h"
#include "cpu/resolve_rows.h"

namespace packed_ss::cpu {
namespace {

constexpr auto kTarget = static_cast<std::uint32_t>(Stream::kTarget);

}  // namespace

void resolve_coupled(const ResolveCall& call, const Sampling& sampling, const Workers& workers) {
  constexpr double kCost = 1.0;
  with_element(call.logits.dtype, [&](auto element) {
    using Element = decltype(element);
    const DecodeState& state = call.state;
    const auto draw = [&](RowTask task, std::int32_t position, const Workers& row_workers) -> Proposal {
      const ProcessedRow<Element> row(row_logits<Element>(call.logits, task), call.logits.vocab_size, sampling, row_workers);
      if (!row.finite()) return {0, false};
      return {row.draw({philox_key(sampling.seed[task.sequence]), static_cast<std::uint32_t>(position), kTarget}), true};
    };
    const auto verify = [&](RowTask task, std::int32_t drafts, const Workers& row_workers) -> Verdict {
      const Proposal target = draw(task, state.length[task.sequence] + task.row, row_workers);
      const bool accepted =
          target.usable && task.row < drafts && state.draft[task.sequence * state.width + task.row] == target.token;
      return {target.token, target.usable, accepted};
    };
    const auto propose = [&](RowTask task, std::int32_t j, const Workers& row_workers) -> Proposal {
      return {draw(task, state.length[task.sequence] + j, row_workers).token, true};
    };
    resolve_rows(call, kCost, workers, verify, propose);
  });
}

}  // namespace packed_ss::cpu
