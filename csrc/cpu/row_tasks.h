// How rows of logits are shared out among threads: all at once, or those of each sequence in order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "cpu/element.h"
#include "cpu/parallel.h"
#include "packed_ss/views.h"

namespace packed_ss::cpu {

// A sequence, and one of its entries or how many of them.
struct EntryTask {
  std::int64_t sequence;
  std::int64_t entry;
};

// Below this much work, in nanoseconds, threads cost more than they bring.
constexpr double kWorthSharing = 40e3;

// Calls body(task, workers of the task) for tasks 0 ... count - 1 of `cost` nanoseconds each: rows go to threads, or, where
// there are fewer rows than threads and they are long, all threads to each row.
template <class Body>
void each_row(std::int64_t count, double cost, const Workers& workers, Body body) {
  const Alone alone;
  if (workers.count() == 1 || static_cast<double>(count) * cost < kWorthSharing) {
    for (std::int64_t task = 0; task < count; ++task) body(task, alone);
  } else if (count < workers.count() && cost > kWorthSharing) {
    for (std::int64_t task = 0; task < count; ++task) body(task, workers);
  } else {
    workers.share(count, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t task = begin; task < end; ++task) body(task, alone);
    });
  }
}

// Looks at entries 0 ... count - 1 of each sequence in order, a few at a time where several threads have to be kept busy, and at
// none after the first that does not accept; of that one, if there is one, the sequence is told.
//   pending: sequences and their counts;  verify(task, workers) -> bool;  decide(sequence, entry)
template <class Verify, class Decide>
void verify_in_order(std::vector<EntryTask> pending, double row_cost, const Workers& workers, Verify verify, Decide decide) {
  std::int64_t most = 0;
  for (const EntryTask& task : pending) most += task.entry;
  const bool is_shared = workers.count() > 1 && static_cast<double>(most) * row_cost >= kWorthSharing;
  std::vector<EntryTask> tasks;
  std::vector<char> accepted;
  std::int64_t first = 0;
  while (!pending.empty()) {
    std::int64_t entries = 1;
    if (is_shared) {
      const double enough = std::max<double>(workers.count(), kWorthSharing / row_cost);
      entries = std::max<std::int64_t>(
          1, static_cast<std::int64_t>(std::min<double>(enough / static_cast<double>(pending.size()), 1 << 20)));
    }
    tasks.clear();
    for (const auto& [sequence, count] : pending) {
      for (std::int64_t j = first; j < std::min(count, first + entries); ++j) tasks.push_back({sequence, j});
    }
    accepted.resize(tasks.size());
    each_row(static_cast<std::int64_t>(tasks.size()), row_cost, workers,
             [&](std::int64_t t, const Workers& row_workers) { accepted[t] = verify(tasks[t], row_workers); });
    std::vector<EntryTask> undecided;
    std::size_t t = 0;
    for (const auto& [sequence, count] : pending) {
      bool decided = false;
      for (std::int64_t j = first; j < std::min(count, first + entries); ++j, ++t) {
        if (decided || accepted[t]) continue;
        decide(sequence, j);
        decided = true;
      }
      if (!decided && first + entries < count) undecided.push_back({sequence, count});
    }
    pending.swap(undecided);
    first += entries;
  }
}

// Calls body(Element{}) for the element type of a dtype.
template <class Body>
void with_element(DType dtype, Body body) {
  switch (dtype) {
    case DType::kFloat32: return body(Float32{});
    case DType::kBFloat16: return body(BFloat16{});
    case DType::kFloat16: return body(Float16{});
    case DType::kFloat64: return body(Float64{});
  }
}

}  // namespace packed_ss::cpu
