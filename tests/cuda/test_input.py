"""What packed_ss.cuda refuses, in one sentence and before anything is captured; and that it is a drop-in."""

from __future__ import annotations

import inspect
import re
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import packed_ss
from packed_ss import cuda
from packed_ss.runtime import captured
from tests.cuda.stub import fake_cuda, host_decoder
from tests.decoder.models import small_model

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@NO_GPU
def test_without_a_gpu_it_imports_and_says_what_is_missing() -> None:
    assert not cuda.is_available()
    facts = cuda.info()
    assert facts["available"] is False and facts["reason"] == cuda.unavailable() and facts["device_loop"]
    assert set(facts["kernels"].values()) <= {"torch", "native", "triton"}
    for refused in (
        lambda: cuda.load_model("tiny"),
        lambda: cuda.Decoder(small_model(1), block_size=4),
        lambda: cuda.generate(small_model(1), [0], block_size=4),
    ):
        with pytest.raises(RuntimeError, match=r"^captured decoding needs an NVIDIA GPU, but torch .*\.$"):
            refused()


def test_no_driver_or_an_old_one_is_told_in_torchs_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_old() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040).\nPlease update.")

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", too_old)
    with pytest.raises(RuntimeError, match="but torch cannot use a GPU: The NVIDIA driver on your system is too old"):
        cuda.load_model("tiny")


def pretend(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
    """A GPU of this compute capability, as far as questions about it go."""
    card = types.SimpleNamespace(name="Card", major=capability[0], minor=capability[1], total_memory=2**33)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)


def test_a_model_or_device_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, (9, 0))
    with pytest.raises(ValueError, match=r"the model is on cpu, but captured decoding takes a GPU"):
        cuda.Decoder(small_model(1), block_size=4)
    with pytest.raises(ValueError, match=r"device is 'cpu', but packed_ss\.cuda loads onto a GPU"):
        cuda.load_model("tiny", device="cpu")


@pytest.mark.parametrize(
    ("dtype", "capability", "accepted"),
    [(torch.bfloat16, (7, 5), "float32, float16"), (torch.float64, (9, 0), "float32, float16, bfloat16")],
)
def test_a_dtype_that_the_card_lacks_is_refused(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, capability: tuple[int, int], accepted: str
) -> None:
    pretend(monkeypatch, capability)
    name, card = str(dtype).removeprefix("torch."), re.escape(f"Card (compute capability {capability[0]}.{capability[1]})")
    with pytest.raises(ValueError, match=f"the model's dtype is {name}, but on {card} it must be one of {accepted}"):
        captured.CapturedRuntime(torch.device("cuda", 0), dtype, "bursts", 1)


def test_a_cache_that_does_not_fit_is_refused_with_both_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model(1)
    c = model.config
    slot = 2 * c.num_layers * c.num_kv_heads * c.head_dim * model.head.weight.dtype.itemsize
    with fake_cuda(monkeypatch):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**30, 2**33))
        length = 2**30 // slot
        with pytest.raises(
            ValueError,
            match=rf"max_length {length} with batch_size 2 needs 2\.00 GiB for keys and values, but "
            r"1\.00 GiB of the device's memory is free",
        ):
            host_decoder(model, block_size=4, max_length=length, batch_size=2)
        host_decoder(model, block_size=4, max_length=1000)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loop": "while"}, "loop is 'while', but it must be one of bursts, device"),
        ({"head": None}, "head is None, but it must be one of auto, fused, logits"),
        ({"burst": 0}, "burst is 0, but it must be a whole number of at least 1"),
        ({"burst": True}, "burst is True, but it must be a whole number of at least 1"),
        ({"block_size": 1}, "block_size is 1, but it must be a whole number of at least 2"),
        ({"schedule": "native"}, "schedule is 'native', but it must be one of"),
    ],
)
def test_arguments_out_of_range_are_refused(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str) -> None:
    with fake_cuda(monkeypatch) as watch, pytest.raises(ValueError, match=message):
        host_decoder(small_model(1), **({"block_size": 4} | options))
    assert not watch.events


def test_a_bad_request_captures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_cuda(monkeypatch) as watch:
        decoder = host_decoder(small_model(1), block_size=4, max_length=32)
        for refused in ({"input_ids": []}, {"input_ids": [0], "temperature": -1}, {"input_ids": [0], "max_new_tokens": 32}):
            with pytest.raises(ValueError, match="but"):
                decoder.generate(**refused)
    assert not watch.events


def test_it_has_the_names_and_arguments_of_packed_ss() -> None:
    assert set(packed_ss.__all__) <= set(cuda.__all__)
    for ours, theirs in (
        (cuda.Decoder, packed_ss.Decoder),
        (cuda.Decoder.generate, packed_ss.Decoder.generate),
        (cuda.load_model, packed_ss.load_model),
    ):
        mine, common = inspect.signature(ours).parameters, inspect.signature(theirs).parameters
        assert list(mine)[: len(common)] == list(common)
        assert [(mine[name].default, mine[name].kind) for name in common] == [(p.default, p.kind) for p in common.values()]


def test_the_readmes_example_runs_unchanged(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(import packed_ss\n.*?)```", readme, re.DOTALL)[1]
    example = example.replace("nvidia/Nemotron-Labs-Diffusion-8B", "tiny").replace("max_length=4096", "max_length=768")
    monkeypatch.setattr(cuda, "Decoder", host_decoder)
    monkeypatch.setattr(cuda, "load_model", packed_ss.load_model)
    printed = []
    for line in ("import packed_ss", "import packed_ss.cuda as packed_ss"):
        with fake_cuda(monkeypatch):
            exec(example.replace("import packed_ss", line), {})
        printed.append(re.sub(r"[\d.]+$", "", capsys.readouterr().out.strip()))  # all but the seconds
    assert printed[0] == printed[1] and "['stop']" in printed[0]
