"""One generation at a time: threads get their own texts, a decoder that calls itself is refused, surroundings change nothing."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from packed_ss import Decoder, Observer
from tests.cuda.stub import fake_cuda, host_decoder
from tests.decoder.models import small_model

PROMPTS = [[0, 2], [4, 1, 0, 2], [3], [2, 2, 4, 0, 1]]
OPTIONS = {"max_new_tokens": 9, "temperature": 0.8, "verification": "coupled", "eos_token_id": []}


@contextlib.contextmanager
def opened(runtime: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Iterator[Decoder]:
    """A decoder on either runtime."""
    shape = {"block_size": 4, "max_length": 48, "batch_size": 2}
    if runtime == "eager":
        yield Decoder(small_model(1), "packed", **shape, **options)
        return
    with fake_cuda(monkeypatch):
        yield host_decoder(small_model(1), "packed", **shape, **options)


@pytest.mark.parametrize("runtime", ["eager", "captured"])
def test_two_threads_get_their_own_texts(runtime: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(runtime, monkeypatch) as decoder:
        jobs = [(PROMPTS[i % 4], i) for i in range(40)]
        want = [decoder.generate(prompt, seed=seed, **OPTIONS).tokens[0].tolist() for prompt, seed in jobs]
        found: dict[int, list[int]] = {}
        together = threading.Barrier(2)

        def work(mine: list[int]) -> None:
            together.wait()
            for i in mine:
                prompt, seed = jobs[i]
                found[i] = decoder.generate(prompt, seed=seed, **OPTIONS).tokens[0].tolist()

        threads = [threading.Thread(target=work, args=(list(range(k, 40, 2)),)) for k in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [found.get(i) for i in range(40)] == want


@pytest.mark.parametrize("runtime", ["eager", "captured"])
def test_a_streamer_that_calls_its_own_decoder_is_refused(runtime: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(runtime, monkeypatch) as decoder:

        class Streamer:
            def put(self, value: Any) -> None:
                decoder.generate(PROMPTS[1], **OPTIONS)

            def end(self) -> None:
                pass

        want = decoder.generate(PROMPTS[0], **OPTIONS).tokens[0].tolist()
        with pytest.raises(
            RuntimeError, match=r"^this decoder is in the middle of a generation: its streamer or observer needs another"
        ):
            decoder.generate(PROMPTS[0], streamer=Streamer(), **OPTIONS)
        assert decoder.generate(PROMPTS[0], **OPTIONS).tokens[0].tolist() == want


@contextlib.contextmanager
def default_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


AMBIENT: dict[str, Callable[[], Any]] = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "default dtype": default_dtype,
    "default device": lambda: torch.device("meta"),
    "inference mode": torch.inference_mode,
    "grad": torch.enable_grad,
}


@pytest.mark.parametrize("runtime", ["eager", "captured"])
@pytest.mark.parametrize("around", AMBIENT)
def test_what_surrounds_a_call_changes_nothing(around: str, runtime: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model(1, dtype=torch.float32)
    want = {mode: texts(Decoder(model, "packed", 4, max_length=48, batch_size=2), mode) for mode in MODES}
    with contextlib.nullcontext() if runtime == "eager" else fake_cuda(monkeypatch):
        make = Decoder if runtime == "eager" else functools.partial(host_decoder, head="logits")
        decoder = make(model, "packed", 4, max_length=48, batch_size=2)
        for mode in MODES:
            with AMBIENT[around]():
                assert texts(decoder, mode) == want[mode]
            assert texts(decoder, mode) == want[mode]
    assert torch.get_default_dtype() == torch.float32


MODES: dict[str, dict[str, Any]] = {"greedy": {}, "rejection": {"temperature": 0.9, "top_p": 0.9}}


def texts(decoder: Decoder, mode: str) -> list[list[int]]:
    out = decoder.generate(PROMPTS[:2], 9, seed=3, eos_token_id=[], **MODES[mode])
    assert all(not tokens.is_inference() and tokens.device.type == "cpu" for tokens in out.tokens)
    return [tokens.tolist() for tokens in out.tokens]


def test_an_observer_sees_what_happens_in_order() -> None:
    seen: list[str] = []

    class Everything(Observer):
        def __getattribute__(self, name: str) -> Any:
            if name in vars(Observer) and not name.startswith("_"):
                return lambda *_: seen.append(name)
            return super().__getattribute__(name)

    decoder = Decoder(small_model(1), "packed", 4, max_length=48, observer=Everything())
    calls = decoder.generate(PROMPTS[1], 6, eos_token_id=[]).nfe[0]
    one = ["forward_begins", "forward_ends", "resolve_begins", "resolve_ends"]
    assert seen == [
        "generation_begins", *one, "first_call_ends", "loop_begins", *[*one, "call_ends"] * (calls - 1), "loop_ends",
    ]  # fmt: skip
