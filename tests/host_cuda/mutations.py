"""`make mutations`: does a test notice when one line of a CUDA kernel is wrong?

csrc is copied and MUTATIONS are made in the copy, one at a time. The CUDA sources are built for the host from it, and tests of
the backend "cuda-on-host" run against them: they must pass before, and fail after. Words on the command line choose the
mutations whose file or description has one of them. It exits with 1 if a mutation survives, cannot be made, does not compile,
or breaks more than a test can say (no end, a crash).
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

TEST_FILES = ("tests/host_cuda/test_operators_on_host.py",
              "tests/host_cuda/test_uniform_noise.py")  # fmt: skip
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


_VIEWS = "include/packed_ss/views.h"
_BLOCK = "include/packed_ss/advance_block.h"
_ORDERED = "include/packed_ss/advance_ordered.h"
_PACK = "include/packed_ss/pack_ordered.h"
_PHILOX = "include/packed_ss/philox.h"
_SCORES = "include/packed_ss/scores.h"
_PASSES = "cuda/row_passes.cuh"
_FILTERS = "cuda/row_filters.cuh"
_STATISTICS = "cuda/row_statistics.cuh"
_DRAW = "cuda/draw.cuh"
_ARGMAX_ROWS = "cuda/argmax_rows.cu"
_DRAW_ROWS = "cuda/draw_rows.cu"
_VERIFY_ROWS = "cuda/verify_rows.cu"
_NOISE = "cuda/uniform_noise.cu"
_TEAM = "cuda/block_team.cuh"
_COMPACT = "cuda/compact_cache.cu"

MUTATIONS = (
    # ---- The block layout: accept, truncate, append, retain, and the rows of the next call ----
    Mutation(
        _BLOCK,
        "if (t < state.prompt_length[i] || tokens[t] != stop[m]) return false;",
        "if (t < 0 || tokens[t] != stop[m]) return false;",
        "stops reach into the prompt",
        "stops_do_not_reach",
    ),
    Mutation(
        _BLOCK,
        "while (advance < most && !stopped) {",
        "while (advance < most) {",
        "tokens after a stop are kept",
        "block_states",
    ),
    Mutation(
        _BLOCK,
        "const std::int32_t room = end > n ? end - n : 0;",
        "const std::int32_t room = end > n ? end - n + 1 : 1;",
        "one token more than the limit",
        "block_states",
    ),
    Mutation(
        _BLOCK,
        "const std::int32_t accepted = failed ? matches : matches + 1;",
        "const std::int32_t accepted = matches + 1;",
        "a row without an argmax appends a token",
        "block_states",
    ),
    Mutation(
        _BLOCK,
        "const bool was_running = state.finish_reason[i] == kRunning;",
        "const bool was_running = state.finish_reason[i] >= kRunning;",
        "a finished sequence goes on",
        "block_states",
    ),
    Mutation(
        _BLOCK,
        "const bool goes_on = was_running && state.finish_reason[i] == kRunning;",
        "const bool goes_on = was_running;",
        "a sequence that finishes keeps a draft",
        "block_states",
    ),
    Mutation(
        _BLOCK,
        "if (draft[j] < 0 || !(accepted",
        "if (!(accepted",
        "a draft that is not there is accepted",
        "block_states",
    ),
    Mutation(
        _BLOCK,
        "shape.cuts[branch + 1] <= matches) ++branch;",
        "shape.cuts[branch + 1] <= matches + 1) ++branch;",
        "the branch is chosen by a, not h",
        "block_states",
    ),
    Mutation(
        _BLOCK,
        "const std::int32_t inside = advance - shape.cuts[branch] + 1 - shape.shift;",
        "const std::int32_t inside = advance - shape.cuts[branch] - shape.shift;",
        "retention begins one row early",
        "block_states",
    ),
    Mutation(
        _BLOCK,
        "state.retained[at] = is_open && drawn_later ?",
        "state.retained[at] = is_open ?",
        "a draft that is known is drawn again",
        "block_states",
    ),
    Mutation(
        _BLOCK,
        "if (was_running) state.order[at] = state.length[i] + j;",
        "if (was_running) state.order[at] = state.length[i] + 1 + j;",
        "the draft is for the positions after",
        "block_states",
    ),
    Mutation(
        _BLOCK,
        "if (state.draft[at] < 0 && !(pending && state.retained[at] >= 0)) kappa = j;",
        "if (state.draft[at] < 0 && !(pending && state.retained[at] < 0)) kappa = j;",
        "rows of a draft that is drawn later are not asked for",
        "block_states",
    ),
    Mutation(
        _BLOCK,
        "is_asked = entry <= kappa && inside >= (v > 0 ? 2 : 1);",
        "is_asked = entry <= kappa && inside >= 1;",
        "a region proposes the verifier's token",
        "block_states",
    ),
    Mutation(
        _BLOCK,
        "rows.positions[at] = last + static_cast<std::int32_t>(offset);",
        "rows.positions[at] = last + 1 + static_cast<std::int32_t>(offset);",
        "the rows' positions are one late",
        "block_states",
    ),
    Mutation(
        _BLOCK,
        "} else if (!is_mask && entry <= state.width && ",
        "} else if (!is_mask && entry < state.width && ",
        "the last draft token is MASK in the rows",
        "block_states",
    ),
    # ---- Which rows, and how they are processed ----
    Mutation(
        _VIEWS,
        "return row < logit_rows ? row : -1;",
        "return row <= logit_rows ? row : -1;",
        "a row that the logits have not",
        "argmax_of_splits",
    ),
    Mutation(
        _VIEWS,
        "if (positions != nullptr && positions[i * position_stride + j] < 0) return -1;",
        "if (positions != nullptr && positions[i * position_stride + j] <= 0) return -1;",
        "nobody asks for position 0",
        "argmax_of_splits",
    ),
    Mutation(
        _VIEWS,
        "return !(temperature >= kGreedyBelow); }",
        "return temperature < kGreedyBelow; }",
        "a temperature that is NaN is not greedy",
        "draws_of_splits and otherwise",
    ),
    Mutation(
        _VIEWS,
        "(top_k > 0 && top_k < vocab_size)",
        "(top_k > 1 && top_k < vocab_size)",
        "top-k of 1 filters nothing",
        "draws_of_splits and top-k",
    ),
    Mutation(
        _STATISTICS,
        "return vocab_size - begin(split) < size ? vocab_size : begin(split) + size;",
        "return vocab_size - begin(split) < size ? vocab_size : begin(split) + size - 1;",
        "the last id of a split is passed over",
        "one_token_in_any_split and 2047",
    ),
    Mutation(
        _STATISTICS,
        "return settings.filters(vocab_size) ? 1 : splits.count;",
        "return settings.filters(vocab_size) ? splits.count : splits.count;",
        "of a filtered row there are results that nobody wrote",
        "replays",
    ),
    Mutation(
        _STATISTICS,
        "row.is_greedy = settings.is_greedy();",
        "row.is_greedy = false;",
        "a greedy sequence draws",
        "draws_of_splits and greedy",
    ),
    Mutation(
        _STATISTICS,
        "row.kept_from = settings.filters(vocab_size) ? statistics.kept_from[entry] : -INFINITY;",
        "row.kept_from = -INFINITY;",
        "draws do not know what is filtered",
        "draws_of_splits and top",
    ),
    # ---- Argmax ----
    Mutation(
        _PASSES,
        "if (key > seen.best.key) {",
        "if (key >= seen.best.key) {",
        "of equal scores the last wins",
        "ties_across",
    ),
    Mutation(
        _PASSES,
        "if (top > seen.score || has_nan) {",
        "if (top > seen.score) {",
        "a NaN below the largest score is missed",
        "nan_anywhere",
    ),
    Mutation(
        _PASSES,
        "const std::uint32_t bits = at < end ? row[at] : Element::kNegativeInf;",
        "const std::uint32_t bits = at <= end ? row[at] : Element::kNegativeInf;",
        "one id past the end of a row",
        "argmax_of_splits",
    ),
    Mutation(
        _PASSES,
        "x = warp_max(x);\n  if (lane_id() == 0) of_warp[warp_id()] = x;\n  __syncthreads();",
        "x = warp_max(x);\n  if (lane_id() == 0) of_warp[warp_id()] = x;\n",
        "no barrier before the warps' maxima are read",
        "argmax_of_splits",
    ),
    Mutation(
        _PASSES,
        "for (int w = 1; w < warp_count(); ++w) x = of_warp[w] > x ? of_warp[w] : x;\n  __syncthreads();",
        "for (int w = 1; w < warp_count(); ++w) x = of_warp[w] > x ? of_warp[w] : x;\n",
        "no barrier before the warps' maxima are overwritten",
        "correction_in_any_order",
    ),
    Mutation(
        _ARGMAX_ROWS,
        "probability = 1.0f / sum;",
        "probability = sum;",
        "the inverse of a probability",
        "argmax_of_splits",
    ),
    Mutation(
        _ARGMAX_ROWS,
        "if (task_of_entry(args.list, entry, 0).row >= 0) {",
        "if (task_of_entry(args.list, entry, 0).row >= -1) {",
        "an entry that nobody asks for has a token",
        "argmax_of_splits",
    ),
    Mutation(
        _SCORES,
        "return key != 0 && key < static_cast<Bits>(kInf + kInf);",
        "return key != 0 && key <= static_cast<Bits>(kInf + kInf);",
        "+inf is a finite score",
        "argmax_of_splits",
    ),
    Mutation(
        _SCORES,
        "return x != x ? ~std::uint32_t{0} : bits_key<std::uint32_t, kFloat32Inf>(float_bits(x));",
        "return x != x ? 0 : bits_key<std::uint32_t, kFloat32Inf>(float_bits(x));",
        "a NaN is below everything",
        "nan_anywhere or nan_of_either_sign",
    ),
    # ---- Sums ----
    Mutation(
        _STATISTICS,
        "if (top == -INFINITY) return;",
        "if (top == INFINITY) return;",
        "-inf less -inf",
        "first_sees_nothing",
    ),
    Mutation(
        _STATISTICS,
        "sum += sums[s] * __expf((key_score(key) - maximum) * inverse_temperature);",
        "sum += sums[s] * __expf((maximum - maximum) * inverse_temperature);",
        "sums of splits are not brought to one largest score",
        "draws_of_splits and plain",
    ),
    # ---- Tickets ----
    Mutation(
        _STATISTICS,
        "is_last = atomicInc(ticket, top) == top;",
        "is_last = atomicInc(ticket, top) == 0;",
        "the first block of an entry writes its token",
        "draws_of_splits and plain",
    ),
    Mutation(
        _STATISTICS,
        "if (task.split == 0 && threadIdx.x == 0) statistics.tickets[task.entry] = 0;",
        "if (task.split < 0 && threadIdx.x == 0) statistics.tickets[task.entry] = 0;",
        "tickets are not zeroed",
        "replays",
    ),
    # ---- Top-k and top-p ----
    Mutation(
        _FILTERS,
        "if (weight != 0 && before < most) {",
        "if (weight != 0 && before <= most) {",
        "top-k keeps one more",
        "draws_of_splits and top-k",
    ),
    Mutation(
        _FILTERS,
        "if (weight != 0 && before < most) {",
        "if (weight != 0 && before + weight <= most) {",
        "top-p counts a token's own mass",
        "draws_of_splits and top-p",
    ),
    Mutation(
        _FILTERS,
        "if (score < kept_from || score < negligible) return Packed{0};",
        "if (score < negligible) return Packed{0};",
        "top-p counts mass that top-k has removed",
        "draws_of_splits and both",
    ),
    Mutation(
        _FILTERS,
        "Packed before = above + block_sum_before(own, total);",
        "Packed before = block_sum_before(own, total);",
        "the second digit of a key forgets the first",
        "draws_of_splits and top-k",
    ),
    Mutation(
        _FILTERS,
        "(before + low < before ? 1u : 0u)",
        "(before + low < before ? 0u : 0u)",
        "masses lose their carry",
        "draws_of_splits and top-p",
    ),
    Mutation(
        _FILTERS,
        "if (lane_id() >= offset) sum += other;",
        "if (lane_id() > offset) sum += other;",
        "sums of bins before leave one out",
        "draws_of_splits and top",
    ),
    Mutation(
        _FILTERS,
        "if (score >= kept_from) sum += __expf(score);",
        "if (score > kept_from) sum += __expf(score);",
        "the sum leaves out the last token that is kept",
        "draws_of_splits and top-k",
    ),
    Mutation(
        _STATISTICS,
        "return score < kept_from ? -INFINITY : score - log_sum;",
        "return score <= kept_from ? -INFINITY : score - log_sum;",
        "the last token that is kept is not",
        "draws_of_splits and top-k",
    ),
    # ---- Noise and draws ----
    Mutation(
        _PHILOX,
        "PACKED_SS_HOST_DEVICE float uniform_to_gumbel(float u) { return -logf(-log1pf(-u)); }",
        "PACKED_SS_HOST_DEVICE float uniform_to_gumbel(float u) { return -logf(-logf(u)); }",
        "G of 1 - u",
        "draws_of_splits and plain",
    ),
    Mutation(
        _PHILOX,
        "const float u = static_cast<float>(x) * 0x1p-32f + 0x1p-33f;",
        "const float u = static_cast<float>(x) * 0x1p-32f + 0x1p-34f;",
        "u is not in the middle of its step",
        "test_equals_torch",
    ),
    Mutation(
        _PHILOX,
        "{position, block, stream, 0u}",
        "{position, block, 0u, stream}",
        "streams are another word of the counter",
        "test_equals_torch",
    ),
    Mutation(
        _PHILOX,
        "key.high += 0xBB67AE85u;",
        "key.high += 0xBB67AE84u;",
        "another key schedule",
        "test_equals_torch",
    ),
    Mutation(
        _NOISE,
        "if (left > 2) out[2] = u.z;",
        "if (left > 3) out[2] = u.z;",
        "a row's last id has no noise",
        "test_equals_torch",
    ),
    Mutation(
        _DRAW,
        "const bool may_win = row.log_weight(top) + kLargestGumbel >= best.score;",
        "const bool may_win = row.log_weight(top) >= best.score;",
        "ids are passed over that could win",
        "draws_of_splits and plain",
    ),
    Mutation(
        _DRAW,
        "if (log_weight[k] - __logf(u) + kLogSlack < best.score) continue;",
        "if (log_weight[k] + __logf(u) + kLogSlack < best.score) continue;",
        "the bound on G is a bound on -G",
        "draws_of_splits and plain",
    ),
    Mutation(
        _DRAW,
        "const std::uint32_t low = lane == 0 ? words[0] : words[1];",
        "const std::uint32_t low = lane == 1 ? words[0] : words[1];",
        "the argmax has the noise of its neighbour",
        "one_token_in_any_split or draws_of_splits and both",
    ),
    Mutation(
        _DRAW_ROWS,
        "args.list.position(task.sequence, task.j), args.stream};",
        "args.list.position(task.sequence, task.j) + 1u, args.stream};",
        "a row has the noise of the position after",
        "draws_of_splits and plain",
    ),
    Mutation(
        _DRAW_ROWS,
        "args.list.position(task.sequence, task.j), args.stream};",
        "args.list.position(task.sequence, task.j), 0u};",
        "all draws have the drafts' noise",
        "draws_of_splits and plain",
    ),
    Mutation(
        _DRAW_ROWS,
        "args.ids[task.entry] = is_finite ? token.id : -1;",
        "args.ids[task.entry] = token.id;",
        "a row without a finite maximum has a token",
        "draws_of_splits and plain",
    ),
    Mutation(
        _DRAW_ROWS,
        "if (is_finite && args.next_ids != nullptr) {",
        "if (args.next_ids != nullptr) {",
        "a token that is none is stored for the next call",
        "draws_of_splits and plain",
    ),
    Mutation(
        _DRAW_ROWS,
        "args.next_column + task.j] = token.id;",
        "task.j] = token.id;",
        "tokens are stored from the first row on",
        "draws_of_splits and plain",
    ),
    Mutation(
        _DRAW_ROWS,
        "args.ids[task.entry] = -1;\n    return;",
        "args.ids[task.entry] = 0;\n    return;",
        "an entry that nobody asks for has token 0",
        "draws_of_splits and plain",
    ),
    Mutation(
        _DRAW_ROWS,
        "stored[id] = id == argmax ? 0.0f : -INFINITY;",
        "stored[id] = id == argmax ? 1.0f : -INFINITY;",
        "greedy log Q is not normalised",
        "draws_of_splits and greedy",
    ),
    # ---- Rejection ----
    Mutation(
        _SCORES,
        "return static_cast<Value>(logf(u)) < log_p_d - log_q_d;",
        "return static_cast<Value>(logf(u)) < log_q_d - log_p_d;",
        "accepted with probability min(1, Q/p)",
        "verdicts_on_splits and plain",
    ),
    Mutation(
        _SCORES,
        "return log_q < log_p ? log_p + log1pf(-expf(log_q - log_p)) : -INFINITY;",
        "return log_q < log_p ? log_p : -INFINITY;",
        "the residual is p where p > Q",
        "verdicts_on_splits and plain or correction_in_any_order",
    ),
    Mutation(
        _VERIFY_ROWS,
        "static_cast<std::uint32_t>(Stream::kAccept)",
        "static_cast<std::uint32_t>(Stream::kTarget)",
        "the coin has the noise of a draw",
        "verdicts_on_splits and plain",
    ),
    Mutation(
        _VERIFY_ROWS,
        "return p.is_finite && d == p.argmax;",
        "return p.is_finite && d >= 0;",
        "a greedy sequence accepts everything",
        "verdicts_on_splits and greedy",
    ),
    Mutation(
        _VERIFY_ROWS,
        "list.draft_token(i, h) >= 0 ? args.draft_log_q",
        "h < list.draft_width ? args.draft_log_q",
        "without a draft, a draw from a residual",
        "verdicts_on_splits and plain",
    ),
    Mutation(
        _VERIFY_ROWS,
        "if (token.key == 0) token =",
        "if (token.key == 1) token =",
        "no correction where nothing is left of p",
        "nothing_is_left",
    ),
    Mutation(
        _VERIFY_ROWS,
        "if (j < entries && lane_id() == 0) atomicMin(&first, j);",
        "if (j < entries && lane_id() == 0) atomicMax(&first, j);",
        "nothing is ever rejected",
        "verdicts_on_splits and plain",
    ),
    Mutation(
        _VERIFY_ROWS,
        "j < h ? list.draft_token(i, j) : j == h ? token : -1;",
        "j < h ? list.draft_token(i, j) : token;",
        "tokens after the first that is not the draft's",
        "verdicts_on_splits and plain",
    ),
    Mutation(
        _VERIFY_ROWS,
        "args.accepted[at] = j < h;",
        "args.accepted[at] = j <= h;",
        "the correction counts as accepted",
        "verdicts_on_splits and plain",
    ),
    Mutation(
        _VERIFY_ROWS,
        "!p.is_finite ? -1 : p.is_greedy",
        "!p.is_finite ? 0 : p.is_greedy",
        "a row without a finite maximum is corrected",
        "without_a_finite",
    ),
    # ---- Teams ----
    Mutation(
        _TEAM,
        "if (w < warp_id()) result.before += of_warp[w];",
        "if (w + 1 < warp_id()) result.before += of_warp[w];",
        "a warp does not count the flags of the one before",
        "ordered_states",
    ),
    Mutation(
        _TEAM,
        "x = of_warp[w] < x ? of_warp[w] : x;",
        "x = of_warp[w] > x ? of_warp[w] : x;",
        "the largest of the warps' minima",
        "ordered_states",
    ),
    # ---- The ordered layout ----
    Mutation(
        _ORDERED,
        "matches = t >= s.prompt_length[i] && token_at(s, i, t) == stop[m];",
        "matches = token_at(s, i, t) == stop[m];",
        "stops reach into the prompt, in any order",
        "stops_do_not_reach",
    ),
    Mutation(
        _ORDERED,
        "now.first_moved = dropped < now.cache_len ? dropped : now.cache_len;",
        "now.first_moved = now.cache_len;",
        "pairs beyond the end stay in the cache",
        "ordered_states",
    ),
    Mutation(
        _ORDERED,
        "if (failed >= 0 && failed < now.end) now.finish_reason = kError;",
        "if (failed >= 0) now.finish_reason = kError;",
        "a failed row beyond the end counts",
        "ordered_states",
    ),
    Mutation(
        _ORDERED,
        "now.stopped > 0 ? kStop : kLength;",
        "now.stopped > 0 ? kLength : kStop;",
        "a stop is a length",
        "ordered_states",
    ),
    Mutation(
        _ORDERED,
        "retains && k < u - advance ? first + advance + k : -1;",
        "retains && k < u - advance ? first + k : -1;",
        "the next draft is drawn from the rows of this one",
        "ordered_states",
    ),
    Mutation(
        _ORDERED,
        "shape.cuts[branch + 1] <= h) ++branch;",
        "shape.cuts[branch + 1] < h) ++branch;",
        "the branch of a cut before",
        "ordered_states",
    ),
    Mutation(
        _ORDERED,
        "(scratch.score[j] == score && j < k)",
        "(scratch.score[j] == score && j > k)",
        "of equal confidence the rightmost is first",
        "ordered_states",
    ),
    Mutation(
        _ORDERED,
        "if (corrects && s.waiting_width > 0 && team.lane() == 0)",
        "if (consults && s.waiting_width > 0 && team.lane() == 0)",
        "a failed row waits for the cache",
        "ordered_states",
    ),
    Mutation(
        _ORDERED,
        "(probability[r] >= threshold || r == likeliest)",
        "(probability[r] > threshold || r == likeliest)",
        "the native threshold is not reached by itself",
        "ordered_states and native",
    ),
    Mutation(
        _ORDERED,
        "(probability[r] >= threshold || r == likeliest)",
        "(probability[r] >= threshold || r == likeliest + 1)",
        "the native decoder takes the one after the likeliest",
        "ordered_states and native",
    ),
    Mutation(
        _PACK,
        "branch < 0 ? inside % shape.window : shape.cuts[branch];",
        "branch < 0 ? inside % shape.window : shape.cuts[branch] + 1;",
        "a branch sees the draft token after its cut",
        "ordered_states",
    ),
    Mutation(
        _PACK,
        "if (rank <= bits.leading) predicts = target.position;",
        "if (rank < bits.leading) predicts = target.position;",
        "nobody asks for the row after the draft",
        "ordered_states",
    ),
    Mutation(
        _PACK,
        "if (cut <= bits.leading && rank >= cut + shape.verifies)",
        "if (cut <= bits.leading && rank >= cut)",
        "a branch proposes the verifier's token, in any order",
        "ordered_states",
    ),
    Mutation(
        _PACK,
        "(s.draft[base + r] >= 0 || (pending && s.retained[base + r] >= 0))",
        "(s.draft[base + r] >= 0 || pending)",
        "a draft that nobody draws counts",
        "ordered_states",
    ),
    Mutation(
        _PACK,
        "s.cache_len[i] + static_cast<std::int32_t>(target.tail_slot);",
        "s.cache_len[i] + 1 + static_cast<std::int32_t>(target.tail_slot);",
        "rows leave a slot of the cache out",
        "ordered_states",
    ),
    Mutation(
        _COMPACT,
        "for (; slot < end; slot += kSlotsAtOnce) {",
        "for (; slot < end; slot += kSlotsAtOnce + 1) {",
        "every fifth pair stays behind",
        "pairs_move_whatever",
    ),
    Mutation(
        _COMPACT,
        "const bool is_value = rest % 2 != 0;",
        "const bool is_value = rest % 2 == 2;",
        "values stay where they are",
        "pairs_move_whatever",
    ),
)


class NotCompiled(RuntimeError):
    """A mutation that says nothing about the tests."""


def misfit(mutation: Mutation, sources: Path = build.CSRC) -> str:
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

        Raises RuntimeError, with the end of the output, where it does not come to a verdict: NotCompiled where the build fails.
        """
        build_it = "from tests.host_cuda import build; build.library('kernels')"
        if (built := self._run(["-c", build_it], accepted=(0, 1))).returncode:
            raise NotCompiled(built.stderr[-3000:])
        arguments = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-k", tests, *TEST_FILES]
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


def _verdict(copy: _Copy, mutation: Mutation) -> tuple[str, str]:
    """What became of a mutation, "caught" or something else, and the test that caught it, or what happened instead."""
    if problem := misfit(mutation, copy.sources):
        return "NOT MADE", problem
    path = copy.sources / mutation.file
    original = path.read_text(encoding="utf-8")
    path.write_text(original.replace(mutation.right, mutation.wrong), encoding="utf-8")
    try:
        test = copy.failure(mutation.tests)
    except NotCompiled as error:
        return "DOES NOT COMPILE", str(error)
    except RuntimeError as error:
        return "NO VERDICT", str(error)
    finally:
        path.write_text(original, encoding="utf-8")
    return ("caught", test) if test else ("SURVIVED", f"no test of {mutation.tests!r} fails.")


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
            kind, how = _verdict(copy, mutation)
            caught += kind == "caught"
            print(f"{time.monotonic() - begin:6.1f} s  {kind}  {mutation.breaks} ({mutation.file}): {how}", flush=True)
    print(f"{caught} of {len(chosen)} mutations are caught, in {time.monotonic() - start:.0f} s")
    return int(caught < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
