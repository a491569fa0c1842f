"""The check that every token is the serial one: it passes what decoders accept, and sees what they would not."""

from __future__ import annotations

import dataclasses

import pytest

from packed_ss import Decoder
from packed_ss.evaluation.ordered_trace import Pair, Trace, wrong_pairs
from tests.decoder.test_ordered import PROMPTS, outward, small


@pytest.mark.parametrize("order", ["left_to_right", "confidence", outward], ids=lambda o: getattr(o, "__name__", o))
def test_right_pairs_pass_and_wrong_ones_are_found(order: object) -> None:
    model = small(1)
    trace = Trace()
    decoder = Decoder(model, "packed", window=5, max_length=60, order=order, batch_size=len(PROMPTS), observer=trace)
    out = decoder.generate(list(PROMPTS), 20, eos_token_id=[], stop_sequences=[[2, 7]])
    blind = 0
    for prompt, tokens, pairs in zip(PROMPTS, out.tokens, trace.pairs, strict=True):
        assert len(pairs) >= len(tokens) and not wrong_pairs(model, prompt, pairs)
        for k, pair in enumerate(pairs):
            if pair.seen is None:  # an own row would carry the change on to others
                other = dataclasses.replace(pair, token=(pair.token + 1) % 11)
                assert [
                    (wrong, best)
                    for wrong, best, gap in wrong_pairs(model, prompt, [*pairs[:k], other, *pairs[k + 1 :]])
                    if gap > 0
                ] == [(other, pair.token)]
        unseen = [Pair(p.position, p.token, (), p.seen) if p.seen is None else p for p in pairs]
        blind += len(wrong_pairs(model, prompt, unseen))
        swapped = [*pairs]
        swapped[0] = dataclasses.replace(pairs[0], token=(pairs[0].token + 1) % 11)
        blind += bool(wrong_pairs(model, prompt, swapped[:1]))
    assert blind >= len(PROMPTS)
