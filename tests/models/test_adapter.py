"""Proposal-only LoRA: what it changes, what it must leave alone to the last bit, and which files are refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from packed_ss import Decoder, cuda, load_model
from packed_ss.layouts.block import BlockCall
from packed_ss.models import export, loading
from packed_ss.models.adapter import LowRank
from packed_ss.models.transformer import Transformer
from tests.support.checkpoints import random_checkpoint, random_config, random_set_checkpoint
from tests.support.device_reads import NoDeviceReads

RANK, ALPHA = 3, 12.0
MODULES = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
CALL = BlockCall(4, 4, (0, 2))
PROPOSALS = 8


def sizes() -> dict[str, tuple[int, int]]:
    """(out, in) of each module."""
    c = random_config()
    h, q, kv, m = c.hidden_size, c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim, c.intermediate_size
    return dict(zip(MODULES, ((q, h), (kv, h), (kv, h), (h, q), (m, h), (m, h), (h, m)), strict=True))


def write_adapter(
    folder: Path, modules: tuple[str, ...] = ("self_attn.o_proj",), layers: str = "encoder.layers.", **settings: Any
) -> dict[str, Tensor]:
    """An adapter of large random values as PEFT writes it; returns its tensors by name."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": ALPHA,
        "lora_dropout": 0.1,
        "bias": "none",
        "target_modules": [module.rpartition(".")[2] for module in modules],
        "use_dora": False,
        "modules_to_save": None,
        "rank_pattern": {},
        "alpha_pattern": {},
        "init_lora_weights": True,
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config | settings))
    generator = torch.Generator().manual_seed(5)
    tensors = {}
    for layer in range(random_config().num_layers):
        for module in modules:
            out, size_in = sizes()[module]
            key = f"base_model.model.{layers}{layer}.{module}.lora_"
            tensors[key + "A.weight"] = torch.randn(RANK, size_in, generator=generator) * 0.3
            tensors[key + "B.weight"] = torch.randn(out, RANK, generator=generator) * 0.3
    save_file(tensors, folder / "adapter_model.safetensors")
    return tensors


@pytest.fixture
def checkpoint(tmp_path):
    return random_checkpoint(tmp_path / "model")


def masked(visible: Tensor):
    """`attend` of a call without a cache, by the formula."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        groups = q.shape[2] // k.shape[2]
        k, v = k.repeat_interleave(groups, dim=2), v.repeat_interleave(groups, dim=2)
        scores = torch.einsum("nrhd,nshd->nhrs", q, k) * q.shape[-1] ** -0.5
        weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        return torch.einsum("nhrs,nshd->nrhd", weights, v)

    return attend


def call_logits(model: Transformer, proposal_rows: int, n: int = 2) -> Tensor:
    """Logits of a packed call's rows, all of them."""
    ids = torch.randint(0, model.config.vocab_size, (n, CALL.rows), generator=torch.Generator().manual_seed(1))
    return model(ids, masked(torch.from_numpy(CALL.visibility())), None, proposal_rows)


@pytest.mark.parametrize("modules", [*((module,) for module in MODULES), MODULES, ("self_attn.k_proj", "mlp.up_proj")], ids=len)
def test_a_drafting_row_is_computed_with_the_merged_weights(checkpoint, modules):
    tensors = write_adapter(checkpoint / "lora", modules)
    adapted = load_model(checkpoint, device="cpu", dtype=torch.float64, adapter="lora")
    merged = load_model(checkpoint, device="cpu", dtype=torch.float64)
    offset = dict.fromkeys(MODULES, 0)
    q, kv, m = sizes()["self_attn.q_proj"][0], sizes()["self_attn.k_proj"][0], sizes()["mlp.gate_proj"][0]
    offset |= {"self_attn.k_proj": q, "self_attn.v_proj": q + kv, "mlp.up_proj": m}
    ours = {
        "self_attn.q_proj": "qkv",
        "self_attn.k_proj": "qkv",
        "self_attn.v_proj": "qkv",
        "self_attn.o_proj": "out",
        "mlp.gate_proj": "gate_up",
        "mlp.up_proj": "gate_up",
        "mlp.down_proj": "down",
    }
    for layer, block in enumerate(merged.blocks):
        for module in modules:
            key = f"base_model.model.encoder.layers.{layer}.{module}.lora_"
            update = ALPHA / RANK * tensors[key + "B.weight"].double() @ tensors[key + "A.weight"].double()
            getattr(block, ours[module]).weight[offset[module] : offset[module] + len(update)] += update
    base = call_logits(adapted, 0)
    assert (call_logits(adapted, CALL.rows) - base).abs().max() > 0.1
    torch.testing.assert_close(call_logits(adapted, CALL.rows), call_logits(merged, 0), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("n", [1, 3])
def test_verifier_logits_are_the_same_to_the_last_bit(checkpoint, dtype, n):
    write_adapter(checkpoint / "lora", MODULES)
    base = load_model(checkpoint, device="cpu", dtype=dtype)
    adapted = load_model(checkpoint, device="cpu", dtype=dtype, adapter="lora")
    expected, got = call_logits(base, PROPOSALS, n), call_logits(adapted, PROPOSALS, n)
    assert torch.equal(got[:, :-PROPOSALS], expected[:, :-PROPOSALS])
    assert not torch.isclose(got[:, -PROPOSALS:], expected[:, -PROPOSALS:]).all(dim=2).any()
    assert torch.equal(call_logits(adapted, 0, n), expected)


def test_the_update_is_computed_for_proposal_rows_and_for_no_other(checkpoint):
    write_adapter(checkpoint / "lora", MODULES)
    model = load_model(checkpoint, device="cpu", adapter="lora")
    counted: list[int] = []
    updates = [module for module in model.modules() if isinstance(module, LowRank)]
    assert len(updates) == 4 * model.config.num_layers
    for module in updates:
        module.register_forward_pre_hook(lambda module, given: counted.append(given[0].shape[1]))
    call_logits(model, 0)
    assert counted == []
    for rows in (1, PROPOSALS, CALL.rows):
        counted.clear()
        call_logits(model, rows)
        assert counted == [rows] * len(updates)


def test_nothing_is_read_from_the_device(checkpoint):
    write_adapter(checkpoint / "lora", MODULES)
    model = load_model(checkpoint, device="cpu", adapter="lora")
    projection, x = model.blocks[0].qkv, torch.randn(2, 6, model.config.hidden_size)
    with NoDeviceReads():
        projection(x, 3)


def test_settings_and_places(checkpoint, tmp_path, monkeypatch):
    write_adapter(checkpoint / "lora")
    expected = call_logits(load_model(checkpoint, device="cpu", adapter="lora"), PROPOSALS)
    assert load_model(checkpoint, device="cpu").adapter_source is None
    assert load_model(checkpoint, device="cpu", adapter="lora").adapter_source == checkpoint / "lora"
    (checkpoint / "lora").rename(tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path)
    for place in (tmp_path / "elsewhere", str(tmp_path / "elsewhere"), "elsewhere"):
        loaded = load_model(checkpoint, device="cpu", adapter=place)
        assert os.path.samefile(loaded.adapter_source, tmp_path / "elsewhere")
        assert torch.equal(call_logits(loaded, PROPOSALS), expected)
        assert not any(weight.requires_grad for weight in loaded.parameters())
    write_adapter(
        tmp_path / "other",
        use_rslora=True,
        lora_alpha=ALPHA / RANK**0.5,
        target_modules=["self_attn.o_proj"],
        init_lora_weights="gaussian",
    )
    torch.testing.assert_close(call_logits(load_model(checkpoint, device="cpu", adapter="other"), PROPOSALS), expected)


def test_an_ordered_model_takes_its_own_names(tmp_path):
    folder = random_set_checkpoint(tmp_path / "model")
    write_adapter(folder / "lora", layers="backbone.model.model.layers.")
    adapted, base = (load_model(folder, device="cpu", adapter=adapter) for adapter in ("lora", None))
    assert torch.equal(call_logits(adapted, PROPOSALS)[:, :-PROPOSALS], call_logits(base, 0)[:, :-PROPOSALS])
    assert not torch.equal(call_logits(adapted, PROPOSALS), call_logits(base, 0))


def test_what_is_written_is_what_was_read(checkpoint, tmp_path):
    tensors = write_adapter(checkpoint / "lora", MODULES)
    model = load_model(checkpoint, device="cpu", adapter="lora")
    export.write_adapter(model, tmp_path / "copy", ALPHA)
    copied = load_file(tmp_path / "copy" / "adapter_model.safetensors")
    assert copied.keys() == tensors.keys() and all(torch.equal(copied[name], tensors[name]) for name in tensors)
    again = load_model(checkpoint, device="cpu", adapter=tmp_path / "copy")
    assert torch.equal(call_logits(again, PROPOSALS), call_logits(model, PROPOSALS))
    with pytest.raises(ValueError, match="carries no adapter"):
        export.write_adapter(load_model(checkpoint, device="cpu"), tmp_path / "none", ALPHA)


def test_the_bundled_adapter_drafts_and_leaves_the_verifier_alone():
    base, adapted = (load_model("tiny", device="cpu", adapter=adapter) for adapter in (None, "linear_spec_lora"))
    assert (adapted.adapter_source / "adapter_model.safetensors").stat().st_size < 200_000
    expected, got = call_logits(base, PROPOSALS), call_logits(adapted, PROPOSALS)
    assert torch.equal(got[:, :-PROPOSALS], expected[:, :-PROPOSALS])
    assert not torch.isclose(got[:, -PROPOSALS:], expected[:, -PROPOSALS:]).all(dim=2).any()


@pytest.mark.parametrize("schedule", ["autoregressive", "linear", "packed", "quadratic"])
def test_a_decoder_counts_drafting_rows_and_gives_the_same_text(checkpoint, schedule):
    write_adapter(checkpoint / "lora", MODULES)
    base, adapted = (load_model(checkpoint, device="cpu", adapter=adapter) for adapter in (None, "lora"))
    counted: list[int] = []
    adapted.blocks[0].out.adapter.register_forward_pre_hook(lambda module, given: counted.append(given[0].shape[1]))
    options = dict(input_ids=[4, 7, 2, 9], max_new_tokens=30, eos_token_id=[])
    expected = Decoder(base, schedule, max_length=64).generate(**options)
    got = Decoder(adapted, schedule, max_length=64).generate(**options)
    assert torch.equal(got.tokens[0], expected.tokens[0])
    b, calls = adapted.config.block_size, got.nfe[0]
    if schedule == "autoregressive":
        assert counted == []
    elif schedule == "linear":  # the first call, then of each pair the one that drafts; the last may not be needed
        assert counted == [b] * len(counted) and len(counted) == 1 + (calls - 1) // 2
    elif schedule == "packed":
        assert counted == [b] * calls
    else:
        assert len(counted) == calls and counted[0] == b and {rows % b for rows in counted} == {0} and max(counted) > b


def test_the_cuda_loader_passes_it_on(monkeypatch):
    given = {}
    monkeypatch.setattr(cuda, "need_gpu", lambda: None)
    monkeypatch.setattr(loading, "load_model", lambda path, **options: given.update(options))
    cuda.load_model("tiny", adapter="linear_spec_lora")
    assert given["adapter"] == "linear_spec_lora"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (dict(peft_type="IA3"), "peft_type"),
        (dict(bias="all"), "bias"),
        (dict(use_dora=True), "use_dora"),
        (dict(rank_pattern={"o_proj": 2}), "rank_pattern"),
        (dict(modules_to_save=["lm_head"]), "modules_to_save"),
        (dict(layers_to_transform=[0]), "layers_to_transform"),
        (dict(fan_in_fan_out=True), "fan_in_fan_out"),
        (dict(init_lora_weights="pissa"), "init_lora_weights"),
        (dict(r=0), "r is 0"),
        (dict(r=4), "wrong shape"),
        (dict(lora_alpha="x"), "lora_alpha"),
        (dict(lora_alpha=float("nan")), "lora_alpha"),
        (dict(use_rslora=1), "use_rslora"),
        (dict(target_modules=".*"), "target_modules"),
        (dict(target_modules=[]), "target_modules"),
        (dict(target_modules=["o_proj", "embed_tokens"]), "'embed_tokens'"),
        (dict(target_modules=["o_proj", "q_proj"]), "4 tensors .* missing"),
        (dict(target_modules=["q_proj"]), "4 tensors .* unexpected"),
        (dict(target_modules=["proj"]), "'proj'"),
    ],
)
def test_settings_that_are_refused(checkpoint, settings, told):
    write_adapter(checkpoint / "lora", **settings)
    with pytest.raises(ValueError, match=told) as caught:
        load_model(checkpoint, device="cpu", adapter="lora")
    assert "\n" not in str(caught.value)


def changed(folder: Path, change) -> None:
    tensors = load_file(folder / "adapter_model.safetensors")
    change(tensors)
    save_file(tensors, folder / "adapter_model.safetensors")


MODULE = "base_model.model.encoder.layers.0.self_attn.o_proj."
A = MODULE + "lora_A.weight"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda t: t.pop(A), "1 tensor .*layers.0.self_attn.o_proj.lora_A.weight.* missing"),
        (lambda t: t.update({A: t[A][:, 1:].contiguous()}), "wrong shape"),
        (lambda t: t.update({A: t[A].int()}), "dtype"),
        (lambda t: t.update({A.replace("layers.0", "layers.9"): t[A].clone()}), "layers.9.* unexpected"),
        (lambda t: t.update({MODULE + "lora_magnitude_vector.weight": t[A][0].clone()}), "magnitude"),
    ],
)
def test_weights_that_do_not_fit(checkpoint, change, told):
    write_adapter(checkpoint / "lora")
    changed(checkpoint / "lora", change)
    with pytest.raises(ValueError, match=told) as caught:
        load_model(checkpoint, device="cpu", adapter="lora")
    assert "\n" not in str(caught.value)


def test_files_that_are_missing_or_damaged(checkpoint):
    for given, told in (("lora", "no adapter 'lora'"), ("", "adapter is ''"), (3, "adapter is 3")):
        with pytest.raises(ValueError, match=told):
            load_model(checkpoint, device="cpu", adapter=given)
    folder = checkpoint / "lora"
    write_adapter(folder)
    weights = folder / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-10])
    with pytest.raises(ValueError, match="complete safetensors"):
        load_model(checkpoint, device="cpu", adapter="lora")
    weights.unlink()
    with pytest.raises(ValueError, match=r"holds no adapter_model\.safetensors"):
        load_model(checkpoint, device="cpu", adapter="lora")
    (folder / "adapter_config.json").write_text("{")
    with pytest.raises(ValueError, match="not valid JSON"):
        load_model(checkpoint, device="cpu", adapter="lora")
    (folder / "adapter_config.json").unlink()
    with pytest.raises(ValueError, match=r"holds no adapter_config\.json"):
        load_model(checkpoint, device="cpu", adapter="lora")
