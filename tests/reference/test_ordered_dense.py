"""The reference's any-order algorithms with a transformer, whose every row is a full recomputation with duplicate masks."""

from __future__ import annotations

import random

import pytest
import torch

from packed_ss.models.transformer import Transformer
from packed_ss.reference.ordered import Accepted, packed, serial
from packed_ss.reference.ordered_schedules import autoregressive, branched, linear, native, quadratic
from tests.reference.test_ordered import right_to_left, shuffled
from tests.support.checkpoints import random_model, random_set_config
from tests.support.oracle import qwen3
from tests.support.ordered import OrderedDense


def small(seed: int, scale: float = 1.5) -> Transformer:
    sizes = {"hidden_size": 12, "intermediate_size": 16, "head_dim": 8, "num_heads": 2, "num_kv_heads": 1}
    return random_model(random_set_config(seed, **sizes), seed, torch.float64, scale)


def in_a_row(tokens: list[int]) -> list[Accepted]:
    """Tokens accepted left to right."""
    P: list[Accepted] = []
    for j, token in enumerate(tokens, 1):
        P.append(Accepted(j, token, tuple(P)))
    return P


def test_a_mask_row_left_to_right_is_qwen3s_row_of_a_mask() -> None:
    model = small(0)
    dense, oracle = OrderedDense(model, [1, 5, 2]), qwen3(model)
    excluded = list(model.config.excluded_token_ids)
    for accepted, conditioning in (([], []), ([4], []), ([4, 9, 0], []), ([4], [(2, 9), (3, 0)])):
        j = len(accepted) + len(conditioning) + 1
        ids = [1, 5, 2, *accepted, *(token for _, token in conditioning), model.config.mask_token_id]
        with torch.no_grad():
            expected = oracle(torch.tensor([ids])).logits[0, -1].double()
        expected[excluded] = -torch.inf
        row = torch.tensor(dense(in_a_row(accepted), conditioning, [j])[0], dtype=torch.float64)
        torch.testing.assert_close(row, expected, rtol=0, atol=1e-5)


def test_position_order_and_history_count_and_other_masks_do_not() -> None:
    dense = OrderedDense(small(1), [1, 5])
    one, other = Accepted(1, 4, ()), Accepted(3, 6, ())
    after = Accepted(3, 6, (one,))
    alone = dense([one, after], [], [2])[0]
    assert dense([one, after], [], [2, 4, 5])[0] == pytest.approx(alone, abs=1e-12)
    for changed in ([one, other], [Accepted(1, 4, (other,)), other], [one, Accepted(4, 6, (one,))], [after], [one]):
        assert dense(changed, [], [2])[0] != pytest.approx(alone, abs=1e-3)
    assert dense([one, after], [], [4])[0] != pytest.approx(alone, abs=1e-3)
    # A pair accepted now is what a draft at that rank was
    assert dense([one], [(3, 6)], [2])[0] == pytest.approx(alone, abs=1e-12)
    assert dense([], [(1, 4), (3, 6)], [2])[0] == pytest.approx(alone, abs=1e-12)
    # A dropped pair is seen through those that saw it
    through = Accepted(1, 4, (Accepted(9, 7, ()),))
    assert dense([through], [], [2])[0] != pytest.approx(dense([one], [], [2])[0], abs=1e-3)


def test_excluded_ids_are_never_given() -> None:
    seen: set[int] = set()
    for seed in range(6):
        model = small(seed, scale=0.5)
        dense = OrderedDense(model, [1])
        excluded = set(model.config.excluded_token_ids)
        for got in (packed(dense, dense, 4, 12), native(dense, 4, 12)):
            seen |= set(got.tokens)
        assert all(dense([], [], [1])[0][token] == -torch.inf for token in excluded)
    assert excluded == {3, 11, 12} and not seen & excluded and len(seen) > 5


def test_every_schedule_in_every_order_is_its_serial_reference() -> None:
    different = 0
    for seed in range(4):
        rng = random.Random(seed)
        dense = OrderedDense(small(seed), [rng.randrange(11) for _ in range(4)])
        stops = {"stop_ids": [rng.randrange(11)], "stop_sequences": [[rng.randrange(11), rng.randrange(11)]]}
        plain = autoregressive(dense, 14, **stops)
        texts = set()
        for order in ("left_to_right", "confidence", right_to_left, shuffled(seed)):
            for W in (1, 4, 20):
                for run, options in ((packed, {}), (linear, {}), (quadratic, {}), (branched, {"cuts": {0, W // 2}})):
                    got = run(dense, dense, W, 14, order=order, **options, **stops)
                    assert serial(dense, 14, got.iterations, **stops) == got.tokens
                    if order == "left_to_right" or W == 1:
                        assert (got.tokens, got.finish_reason) == (plain.tokens, plain.finish_reason)
                    texts.add(tuple(got.tokens))
        different += len(texts) > 1
    assert different >= 2
