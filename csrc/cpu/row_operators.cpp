#include "cpu/row_operators.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "cpu/processed_row.h"
#include "cpu/row_tasks.h"
#include "packed_ss/philox.h"

namespace packed_ss::cpu {
namespace {

template <class Element>
const typename Element::Bits* row_logits(const Logits& logits, std::int64_t sequence, std::int64_t row) {
  return static_cast<const typename Element::Bits*>(logits.data) + logits.offset(sequence, row);
}

// The first id of the largest logit, -1 where none is finite.
template <class Element>
std::int32_t argmax(const typename Element::Bits* logits, std::int64_t vocab_size) {
  const auto best = largest(Element{}, logits, 0, vocab_size);
  return is_finite_key<typename Element::Bits, Element::kInf>(best.key) ? best.id : -1;
}

// Finds the token of every entry that is asked for: token_of(i, j, row, workers), which takes about `cost` nanoseconds. With a
// draft, entries behind the first whose token is not its draft token are left.
template <class TokenOf>
void each_entry(const RowList& list, double cost, const Workers& workers, std::int32_t* ids, TokenOf token_of) {
  std::fill(ids, ids + list.sequences * list.entries, -1);
  std::vector<EntryTask> tasks;
  const auto find = [&](EntryTask task, const Workers& row_workers) {
    const auto [i, j] = task;
    const std::int64_t row = list.row(i, j);
    return ids[i * list.entries + j] = row < 0 ? -1 : token_of(i, j, row, row_workers);
  };
  if (list.draft == nullptr) {
    for (std::int64_t i = 0; i < list.sequences; ++i) {
      for (std::int64_t j = 0; j < list.entries; ++j) {
        if (list.row(i, j) >= 0) tasks.push_back({i, j});
      }
    }
    return each_row(static_cast<std::int64_t>(tasks.size()), cost, workers,
                    [&](std::int64_t t, const Workers& row_workers) { find(tasks[t], row_workers); });
  }
  for (std::int64_t i = 0; i < list.sequences; ++i) {
    std::int64_t count = 0;  // up to the first entry that has no draft, or that nobody asks for
    while (count < list.entries && list.row(i, count) >= 0 && list.draft_token(i, count++) >= 0) continue;
    if (count > 0) tasks.push_back({i, count});
  }
  const auto accepts = [&](EntryTask task, const Workers& row_workers) {
    const std::int32_t token = find(task, row_workers);
    return token >= 0 && token == list.draft_token(task.sequence, task.entry);
  };
  const auto leave_rest = [&](std::int64_t i, std::int64_t j) {
    std::fill(ids + i * list.entries + j + 1, ids + (i + 1) * list.entries, -1);
  };
  verify_in_order(std::move(tasks), cost, workers, accepts, leave_rest);
}

RowNoise noise_of(const RowList& list, std::int64_t i, std::int64_t j, std::uint32_t stream) {
  return {philox_key(list.sampling.seed[i]), list.position(i, j), stream};
}

}  // namespace

void argmax_rows(const ArgmaxCall& call, const Workers& workers) {
  const RowList& list = call.list;
  const std::int64_t vocab_size = list.logits.vocab_size;
  const double cost = (call.probability == nullptr ? 0.1 : 0.5) * static_cast<double>(vocab_size);
  constexpr Settings kUnprocessed{0, 1.0, 0, 1.0};
  with_element(list.logits.dtype, [&](auto element) {
    using Element = decltype(element);
    using Value = typename Element::Value;
    auto* const probability = static_cast<Value*>(call.probability);
    if (probability != nullptr) std::fill(probability, probability + list.sequences * list.entries, Value{0});
    each_entry(list, cost, workers, call.ids,
               [&](std::int64_t i, std::int64_t j, std::int64_t row, const Workers& row_workers) -> std::int32_t {
                 const auto* const logits = row_logits<Element>(list.logits, i, row);
                 if (probability == nullptr) return argmax<Element>(logits, vocab_size);
                 const ProcessedRow<Element> p(logits, vocab_size, kUnprocessed, row_workers);
                 if (!p.finite()) return -1;
                 probability[i * list.entries + j] = static_cast<Value>(1 / p.mass());
                 return p.best_id();
               });
  });
}

void draw_rows(const DrawCall& call, const Workers& workers) {
  const RowList& list = call.list;
  const std::int64_t vocab_size = list.logits.vocab_size;
  const double cost = (call.log_q == nullptr ? 1.0 : 1.5) * static_cast<double>(vocab_size);
  with_element(list.logits.dtype, [&](auto element) {
    using Element = decltype(element);
    using Value = typename Element::Value;
    const auto draw = [&](std::int64_t i, std::int64_t j, std::int64_t row, const Workers& row_workers) -> std::int32_t {
      const auto* const logits = row_logits<Element>(list.logits, i, row);
      const Settings settings = list.sampling.of(i);
      Value* const log_q =
          call.log_q == nullptr ? nullptr : static_cast<Value*>(call.log_q) + (i * list.entries + j) * vocab_size;
      if (settings.is_greedy()) {
        const std::int32_t id = argmax<Element>(logits, vocab_size);
        if (log_q != nullptr && id >= 0) {
          std::fill(log_q, log_q + vocab_size, -std::numeric_limits<Value>::infinity());
          log_q[id] = 0;
        }
        return id;
      }
      ProcessedRow<Element> p(logits, vocab_size, settings, row_workers);
      if (!p.finite()) return -1;
      const RowNoise noise = noise_of(list, i, j, call.stream);
      if (log_q == nullptr) return p.draw(noise);
      p.normalise();
      return p.draw_and_store(noise, log_q);
    };
    each_entry(list, cost, workers, call.ids, [&](std::int64_t i, std::int64_t j, std::int64_t row, const Workers& row_workers) {
      const std::int32_t id = draw(i, j, row, row_workers);
      if (call.next_ids != nullptr && id >= 0) call.next_ids[i * call.next_stride + call.next_column + j] = id;
      return id;
    });
  });
}

void verify_rows(const VerifyCall& call, const Workers& workers) {
  const RowList& list = call.list;
  const std::int64_t vocab_size = list.logits.vocab_size;
  const double cost = 1.5 * static_cast<double>(vocab_size);
  std::vector<EntryTask> pending;
  for (std::int64_t i = 0; i < list.sequences; ++i) {
    std::int64_t count = 0;
    while (count < list.entries && list.row(i, count) >= 0) ++count;
    if (count > 0) pending.push_back({i, count});
  }
  std::fill(call.ids, call.ids + list.sequences * list.entries, -1);
  std::fill(call.accepted, call.accepted + list.sequences * list.entries, 0);
  with_element(list.logits.dtype, [&](auto element) {
    using Element = decltype(element);
    using Value = typename Element::Value;
    const auto verify = [&](EntryTask task, const Workers& row_workers) -> bool {
      const auto [i, j] = task;
      const auto* const logits = row_logits<Element>(list.logits, i, j);
      const Settings settings = list.sampling.of(i);
      const std::int32_t d = list.draft_token(i, j);
      std::int32_t& id = call.ids[i * list.entries + j];
      std::int32_t& accepted = call.accepted[i * list.entries + j];
      if (settings.is_greedy()) {
        id = argmax<Element>(logits, vocab_size);
        accepted = id >= 0 && id == d;
        return accepted;
      }
      ProcessedRow<Element> p(logits, vocab_size, settings, row_workers);
      if (!p.finite()) return false;
      p.normalise();
      const RowNoise noise = noise_of(list, i, j, static_cast<std::uint32_t>(Stream::kTarget));
      if (d < 0) {
        id = p.draw(noise);
        return false;
      }
      const Value* const log_q = static_cast<const Value*>(call.draft_log_q) + (i * list.draft_width + j) * vocab_size;
      const float u = word_to_uniform(noise_words(noise.key, noise.position, 0, static_cast<std::uint32_t>(Stream::kAccept)).x0);
      accepted = d < vocab_size && accepts(u, p.log_p(d), log_q[d]);
      id = accepted ? d : p.draw_residual(noise, log_q);
      return accepted;
    };
    const auto leave_rest = [&](std::int64_t i, std::int64_t j) {
      std::fill(call.ids + i * list.entries + j + 1, call.ids + (i + 1) * list.entries, -1);
      std::fill(call.accepted + i * list.entries + j + 1, call.accepted + (i + 1) * list.entries, 0);
    };
    verify_in_order(std::move(pending), cost, workers, verify, leave_rest);
  });
}

}  // namespace packed_ss::cpu
