// The order of work that the three resolves share: verify row by row, commit, draft the retained rows, write the next call's
// rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "cpu/element.h"
#include "cpu/parallel.h"
#include "cpu/resolve.h"
#include "packed_ss/commit.h"

namespace packed_ss::cpu {

// What a verifier row says: the target's token (if the row has a finite maximum), and whether the draft token there is accepted.
struct Verdict {
  std::int32_t token;
  bool finite;
  bool accepted;
};

// What a proposal row gives: a draft token, unless the draft ends before it.
struct Proposal {
  std::int32_t token;
  bool usable;
};

// Sequence and row of one piece of work.
struct RowTask {
  std::int64_t sequence;
  std::int32_t row;
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

// Rows 0 ... count - 1 of a sequence are to be verified.
struct RowsToVerify {
  std::int64_t sequence;
  std::int32_t count;
};

// Looks at the rows of each sequence in order, a few at a time where several threads have to be kept busy, and at none after the
// first that does not accept; of that one, if there is one, the sequence is told.
//   verify(task, workers) -> Verdict;  decide(sequence, row, verdict)
template <class Verify, class Decide>
void verify_in_order(std::vector<RowsToVerify> pending, double row_cost, const Workers& workers, Verify verify, Decide decide) {
  std::vector<RowTask> tasks;
  std::vector<Verdict> verdicts;
  std::int32_t row = 0;
  while (!pending.empty()) {
    std::int32_t rows = 1;
    if (workers.count() > 1) {
      const double enough = std::max<double>(workers.count(), kWorthSharing / row_cost);
      rows = std::max(1, static_cast<std::int32_t>(std::min<double>(enough / static_cast<double>(pending.size()), 1 << 20)));
    }
    tasks.clear();
    for (const RowsToVerify& p : pending) {
      for (std::int32_t r = row; r < std::min(p.count, row + rows); ++r) tasks.push_back({p.sequence, r});
    }
    verdicts.resize(tasks.size());
    each_row(static_cast<std::int64_t>(tasks.size()), row_cost, workers,
             [&](std::int64_t t, const Workers& row_workers) { verdicts[t] = verify(tasks[t], row_workers); });
    std::vector<RowsToVerify> undecided;
    std::size_t t = 0;
    for (const RowsToVerify& p : pending) {
      bool decided = false;
      for (std::int32_t r = row; r < std::min(p.count, row + rows); ++r, ++t) {
        if (decided || verdicts[t].accepted) continue;
        decide(p.sequence, r, verdicts[t]);
        decided = true;
      }
      if (!decided && row + rows < p.count) undecided.push_back(p);
    }
    pending.swap(undecided);
    row += rows;
  }
}

// Finds h and the token of row h of every running sequence, and commits.
//   verify(task, drafts, workers) -> Verdict; row `drafts` has no draft token to accept.
template <class Verify>
void verify_and_commit(const ResolveCall& call, double row_cost, const Workers& workers, std::vector<std::int32_t>& matches,
                       std::vector<std::int32_t>& advances, Verify verify) {
  std::vector<RowsToVerify> pending;
  for (std::int64_t i = 0; i < call.state.sequences; ++i) {
    if (is_running(call.state, i)) pending.push_back({i, verified_drafts(call.state, call.shape, i) + 1});
  }
  verify_in_order(
      std::move(pending), row_cost, workers,
      [&](RowTask task, const Workers& row_workers) {
        return verify(task, verified_drafts(call.state, call.shape, task.sequence), row_workers);
      },
      [&](std::int64_t i, std::int32_t row, const Verdict& verdict) {
        matches[i] = row;
        advances[i] = commit(call.state, i, row, verdict.token, !verdict.finite);
      });
}

// Drafts what the call proposes for the sequences that are still running.
//   propose(task, j, workers) -> Proposal; the task's row is row j of the next draft.
template <class Propose>
void draft_next(const ResolveCall& call, double row_cost, const Workers& workers, const std::vector<std::int32_t>& matches,
                const std::vector<std::int32_t>& advances, Propose propose) {
  struct DraftTask : RowTask {
    std::int32_t j;
  };
  std::vector<DraftTask> tasks;
  for (std::int64_t i = 0; i < call.state.sequences; ++i) {
    if (!is_running(call.state, i) || call.shape.cut_count == 0) continue;
    const ProposalRows open =
        call.shape.verifier_rows ? retained_rows(call.shape, matches[i], advances[i]) : open_rows(call.shape);
    for (std::int32_t j = 0; j < open.count; ++j) tasks.push_back({{i, static_cast<std::int32_t>(open.first + j)}, j});
  }
  std::vector<Proposal> proposals(tasks.size());
  each_row(static_cast<std::int64_t>(tasks.size()), row_cost, workers,
           [&](std::int64_t t, const Workers& row_workers) { proposals[t] = propose(tasks[t], tasks[t].j, row_workers); });
  std::size_t t = 0;
  for (std::int64_t i = 0; i < call.state.sequences; ++i) {
    std::int32_t count = 0;
    bool usable = true;
    for (; t < tasks.size() && tasks[t].sequence == i; ++t) {
      usable = usable && proposals[t].usable;
      if (!usable) continue;
      store_draft(call.state, i, tasks[t].j, proposals[t].token);
      ++count;
    }
    store_draft_length(call.state, i, count);
  }
}

// A whole resolve. `cost_per_token`: nanoseconds that one token of a row takes, roughly.
template <class Verify, class Propose>
void resolve_rows(const ResolveCall& call, double cost_per_token, const Workers& workers, Verify verify, Propose propose) {
  const double row_cost = cost_per_token * static_cast<double>(call.logits.vocab_size);
  const double rows = static_cast<double>(call.shape.rows() * call.state.sequences);
  const Alone alone;
  const Workers& useful = rows * row_cost < kWorthSharing ? alone : workers;
  std::vector<std::int32_t> matches(call.state.sequences), advances(call.state.sequences);
  if (call.shape.verifier_rows > 0) {
    verify_and_commit(call, row_cost, useful, matches, advances, verify);
  } else {
    for (std::int64_t i = 0; i < call.state.sequences; ++i) {
      if (is_running(call.state, i)) propose_only(call.state, i);
    }
  }
  draft_next(call, row_cost, useful, matches, advances, propose);
  if (call.next.ids != nullptr) pack_block(call.state, call.next);
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

// The logits of a task's row.
template <class Element>
const typename Element::Bits* row_logits(const Logits& logits, RowTask task) {
  return static_cast<const typename Element::Bits*>(logits.data) + logits.offset(task.sequence, task.row);
}

}  // namespace packed_ss::cpu
