"""argmax_rows, draw_rows and verify_rows: rows of logits to tokens, against the reference in float64."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from .backends import BACKENDS, DTYPES, Backend
from .row_cases import (
    BEFORE,
    DRAFT,
    FILTERS,
    GREEDY,
    ROWS,
    TARGET,
    Setting,
    adversarial,
    as_int,
    check_argmax,
    check_draws,
    check_verdicts,
    drafted,
    drawn_by_noise,
    log_probabilities_by_sorting,
    logits_of,
    sampling,
    view,
)

VOCAB_SIZES = (1, 2, 5, 7, 37, 64, 65, 111, 1000, 1023, 1025)
SEEDS = (3, -(2**63), 2**62 + 11)
#: Of four entries of three sequences with seven rows each: rows in any order, none, and beyond the last; and positions.
LISTED = as_int([[2, -1, 3, 7], [0, 0, 6, 5], [3, 4, 2**31 - 1, 6]])
POSITIONS = view(as_int([[8, 9, 10, 11], [0, 2**31 - 1, -1, 3], [5, 3, 9, 4]]))
#: Those of the leading rows, of which the last few are not asked for.
VERIFIED = view(as_int([[4, 5, 6, 7], [2**31 - 1, 2, 3, -1], [9, 7, -1, 8]]))


def drafts_like(ids: Tensor, vocab: int) -> Tensor:
    """Drafts of which the first one, all, and none are the tokens, as part of a longer tensor and shorter than the entries."""
    draft = ids[:, :-1].clone()
    draft[0, 1] = (draft[0, 1] + 1) % vocab if vocab > 1 else -1
    draft[2, 0] = -1
    return view(draft)


@pytest.mark.parametrize("vocab", VOCAB_SIZES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_argmax_and_its_probability(backend: Backend, dtype: torch.dtype, vocab: int) -> None:
    """Of all rows, of listed rows, and of leading rows that are drafts as far as they agree."""
    backend.skip_most(DTYPES.index(dtype) + VOCAB_SIZES.index(vocab), 4)
    logits = logits_of(vocab, 3, 7, vocab, dtype)
    if vocab > 9:
        logits[0, 2, [vocab // 3, vocab - 1]] = 30.0
    check_argmax(backend, logits)
    check_argmax(backend, logits, 4, LISTED)
    check_argmax(backend, logits, 4, LISTED, POSITIONS)
    check_argmax(backend, logits, 4, None, VERIFIED, drafts_like(logits[:, :4].argmax(-1).int(), vocab))


@pytest.mark.parametrize("vocab", [32000, 131072, 151936, 262144])
def test_argmax_of_long_rows(backend: Backend, vocab: int) -> None:
    """The largest entry at both ends, and a tie across the row."""
    for ids in backend.some(([vocab // 3, vocab - 5], [0], [vocab - 1])):
        logits = logits_of(1, 1, 1, vocab, torch.bfloat16)
        logits[..., ids] = 100.0
        check_argmax(backend, logits)


@pytest.mark.parametrize("vocab", VOCAB_SIZES)
@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_draws(backend: Backend, dtype: torch.dtype, filters: str, vocab: int) -> None:
    """Of listed rows for a draft, which the next call shows, and of leading rows that are drafts as far as they agree."""
    k = DTYPES.index(dtype) + VOCAB_SIZES.index(vocab) + list(FILTERS).index(filters)
    backend.skip_most(k, 8)
    logits, settings = logits_of(vocab, 3, 7, vocab, dtype), [FILTERS[filters]] * 3
    ids, _ = check_draws(BACKENDS[0], logits, VERIFIED, SEEDS, settings, TARGET, stores=False)
    calls: list[tuple[Tensor, int, Tensor | None, Tensor | None, bool, int | None]] = [
        (POSITIONS, DRAFT, LISTED, None, True, 0),
        (VERIFIED, TARGET, None, drafts_like(ids, vocab), vocab % 2 == 0, None),
        (POSITIONS, TARGET, LISTED, None, True, 5),
        (VERIFIED, TARGET, None, None, False, None),
    ]
    for positions, stream, rows, draft, stores, column in backend.some(calls[k // 8 % 4 :] + calls[: k // 8 % 4]):
        check_draws(
            backend, logits, positions, SEEDS, settings, stream, rows, draft, stores=stores, next_column=column
        )  # fmt: skip


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("vocab", [32000, 151936])
def test_draws_of_long_rows(backend: Backend, vocab: int, filters: str) -> None:
    """The argmax of log p + G by brute force in float64, and the stored log Q."""
    if backend.slow and (vocab, filters) in ((151936, "top-p"), (151936, "both")):
        pytest.skip("slow: many tokens in question of a long row")
    logits, positions, setting = logits_of(3, 1, 2, vocab, scale=1.0), as_int([[12, 13]]), FILTERS[filters]
    log_p = log_probabilities_by_sorting(logits, setting)
    for stream in backend.some((DRAFT, TARGET)):
        ids, log_q = (torch.zeros(1, 2, *rest, dtype=dtype) for rest, dtype in (((), torch.int32), ((vocab,), torch.float32)))
        backend("draw_rows", logits, None, positions, None, *sampling([5], [setting]), stream, ids, log_q, None, 0)
        assert ids.tolist() == drawn_by_noise(log_p, [5], positions, stream)
        torch.testing.assert_close(log_q.double(), log_p, atol=2e-5, rtol=0)


@pytest.mark.parametrize("vocab", VOCAB_SIZES)
@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_verdicts(backend: Backend, dtype: torch.dtype, filters: str, vocab: int) -> None:
    """More entries than drafts, sequences with fewer drafts, and entries that nobody asks for."""
    backend.skip_most(DTYPES.index(dtype) + VOCAB_SIZES.index(vocab) + list(FILTERS).index(filters), 8)
    matches, settings = set(), [FILTERS[filters]] * 4
    positions = view(as_int([[4, 5, 6, 7], [1, 2, -1, 4], [9, 7, 8, 2**31 - 1], [-1, 3, 4, 5]]))
    for seed, agree in backend.some(((0, 0.8), (1, 0.95), (2, 0.3))):
        logits = logits_of(seed + vocab, 4, 6, vocab, dtype)
        draft, log_q = drafted(logits, 3, settings, agree, seed=seed)
        draft[2, 2] = -1
        seeds = [977 * (k + 1) + seed for k in range(4)]
        matches |= {*check_verdicts(backend, logits, positions, seeds, settings, view(draft), log_q)[:3]}
    assert backend.slow or vocab < 3 or (0 in matches and max(matches) > 1)


def test_every_draft_accepted_and_the_first_token_where_there_is_none(backend: Backend) -> None:
    logits, positions = logits_of(3, 2, 4, 9), as_int([[4, 5, 6, 7], [4, 5, 6, -1]])
    draft, log_q = as_int([[1, 2, 3, 4], [5, -1, 6, 7]]), torch.full((2, 4, 9), -30.0)  # u < p / Q, whatever u
    assert check_verdicts(backend, logits, positions, [1, 2], [Setting()] * 2, draft, log_q) == [4, 1]


@pytest.mark.parametrize("filters", FILTERS)
def test_the_correction_is_drawn_from_p_where_nothing_is_left(backend: Backend, filters: str) -> None:
    """Of [p - Q]+ for Q = e^9 p: no coin here is below e^-9, so the first draft token of each sequence is rejected."""
    n, setting = 2 if backend.slow else 8, FILTERS[filters]
    logits, positions, seeds = logits_of(4, n, 3, 111, scale=1.0), as_int([[3 + k, 4, 5] for k in range(n)]), list(range(n))
    draft, _ = drafted(logits, 3, [setting] * n, 1.0)
    log_p = log_probabilities_by_sorting(logits, setting)
    ids, accepted = torch.zeros(n, 3, dtype=torch.int32), torch.ones(n, 3, dtype=torch.int32)
    backend("verify_rows", logits, positions, *sampling(seeds, [setting] * n), draft, (log_p + 9).float(), ids, accepted)
    assert accepted.sum() == 0
    assert ids[:, :1].tolist() == drawn_by_noise(log_p[:, :1], seeds, positions[:, :1], TARGET)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("setting", [Setting(0.7), Setting(0.7, 9, 0.9), GREEDY], ids=["plain", "both", "greedy"])
def test_adversarial_rows(backend: Backend, row: str, setting: Setting) -> None:
    """One of the rows in question, at each place: the others are what they would be, and a verdict stops there at the latest."""
    # Where float32 makes ties of neighbours, or none of ties, a filter keeps others than the reference.
    if setting.top_k and row in ("huge", "very negative", "denormal", "one of -inf") and not setting.greedy:
        pytest.skip("test_filters.py has rows whose values float32 divides by the temperature")
    backend.skip_most(ROWS.index(row) + int(setting.temperature * 10), 2)
    for k, dtype in enumerate(backend.some((torch.float32, torch.bfloat16, torch.float64))):
        if dtype not in backend.dtypes:
            continue
        for at in backend.some(range(3)):
            logits = logits_of(at, 1, 4, 70, dtype)
            draft, log_q = drafted(logits, 3, [setting], 1.0)
            logits[0, at] = adversarial(row, 70).to(dtype)
            positions = as_int([[4, 5, 6]])
            check_argmax(backend, logits, 3, None, positions)
            check_draws(
                backend, logits, positions, [7], [setting], DRAFT, as_int([[2, 1, 0]]), stores=row != "denormal" or k != 1
            )
            check_verdicts(backend, logits, positions, [9], [setting], draft, log_q)


@pytest.mark.parametrize("bits", [0x7FC0, 0xFFC0, 0x7F81, 0xFF81, 0xFFFF, 0x7FFF])
def test_nan_of_any_sign_and_payload_is_no_token(backend: Backend, bits: int) -> None:
    logits, positions = logits_of(0, 1, 2, 200, torch.bfloat16), as_int([[4, 5]])
    logits[0, 0, 150] = torch.tensor([bits], dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    check_argmax(backend, logits)
    for setting in backend.some((Setting(), GREEDY)):
        check_draws(backend, logits, positions, [5], [setting], TARGET, stores=False)
        check_verdicts(backend, logits, positions, [5], [setting], as_int([[1, 2]]), torch.full((1, 2, 200), -9.0))


def test_rows_of_a_larger_tensor(backend: Backend) -> None:
    """Whatever lies around them; and no sequences at all."""
    larger = torch.full((4, 12, 3, 30), torch.nan)
    larger[::2, ::3, 1, 3:29] = logits_of(6, 2, 4, 26)
    logits, positions, settings = larger[::2, ::3, 1, 3:29], as_int([[4, 5, 6, 7], [9, 8, 7, 6]]), [Setting(top_p=0.9)] * 2
    assert not logits.is_contiguous()
    draft, log_q = drafted(logits, 4, settings, 0.9)
    for n in (2, 0):
        seeds, given = [7, 8][:n], settings[:n]
        check_argmax(backend, logits[:n], 4, as_int([[3, 2, 1, 0]] * n).view(n, 4))
        if n:
            check_draws(backend, logits, positions, seeds, given, TARGET, as_int([[1, 2, 0, 3], [0, 1, 2, 3]]))
            check_verdicts(backend, logits, positions, seeds, given, draft, log_q)
        else:
            none = torch.zeros(0, 4, dtype=torch.int32)
            of = [t[:0] for t in sampling([7, 8], settings)]
            backend("draw_rows", logits[:0], none, none, None, *of, TARGET, none, None, none, 0)
            backend("verify_rows", logits[:0], none, *of, draft[:0], log_q[:0], none, none)


def test_offsets_of_more_than_31_bits(backend: Backend) -> None:
    """Rows 2**30 elements apart.  A wrapped offset would point 2**32 elements lower, which is memory too, of zeros."""
    stride, vocab, settings = 2**30, 70, [Setting()] * 2
    elements = 2**32 + 5 * stride + 2 * vocab
    device = "cuda" if backend.on_gpu else "cpu"
    if backend.on_gpu:
        if torch.cuda.mem_get_info()[0] < 3 * elements:
            pytest.skip(f"needs {2 * elements / 1e9:.0f} GB of GPU memory")
        buffer = torch.zeros(elements, dtype=torch.float16, device=device)
    else:  # pages that are not touched take no memory
        pages = mmap.mmap(-1, 2 * elements, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000))
        buffer = torch.frombuffer(pages, dtype=torch.float16)
    near, positions = logits_of(2, 2, 3, vocab, torch.float16), as_int([[4, 5, 6], [7, 8, 9]])
    far = buffer.as_strided((2, 3, vocab), (3 * stride, stride, 1), 2**32)
    far.copy_(near)
    draft, log_q = drafted(near, 3, settings, 0.9)
    found = []
    for logits in (near, far):
        at = logits.device if logits is far else torch.device("cpu")
        results = [torch.zeros(2, 3, dtype=torch.int32, device=at) for _ in range(4)]
        calls = [
            ("argmax_rows", None, positions, None, results[0], None),
            ("draw_rows", None, positions, None, *sampling([5, 6], settings), TARGET, results[1], None, None, 0),
            ("verify_rows", positions, *sampling([5, 6], settings), draft, log_q, *results[2:]),
        ]
        for name, *arguments in calls:
            if logits is near or not backend.on_gpu:
                backend(name, logits, *arguments)
            else:
                backend.find(name)(logits, *(t.to(device) if isinstance(t, Tensor) else t for t in arguments))
        found.append([t.tolist() for t in results])
    assert found[0] == found[1]
    assert min(min(map(min, ids)) for ids in found[0]) >= -1


@pytest.mark.parametrize("token", [9, 2**31 - 1])
def test_a_draft_id_outside_the_vocabulary_is_never_accepted_nor_read(backend: Backend, token: int) -> None:
    if backend.name == "torch":
        pytest.skip("plain torch refuses such an index")
    ids, accepted = (torch.full((1, 3), BEFORE, dtype=torch.int32) for _ in range(2))
    for setting in (Setting(1.0), GREEDY):
        backend(
            "verify_rows", logits_of(1, 1, 3, 9), as_int([[4, 5, 6]]), *sampling([9], [setting]), as_int([[token, 1, 2]]),
            torch.full((1, 3, 9), -5.0), ids, accepted,
        )  # fmt: skip
        assert accepted.tolist() == [[0, 0, 0]]
        assert 0 <= int(ids[0, 0]) < 9
        assert ids[0, 1:].tolist() == [-1, -1]


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("vocab", [2000, 50000])
@pytest.mark.parametrize("filters", ["plain", "top-p"])
def test_any_number_of_threads(backend: Backend, threads: Callable[[int], None], filters: str, vocab: int) -> None:
    """Rows in parallel, or, where they are few and long, the passes over each: the results are those of one thread."""
    if backend.name != "cpu":
        pytest.skip("threads are the CPU's")
    setting = FILTERS[filters]
    logits, positions = logits_of(9, 2, 6, vocab), as_int([[4, 5, 6, 7], [1, 2, 3, -1]])
    log_p = log_probabilities_by_sorting(logits[:, :4], setting)
    for count in (1, 2, 3, 5, 16):
        threads(count)
        for n in (1, 2):
            at, settings, seeds = positions[:n], [setting] * n, [5, 6][:n]
            best, ids, verified, accepted = (torch.zeros(n, 4, dtype=torch.int32) for _ in range(4))
            log_q, probability = torch.zeros(n, 4, vocab), torch.zeros(n, 4)
            backend("argmax_rows", logits[:n], None, None, None, best, probability)
            assert best.tolist() == logits[:n, :4].argmax(-1).tolist()
            torch.testing.assert_close(probability, logits[:n, :4].softmax(-1).amax(-1), atol=0, rtol=1e-5)
            of = sampling(seeds, settings)
            backend("draw_rows", logits[:n], None, at, None, *of, DRAFT, ids, log_q, None, 0)
            want = torch.tensor(drawn_by_noise(log_p[:n], seeds, at.clamp(min=0), DRAFT))
            assert torch.equal(ids, torch.where(at >= 0, want, -1).int())
            asked = at >= 0
            torch.testing.assert_close(log_q[asked].double(), log_p[:n][asked], atol=2e-5, rtol=0)
            backend("verify_rows", logits[:n], at, *of, ids, log_q, verified, accepted)  # drafts of p itself: all are accepted
            assert torch.equal(verified, ids)
            assert torch.equal(accepted, asked.int())
