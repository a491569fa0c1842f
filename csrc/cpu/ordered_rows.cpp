#include <algorithm>
#include <vector>

#include "cpu/ordered.h"
#include "cpu/processed_row.h"
#include "cpu/resolve_rows.h"

namespace packed_ss::cpu {
namespace {

// Of sequence i: how many of the rows named are there, and the row of the j-th.
std::int32_t row_count(const ChosenRows& call, std::int64_t i) {
  return call.rows == 0 ? 0 : static_cast<std::int32_t>(std::min<std::int64_t>(call.range[2 * i + 1], call.width));
}
RowTask chosen_row(const ChosenRows& call, std::int64_t i, std::int32_t j) {
  const std::int64_t row = std::int64_t{call.range[2 * i]} + j;
  return {i, static_cast<std::int32_t>(std::clamp<std::int64_t>(row, 0, call.rows - 1))};
}

RowNoise noise_of(const ChosenRows& call, std::int64_t i, std::int32_t j, Stream stream) {
  const std::int32_t position = std::max(call.positions[i * call.width + j], 0);
  return {philox_key(call.sampling.seed[i]), static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(stream)};
}

}  // namespace

void argmax_rows(const Logits& logits, std::int64_t sequences, std::int64_t rows, std::int32_t* ids, void* probability,
                 const Workers& workers) {
  const double cost = (probability == nullptr ? 0.1 : 0.5) * static_cast<double>(logits.vocab_size);
  const Sampling plain{nullptr, 1.0, 0, 1.0};
  with_element(logits.dtype, [&](auto element) {
    using Element = decltype(element);
    using Value = typename Element::Value;
    each_row(sequences * rows, cost, workers, [&](std::int64_t at, const Workers& row_workers) {
      const auto* row = row_logits<Element>(logits, {at / rows, static_cast<std::int32_t>(at % rows)});
      if (probability == nullptr) {
        const auto best = largest(element, row, 0, logits.vocab_size);
        ids[at] = is_finite_key<typename Element::Bits, Element::kInf>(best.key) ? best.id : -1;
        return;
      }
      const ProcessedRow<Element> p(row, logits.vocab_size, plain, row_workers);
      ids[at] = p.finite() ? p.best_id() : -1;
      static_cast<Value*>(probability)[at] = p.finite() ? static_cast<Value>(1 / p.mass()) : Value{0};
    });
  });
}

void draw_rows(const ChosenRows& call, Stream stream, std::int32_t* ids, void* log_q, const Workers& workers) {
  const std::int64_t vocab_size = call.logits.vocab_size;
  const double cost = (log_q == nullptr ? 1.0 : 1.5) * static_cast<double>(vocab_size);
  std::vector<RowTask> tasks;  // the task's row is the place among those named
  for (std::int64_t i = 0; i < call.sequences; ++i) {
    const std::int32_t count = row_count(call, i);
    for (std::int32_t j = 0; j < count; ++j) tasks.push_back({i, j});
    for (std::int64_t j = std::max(count, 0); j < call.width; ++j) ids[i * call.width + j] = -1;
  }
  with_element(call.logits.dtype, [&](auto element) {
    using Element = decltype(element);
    using Value = typename Element::Value;
    each_row(static_cast<std::int64_t>(tasks.size()), cost, workers, [&](std::int64_t t, const Workers& row_workers) {
      const auto [i, j] = tasks[t];
      const std::int64_t at = i * call.width + j;
      ProcessedRow<Element> p(row_logits<Element>(call.logits, chosen_row(call, i, j)), vocab_size, call.sampling, row_workers);
      const RowNoise noise = noise_of(call, i, j, stream);
      if (!p.finite()) {
        ids[at] = -1;
      } else if (log_q == nullptr) {
        ids[at] = p.draw(noise);
      } else {
        p.normalise();
        ids[at] = p.draw_and_store(noise, static_cast<Value*>(log_q) + at * vocab_size);
      }
    });
  });
}

void verify_rows(const ChosenRows& call, const std::int32_t* draft, const void* draft_log_q, std::int32_t* ids,
                 std::int32_t* accepted, const Workers& workers) {
  const std::int64_t vocab_size = call.logits.vocab_size;
  const double cost = 1.5 * static_cast<double>(vocab_size);
  std::vector<RowsToVerify> pending;
  for (std::int64_t i = 0; i < call.sequences; ++i) {
    const std::int32_t count = row_count(call, i);
    for (std::int64_t j = 0; j < call.width; ++j) {  // as if all were accepted
      const std::int64_t at = i * call.width + j;
      ids[at] = j < count ? draft[at] : -1;
      accepted[at] = j < count;
    }
    if (count > 0) pending.push_back({i, count});
  }
  with_element(call.logits.dtype, [&](auto element) {
    using Element = decltype(element);
    using Value = typename Element::Value;
    const auto verify = [&](RowTask task, const Workers& row_workers) -> Verdict {
      const std::int64_t at = task.sequence * call.width + task.row;
      ProcessedRow<Element> p(row_logits<Element>(call.logits, chosen_row(call, task.sequence, task.row)), vocab_size,
                              call.sampling, row_workers);
      if (!p.finite()) return {-1, false, false};
      p.normalise();
      const RowNoise noise = noise_of(call, task.sequence, task.row, Stream::kTarget);
      const std::int32_t d = draft[at];
      if (d < 0) return {p.draw(noise), true, false};
      const Value* log_q = static_cast<const Value*>(draft_log_q) + at * vocab_size;
      const RowNoise coin = noise_of(call, task.sequence, task.row, Stream::kAccept);
      const float u = word_to_uniform(noise_words(coin.key, coin.position, 0, coin.stream).x0);
      if (d < vocab_size && accepts(u, p.log_p(d), log_q[d])) return {d, true, true};
      return {p.draw_residual(noise, log_q), true, false};
    };
    const auto decide = [&](std::int64_t i, std::int32_t row, const Verdict& verdict) {
      for (std::int64_t j = row; j < call.width; ++j) {
        ids[i * call.width + j] = j == row ? verdict.token : -1;
        accepted[i * call.width + j] = 0;
      }
    };
    verify_in_order(std::move(pending), cost, workers, verify, decide);
  });
}

}  // namespace packed_ss::cpu
