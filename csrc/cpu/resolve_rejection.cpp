#include "cpu/processed_row.h"
#include "cpu/resolve_rows.h"

namespace packed_ss::cpu {
namespace {

RowNoise noise_of(const Sampling& sampling, std::int64_t sequence, std::int32_t position, Stream stream) {
  return {philox_key(sampling.seed[sequence]), static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(stream)};
}

// The acceptance coin of a position.
float coin(RowNoise noise) { return word_to_uniform(noise_words(noise.key, noise.position, 0, noise.stream).x0); }

}  // namespace

void resolve_rejection(const ResolveCall& call, const Sampling& sampling, void* draft_log_q, const Workers& workers) {
  constexpr double kCost = 1.5;
  with_element(call.logits.dtype, [&](auto element) {
    using Element = decltype(element);
    using Value = typename Element::Value;
    const DecodeState& state = call.state;
    const std::int64_t vocab_size = call.logits.vocab_size;
    const auto log_q_of = [&](std::int64_t sequence, std::int32_t j) {
      return static_cast<Value*>(draft_log_q) + (sequence * state.width + j) * vocab_size;
    };
    const auto verify = [&](RowTask task, std::int32_t drafts, const Workers& row_workers) -> Verdict {
      ProcessedRow<Element> p(row_logits<Element>(call.logits, task), vocab_size, sampling, row_workers);
      if (!p.finite()) return {0, false, false};
      p.normalise();
      const std::int32_t position = state.length[task.sequence] + task.row;
      const RowNoise noise = noise_of(sampling, task.sequence, position, Stream::kTarget);
      if (task.row >= drafts) return {p.draw(noise), true, false};
      const std::int32_t d = state.draft[task.sequence * state.width + task.row];
      const Value* log_q = log_q_of(task.sequence, task.row);
      const bool accepted = d >= 0 && d < vocab_size &&
                            accepts(coin(noise_of(sampling, task.sequence, position, Stream::kAccept)), p.log_p(d), log_q[d]);
      return accepted ? Verdict{d, true, true} : Verdict{p.draw_residual(noise, log_q), true, false};
    };
    const auto propose = [&](RowTask task, std::int32_t j, const Workers& row_workers) -> Proposal {
      ProcessedRow<Element> q(row_logits<Element>(call.logits, task), vocab_size, sampling, row_workers);
      if (!q.finite()) return {0, false};
      q.normalise();
      const RowNoise noise = noise_of(sampling, task.sequence, state.length[task.sequence] + j, Stream::kDraft);
      return {q.draw_and_store(noise, log_q_of(task.sequence, j)), true};
    };
    resolve_rows(call, kCost, workers, verify, propose);
  });
}

}  // namespace packed_ss::cpu
