"""`make mutations`: does a test notice when one line of a CUDA kernel is wrong?

csrc is copied and MUTATIONS are made in the copy, one at a time. The CUDA sources are built for the host from it, and tests of
the backend "cuda-on-host" run against them: they must pass before, and fail after. Words on the command line choose the
mutations whose file or description has one of them. It exits with 1 if a mutation survives, cannot be made, or breaks more
than a test can say (no build, no end, a crash).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from . import build

TEST_FILES = ("tests/kernels/test_resolve.py", "tests/kernels/test_resolve_filters.py", "tests/host_cuda/test_resolves.py",
              "tests/host_cuda/test_tail_mask.py", "tests/host_cuda/test_uniform_noise.py",
              "tests/kernels/test_ordered_resolve.py", "tests/host_cuda/test_ordered_on_host.py")  # fmt: skip
# Of their cases, those that run the CUDA sources.
ON_HOST = "(cuda-on-host or test_resolves or test_tail_mask or test_uniform_noise or test_ordered_on_host)"
TIME_LIMIT_S = 300  # the first build compiles everything


class Mutation(NamedTuple):
    """In a file of csrc, ``right`` becomes ``wrong``: one line, with others where it needs them to occur just once.

    ``tests``: a pytest -k expression for those that must notice.
    """

    file: str
    right: str
    wrong: str
    breaks: str
    tests: str


_COMMIT = "include/packed_ss/commit.h"
_PHILOX = "include/packed_ss/philox.h"
_SCORES = "include/packed_ss/scores.h"
_MASK = "include/packed_ss/tail_mask.h"
_DRAW = "cuda/draw_rows.cuh"
_FILTER = "cuda/filter_rows.cuh"
_SCAN = "cuda/row_scan.cuh"
_SUMS = "cuda/scan_rows.cuh"
_TASKS = "cuda/resolve_tasks.cuh"
_CORRECT = "cuda/correct_rows.cuh"
_NOISE = "cuda/uniform_noise.cu"
_ORDERED = "include/packed_ss/ordered.h"
_ORDERED_PACK = "include/packed_ss/ordered_pack.h"
_TEAM = "cuda/block_team.cuh"
_CHOSEN = "cuda/chosen_rows.cuh"
_ARGMAX_ROWS = "cuda/argmax_rows.cu"
_DRAW_ROWS = "cuda/draw_rows.cu"
_VERIFY_ROWS = "cuda/verify_rows.cu"
_COMPACT = "cuda/compact_cache.cu"
_PACK_ORDERED = "cuda/pack_ordered.cu"

MUTATIONS = (
    # ---- Commit and retention ----
    Mutation(
        _COMMIT,
        "if (t < state.prompt_length[i] || tokens[t] != stop[m]) return false;",
        "if (t < 0 || tokens[t] != stop[m]) return false;",
        "stops reach into the prompt",
        "stops_do_not_reach",
    ),
    Mutation(
        _COMMIT,
        "while (advance < most && !stopped) {",
        "while (advance < most) {",
        "tokens after a stop are kept",
        "stops_anywhere and greedy",
    ),
    Mutation(
        _COMMIT,
        "const std::int32_t room = end > n ? end - n : 0;",
        "const std::int32_t room = end > n ? end - n + 1 : 1;",
        "one token more than the limit",
        "limits_anywhere and greedy",
    ),
    Mutation(
        _COMMIT,
        "const std::int32_t accepted = failed ? matches : matches + 1;",
        "const std::int32_t accepted = matches + 1;",
        "a row without an argmax appends a token",
        "nan_of_any_sign",
    ),
    Mutation(
        _COMMIT,
        "return state.finish_reason[i] == kRunning;",
        "return state.finish_reason[i] >= kRunning;",
        "a finished sequence goes on",
        "finished_sequences and greedy",
    ),
    Mutation(
        _COMMIT,
        "return drafts < most ? drafts : most;",
        "return most < drafts ? drafts : most;",
        "drafts past |D| are verified",
        "every_branch_set and greedy",
    ),
    Mutation(
        _COMMIT,
        "shape.cuts[branch + 1] <= matches) ++branch;",
        "shape.cuts[branch + 1] <= matches + 1) ++branch;",
        "the branch is chosen by a, not h",
        "every_branch_set and greedy",
    ),
    Mutation(
        _COMMIT,
        "const std::int32_t inside = advance - shape.cuts[branch] + 1 - shape.shift;",
        "const std::int32_t inside = advance - shape.cuts[branch] - shape.shift;",
        "retention begins one row early",
        "every_call_shape and greedy",
    ),
    Mutation(
        _COMMIT,
        "next.positions[at] = last + static_cast<std::int32_t>(offset);",
        "next.positions[at] = last + 1 + static_cast<std::int32_t>(offset);",
        "the next rows' positions are one late",
        "next_rows and greedy",
    ),
    Mutation(
        _COMMIT,
        "} else if (!is_mask && source <= state.draft_len[i] && source <= state.width) {",
        "} else if (!is_mask && source < state.draft_len[i] && source <= state.width) {",
        "the last draft token is MASK in the next rows",
        "next_rows and greedy",
    ),
    Mutation(
        _TASKS,
        "draft_count = is_running(state, sequence) ? open.count : 0;",
        "draft_count = open.count;",
        "a sequence that finishes keeps a draft",
        "limits_anywhere and greedy",
    ),
    Mutation(
        _MASK,
        "if (s < v) return s < shape.cuts[region];",
        "if (s < v) return s <= shape.cuts[region];",
        "a region sees the verifier row of its own first token",
        "small_block",
    ),
    # ---- Argmax ----
    Mutation(
        _SCAN,
        "if (key > seen.best.key) {",
        "if (key >= seen.best.key) {",
        "of equal scores the last wins",
        "adversarial_rows and greedy and equal",
    ),
    Mutation(
        _SCAN,
        "if (top > seen.score || has_nan) {",
        "if (top > seen.score) {",
        "a NaN below the largest score is missed",
        "nan_anywhere",
    ),
    Mutation(
        _SCAN,
        "const std::uint32_t bits = at < end ? row[at] : Element::kNegativeInf;",
        "const std::uint32_t bits = at <= end ? row[at] : Element::kNegativeInf;",
        "one id past the end of a row",
        "vocabulary_sizes and greedy",
    ),
    Mutation(
        _SCAN,
        "x = warp_max(x);\n  if (lane_id() == 0) parts[warp_id()] = x;\n  __syncthreads();",
        "x = warp_max(x);\n  if (lane_id() == 0) parts[warp_id()] = x;\n",
        "no barrier before the warps' maxima are read",
        "slices_equal_torch and greedy",
    ),
    Mutation(
        _SCAN,
        "for (int w = 1; w < warp_count(); ++w) x = parts[w] > x ? parts[w] : x;\n  __syncthreads();",
        "for (int w = 1; w < warp_count(); ++w) x = parts[w] > x ? parts[w] : x;\n",
        "no barrier before the warps' maxima are overwritten",
        "correction_in_any_order",
    ),
    Mutation(
        _TASKS,
        "is_last = atomicInc(ticket, top) == top;",
        "is_last = atomicInc(ticket, top) == 0;",
        "the first block of a sequence commits",
        "slices_equal_torch and greedy",
    ),
    # ---- Noise and draws ----
    Mutation(
        _PHILOX,
        "PACKED_SS_HOST_DEVICE float uniform_to_gumbel(float u) { return -logf(-log1pf(-u)); }",
        "PACKED_SS_HOST_DEVICE float uniform_to_gumbel(float u) { return -logf(-logf(u)); }",
        "G of 1 - u",
        "every_call_shape and coupled",
    ),
    Mutation(
        _NOISE, "if (left > 2) out[2] = u.z;", "if (left > 3) out[2] = u.z;", "a row's last id has no noise", "equals_torch"
    ),
    Mutation(
        _DRAW,
        "kRejection ? Stream::kDraft : Stream::kTarget",
        "kRejection ? Stream::kTarget : Stream::kTarget",
        "drafts are drawn with the target's noise",
        "every_call_shape and rejection",
    ),
    Mutation(
        _TASKS,
        "const std::int32_t first = shape.verifier_rows > 0 ? n + verdict.matches + 1 : n;",
        "const std::int32_t first = shape.verifier_rows > 0 ? n + verdict.matches : n;",
        "a draft has the noise of the position before",
        "every_call_shape and rejection",
    ),
    Mutation(
        _DRAW,
        "const bool may_win = row.log_weight(top) + kLargestGumbel >= best.score;",
        "const bool may_win = row.log_weight(top) >= best.score;",
        "ids are passed over that could win",
        "every_call_shape and coupled",
    ),
    Mutation(
        _TASKS,
        "if (ends_at_failed && !is_finite_key(best.key)) atomicMin(&draft_count, j);",
        "if (ends_at_failed && !is_finite_key(best.key)) atomicMax(&draft_count, j);",
        "a draft goes on past a row without an argmax",
        "adversarial_rows and rejection and NaN",
    ),
    # ---- Rejection ----
    Mutation(
        _SCORES,
        "return static_cast<Value>(logf(u)) < log_p_d - log_q_d;",
        "return static_cast<Value>(logf(u)) < log_q_d - log_p_d;",
        "accepted with probability min(1, Q/p)",
        "every_branch_set and rejection",
    ),
    Mutation(
        _CORRECT,
        "static_cast<std::uint32_t>(Stream::kAccept)).x0);",
        "static_cast<std::uint32_t>(Stream::kTarget)).x0);",
        "the coin has the noise of a draw",
        "every_branch_set and rejection",
    ),
    Mutation(
        _SCORES,
        "return log_q < log_p ? log_p + log1pf(-expf(log_q - log_p)) : -INFINITY;",
        "return log_q < log_p ? log_p : -INFINITY;",
        "the residual is p where p > Q",
        "every_branch_set and rejection",
    ),
    Mutation(
        _CORRECT,
        "consider(left, residual(log_p, has_draft ? log_q[at] : -INFINITY) + gumbel, at);",
        "consider(left, residual(log_p, log_q[at]) + gumbel, at);",
        "the bonus token comes from a residual",
        "every_branch_set and rejection",
    ),
    Mutation(
        _DRAW, "if (token.key == 0) {", "if (token.key == 1) {", "no correction where nothing is left of p", "nothing_is_left"
    ),
    # ---- Temperature, top-k, top-p ----
    Mutation(
        _DRAW,
        "return score < kept_from ? -INFINITY : score - log_sum;",
        "return score <= kept_from ? -INFINITY : score - log_sum;",
        "the last token that is kept is not",
        "top_k_keeps_ties and float32",
    ),
    Mutation(
        _FILTER,
        "if (weight != 0 && before < most) {",
        "if (weight != 0 && before <= most) {",
        "top-k keeps one more",
        "top_k_keeps_ties and float32",
    ),
    Mutation(
        _FILTER,
        "if (weight != 0 && before < most) {",
        "if (weight != 0 && before + weight <= most) {",
        "top-p counts a token's own mass",
        "top_p_keeps_ties and float32",
    ),
    Mutation(
        _FILTER,
        "if (score < kept_from || score < negligible) return Packed{0};",
        "if (score < negligible) return Packed{0};",
        "top-p counts mass that top-k has removed",
        "top_p_in_random_rows",
    ),
    Mutation(
        _FILTER,
        "Packed before = above + block_sum_before(own, total);",
        "Packed before = block_sum_before(own, total);",
        "the second digit of a key forgets the first",
        "top_k_in_random_rows",
    ),
    # ---- Sums ----
    Mutation(_SUMS, "if (top == -INFINITY) return;", "if (top == INFINITY) return;", "-inf less -inf", "first_sees_nothing"),
    Mutation(
        _DRAW,
        "sum += sums[s] * __expf((key_score(key) - maximum) * inverse_temperature);",
        "sum += sums[s] * __expf(0.0f * inverse_temperature);",
        "sums of slices are not brought to one largest score",
        "slices_equal_torch and rejection",
    ),
    # ---- The ordered layout: rows ----
    Mutation(
        _CHOSEN,
        "result.is_wanted = result.row < chosen.range[2 * result.sequence + 1];",
        "result.is_wanted = result.row <= chosen.range[2 * result.sequence + 1];",
        "one row more than the device says",
        "draws_of_slices",
    ),
    Mutation(
        _CHOSEN,
        "return position < 0 ? 0u : static_cast<std::uint32_t>(position);",
        "return position < 0 ? 0u : static_cast<std::uint32_t>(position) + 1u;",
        "a row has the noise of the position after",
        "draws_of_slices",
    ),
    Mutation(
        _ARGMAX_ROWS,
        "args.probability[slot] = is_finite ? 1.0f / sum : 0.0f;",
        "args.probability[slot] = is_finite ? sum : 0.0f;",
        "the inverse of a probability",
        "argmax_of_slices",
    ),
    Mutation(
        _DRAW_ROWS,
        "args.ids[row.slot] = is_finite_key(token.key) ? token.id : -1;",
        "args.ids[row.slot] = token.id;",
        "a row without a finite maximum has a token",
        "draws_of_slices",
    ),
    Mutation(
        _VERIFY_ROWS,
        "args.draft[slot] >= 0, args.draft_log_q",
        "true, args.draft_log_q",
        "without a draft, a draw from a residual",
        "verdicts_on_slices",
    ),
    Mutation(
        _VERIFY_ROWS,
        "args.ids[slot] = j < h ? args.draft[slot] : j == h ? token : -1;",
        "args.ids[slot] = j < h ? args.draft[slot] : token;",
        "tokens after the first that is not the draft's",
        "verdicts_on_slices",
    ),
    # ---- The ordered layout: resolves, cache and rows of the next call ----
    Mutation(
        _TEAM,
        "if (w < warp_id()) result.before += parts[w];",
        "if (w + 1 < warp_id()) result.before += parts[w];",
        "a warp does not count the flags of the one before",
        "window_widths",
    ),
    Mutation(
        _TEAM,
        "x = parts[w] < x ? parts[w] : x;",
        "x = parts[w] > x ? parts[w] : x;",
        "the largest of the warps' minima",
        "window_widths",
    ),
    Mutation(
        _ORDERED,
        "whole = t >= s.prompt_length[i] && token_at(s, i, t) == stop[m];",
        "whole = token_at(s, i, t) == stop[m];",
        "end markers reach into the prompt",
        "test_ordered_resolve and stops_do_not_reach",
    ),
    Mutation(
        _ORDERED,
        "now.moved = moved < now.cache_len ? moved : now.cache_len;",
        "now.moved = now.cache_len;",
        "pairs beyond the end stay in the cache",
        "marker_after_a_gap",
    ),
    Mutation(
        _ORDERED,
        "if (failed >= 0 && failed < now.end) now.finish_reason = kError;",
        "if (failed >= 0) now.finish_reason = kError;",
        "a failed row beyond the end counts",
        "failed_row_beyond",
    ),
    Mutation(
        _ORDERED_PACK,
        "branch < 0 ? inside % shape.window : shape.cuts[branch];",
        "branch < 0 ? inside % shape.window : shape.cuts[branch] + 1;",
        "a branch sees the draft token after its cut",
        "rows_and_masks",
    ),
    Mutation(
        _PACK_ORDERED,
        "block == 0 ? rows.consulted + 2 * i : unused;",
        "block == 0 ? rows.consulted : unused;",
        "all sequences tell the first one's rows to consult",
        "rows_and_masks",
    ),
    Mutation(
        _COMPACT,
        "for (; slot < end; slot += kSlotsAtOnce) {",
        "for (; slot < end; slot += kSlotsAtOnce + 1) {",
        "every fifth pair stays behind",
        "pairs_move_whatever",
    ),
)


def obstacle(mutation: Mutation, sources: Path = build.CSRC) -> str:
    """Why a mutation cannot be made, in one sentence; empty where it can."""
    path = sources / mutation.file
    count = path.read_text(encoding="utf-8").count(mutation.right) if path.is_file() else 0
    return "" if count == 1 else f"{mutation.file} has it {count} times, not once: {mutation.right!r}."


class _Copy:
    """csrc in a temporary folder, with whatever is built from it."""

    def __init__(self, folder: Path) -> None:
        self.sources = folder / "csrc"
        shutil.copytree(build.CSRC, self.sources)
        self._environment = {name: value for name, value in os.environ.items() if name != "PACKED_SS_HOST_CUDA_SANITIZER"}
        self._environment |= {
            "PACKED_SS_HOST_CUDA_SOURCES": str(self.sources),
            "PACKED_SS_NATIVE": "0",
            "OMP_NUM_THREADS": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # these tests need none, and loading them takes a second each time
        }

    def failure(self, tests: str) -> str:
        """Builds, and runs tests up to the first that fails, which is returned; empty where all pass.

        Raises RuntimeError, with the end of the output, where it does not come to a verdict.
        """
        self._run(["-c", "from tests.host_cuda import build; build.library('kernels')"], accepted=(0,))
        arguments = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-k", f"({tests}) and {ON_HOST}", *TEST_FILES]
        done = self._run(arguments, accepted=(0, 1))
        if done.returncode == 0:
            if not re.search(r"\b[1-9]\d* passed", done.stdout):
                raise RuntimeError(f"no test ran.\n{done.stdout}")
            return ""
        found = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
        if found is None:
            raise RuntimeError(f"no test has failed.\n{done.stdout}")
        return re.sub(r"^[^\[]*/", "", found[1])

    def _run(self, arguments: Sequence[str], accepted: tuple[int, ...]) -> subprocess.CompletedProcess[str]:
        try:
            done = subprocess.run(
                [sys.executable, *arguments],
                cwd=build.ROOT,
                env=self._environment,
                text=True,
                errors="replace",
                capture_output=True,
                timeout=TIME_LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"no end within {TIME_LIMIT_S} s.") from None
        if done.returncode not in accepted:
            raise RuntimeError(f"exit code {done.returncode}.\n{(done.stdout + done.stderr)[-3000:]}")
        return done


def _verdict(copy: _Copy, mutation: Mutation) -> tuple[bool, str]:
    """Whether a mutation is caught, and by what, or what happened instead."""
    if problem := obstacle(mutation, copy.sources):
        return False, problem
    path = copy.sources / mutation.file
    original = path.read_text(encoding="utf-8")
    path.write_text(original.replace(mutation.right, mutation.wrong), encoding="utf-8")
    try:
        test = copy.failure(mutation.tests)
    except RuntimeError as error:
        return False, str(error)
    finally:
        path.write_text(original, encoding="utf-8")
    return bool(test), test or f"SURVIVED: no test of {mutation.tests!r} fails."


def main() -> int:
    """Makes the mutations one by one, with a line for each; returns the exit code."""
    words = sys.argv[1:]
    chosen = [m for m in MUTATIONS if not words or any(word in f"{m.file} {m.breaks}" for word in words)]
    start = time.monotonic()
    caught = 0
    try:
        build.compiler()
    except build.NotBuilt as reason:
        print(f"skipped: {reason}")
        return 0
    with tempfile.TemporaryDirectory(prefix="packed_ss_mutations_") as folder:
        copy = _Copy(Path(folder))
        try:
            failed = copy.failure(" or ".join(f"({tests})" for tests in dict.fromkeys(m.tests for m in chosen)))
        except RuntimeError as error:
            failed = str(error)
        if failed:
            print(f"the sources as they are do not pass: {failed}")
            return 1
        print(f"{time.monotonic() - start:6.1f} s  the sources as they are pass", flush=True)
        for mutation in chosen:
            begin = time.monotonic()
            is_caught, how = _verdict(copy, mutation)
            caught += is_caught
            print(
                f"{time.monotonic() - begin:6.1f} s  {'caught' if is_caught else 'NOT CAUGHT'}  {mutation.breaks} "
                f"({mutation.file}): {how}",
                flush=True,
            )
    print(f"{caught} of {len(chosen)} mutations are caught, in {time.monotonic() - start:.0f} s")
    return int(caught < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
