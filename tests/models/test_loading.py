"""Writing and loading checkpoints, and everything that loading refuses."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from packed_ss.models import loading, weights
from packed_ss.models.config import ModelConfig, RopeConfig, parameter_count
from packed_ss.models.export import write_nemotron
from packed_ss.models.loading import load_model, resolve_folder
from packed_ss.models.nemotron import MODEL_TYPE, read_config, tensor_map
from packed_ss.models.transformer import Transformer
from tests.support.checkpoints import random_checkpoint, random_config, random_model

Q = "encoder.layers.1.self_attn.q_proj.weight"


def refusal(call: Callable[[], Any]) -> str:
    """The message of the ValueError that ``call`` raises, which must be one sentence."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the callers look at the message
        call()
    assert caught.type is ValueError
    message = str(caught.value)
    assert message and len(message) < 900 and "\n" not in message and ". " not in message and not message.endswith(".")
    return message


def edit_config(folder: Path, **changes: Any) -> None:
    """Changes keys of config.json; ``...`` removes one."""
    values = json.loads((folder / "config.json").read_text())
    values = {key: value for key, value in (values | changes).items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(values))


def edit_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def shard(folder: Path) -> dict[str, str]:
    """Splits model.safetensors into three files with an index, so that fused matrices lie across files."""
    tensors = load_file(folder / "model.safetensors")
    weight_map = {name: f"model-0000{i % 3 + 1}-of-00003.safetensors" for i, name in enumerate(sorted(tensors))}
    for file in set(weight_map.values()):
        save_file({name: tensors[name] for name in tensors if weight_map[name] == file}, folder / file)
    (folder / "model.safetensors").unlink()
    write_index(folder, weight_map)
    return weight_map


def write_index(folder: Path, weight_map: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return random_checkpoint(tmp_path / "checkpoint", seed=3)


def same(a: Transformer, b: Transformer) -> bool:
    ours, theirs = dict(a.named_parameters()), dict(b.named_parameters())
    return ours.keys() == theirs.keys() and all(
        w.dtype == theirs[name].dtype and torch.equal(w, theirs[name]) for name, w in ours.items()
    )


# Round trips


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_what_is_written_is_loaded_bit_for_bit(tmp_path: Path, dtype: str, tied: bool) -> None:
    config = random_config(2, dtype=dtype, tie_word_embeddings=tied, eos_token_ids=(1, 4))
    model = random_model(config, seed=4, dtype=getattr(torch, dtype))
    write_nemotron(model, tmp_path)
    loaded = load_model(str(tmp_path), device="cpu", dtype=getattr(torch, dtype))
    assert loaded.config == config and same(loaded, model)
    assert (loaded.head.weight is loaded.embed.weight) == tied
    assert not loaded.training and not any(p.requires_grad for p in loaded.parameters())
    assert loaded.source == tmp_path and torch.equal(loaded.frequencies, model.frequencies)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_the_files_have_the_public_names(folder: Path) -> None:
    assert len({(folder / name).stat().st_mode for name in ("config.json", "model.safetensors")}) == 1
    values = json.loads((folder / "config.json").read_text())
    assert values["architectures"] == ["NemotronLabsDiffusionModel"] and values["model_type"] == MODEL_TYPE
    assert values["mask_token_id"] == 3 and values["eos_token_id"] == 1 and values["block_size"] == 4
    assert values["dtype"] == "float32" and values["max_position_embeddings"] == 512
    assert values["rope_parameters"] == {
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "factor": 16.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 8,
        "llama_4_scaling_beta": 0.1,
    }
    layer = {
        f"encoder.layers.{n}.{name}.weight"
        for n in (0, 1)
        for name in (
            "input_layernorm",
            "post_attention_layernorm",
            "self_attn.q_proj",
            "self_attn.k_proj",
            "self_attn.v_proj",
            "self_attn.o_proj",
            "mlp.gate_proj",
            "mlp.up_proj",
            "mlp.down_proj",
        )
    }
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert set(file.keys()) == layer | {"encoder.embed_tokens.weight", "encoder.norm.weight", "diffusion_head.weight"}


@pytest.mark.parametrize(
    "rope",
    [
        RopeConfig(theta=300.0),
        RopeConfig(theta=300.0, original_max_position=8, llama_4_scaling_beta=0.2),
        RopeConfig(
            theta=300.0,
            yarn_factor=4.0,
            original_max_position=9,
            beta_fast=8.0,
            beta_slow=0.5,
            mscale=0.7,
            mscale_all_dim=1.2,
            attention_factor=1.5,
            truncate=False,
        ),
    ],
)
def test_rotary_settings_survive_a_round_trip(tmp_path: Path, rope: RopeConfig) -> None:
    assert load_model(random_checkpoint(tmp_path, rope=rope), device="cpu").config.rope == rope


@pytest.mark.parametrize("tied", [False, True])
def test_the_map_covers_every_parameter(tied: bool) -> None:
    config = random_config(0, tie_word_embeddings=tied)
    parameters = dict(Transformer(config).named_parameters())
    tensors = tensor_map(config)
    assert tensors.keys() == parameters.keys()
    for name, parts in tensors.items():
        shape = (sum(part[0] for _, part in parts), *parts[0][1][1:])
        assert shape == parameters[name].shape
    names = [name for parts in tensors.values() for name, _ in parts]
    assert len(names) == len(set(names)) == 9 * 2 + (2 if tied else 3)
    assert parameter_count(config) == sum(p.numel() for p in parameters.values())


def test_shards_hold_the_same_model(folder: Path) -> None:
    whole = load_model(folder, device="cpu")
    shard(folder)
    assert same(load_model(folder, device="cpu"), whole)


def test_on_the_cpu_weights_are_float32_by_default(tmp_path: Path) -> None:
    random_checkpoint(tmp_path, dtype="bfloat16")
    loaded = load_model(tmp_path, device="cpu")
    assert loaded.embed.weight.dtype == torch.float32 and loaded.config.dtype == "bfloat16"
    assert torch.equal(loaded.embed.weight, load_file(tmp_path / "model.safetensors")["encoder.embed_tokens.weight"].float())
    if not torch.cuda.is_available():
        assert load_model(tmp_path).embed.weight.device.type == "cpu"


def test_a_config_without_dtype_takes_that_of_the_weights(tmp_path: Path) -> None:
    random_checkpoint(tmp_path, dtype="bfloat16")
    edit_config(tmp_path, dtype=...)
    assert load_model(tmp_path, device="cpu").config.dtype == "bfloat16"
    edit_config(tmp_path, torch_dtype="torch.float16")
    assert load_model(tmp_path, device="cpu").config.dtype == "float16"


def test_loading_draws_no_random_numbers(folder: Path) -> None:
    before = torch.get_rng_state()
    load_model(folder, device="cpu")
    assert torch.equal(torch.get_rng_state(), before)


def test_nothing_is_read_before_all_is_checked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit_tensors(folder, lambda t: t.update({"encoder.norm.weight": torch.ones(5)}))
    monkeypatch.setattr(loading, "_read", lambda *given: pytest.fail("weights were read"))
    monkeypatch.setattr(loading, "Transformer", lambda *given: pytest.fail("the model was built"))
    refusal(lambda: load_model(folder, device="cpu"))


def test_a_model_with_qk_norm_is_not_written(tmp_path: Path) -> None:
    assert "q/k norms" in refusal(lambda: write_nemotron(random_model(random_config(qk_norm=True)), tmp_path / "x"))
    assert not (tmp_path / "x").exists()


def test_a_failed_write_leaves_the_old_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (folder / "model.safetensors").read_bytes()

    def half(tensors: Any, path: Path, metadata: Any) -> None:
        Path(path).write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr("packed_ss.models.export.save_file", half)
    with pytest.raises(OSError, match="disk full"):
        write_nemotron(random_model(random_config(3)), folder)
    assert (folder / "model.safetensors").read_bytes() == before
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_a_tied_model_stays_tied_when_it_moves() -> None:
    model = random_model(random_config(tie_word_embeddings=True)).double()
    assert model.head.weight is model.embed.weight
    assert len([n for n, _ in model.named_parameters() if n.startswith(("head", "embed"))]) == 1


def test_a_tied_checkpoint_may_repeat_its_embedding_only(tmp_path: Path) -> None:
    random_checkpoint(tmp_path, tie_word_embeddings=True)
    edit_tensors(tmp_path, lambda t: t.update({"diffusion_head.weight": t["encoder.embed_tokens.weight"].clone()}))
    load_model(tmp_path, device="cpu")
    edit_tensors(tmp_path, lambda t: t["diffusion_head.weight"][3, 4].add_(1))
    assert "diffusion_head.weight" in refusal(lambda: load_model(tmp_path, device="cpu"))


# config.json


def values(**changes: Any) -> dict[str, Any]:
    """The public 3B model's config.json."""
    base = {
        "architectures": ["NemotronLabsDiffusionModel"],
        "model_type": MODEL_TYPE,
        "attention_bias": False,
        "block_size": 32,
        "dtype": "bfloat16",
        "eos_token_id": 11,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 3072,
        "intermediate_size": 9216,
        "mask_token_id": 100,
        "max_position_embeddings": 262144,
        "mlp_bias": False,
        "num_attention_heads": 32,
        "num_hidden_layers": 26,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e6,
            "factor": 16,
            "original_max_position_embeddings": 16384,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1,
            "mscale_all_dim": 1,
            "llama_4_scaling_beta": 0.1,
        },
        "sliding_window": None,
        "tie_word_embeddings": False,
        "vocab_size": 131072,
    }
    return {key: value for key, value in (base | changes).items() if value is not ...}


PUBLIC_ROPE = RopeConfig(
    theta=1e6, yarn_factor=16.0, original_max_position=16384, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1
)
PUBLIC = ModelConfig(
    vocab_size=131072,
    hidden_size=3072,
    num_layers=26,
    intermediate_size=9216,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    rms_norm_eps=1e-5,
    mask_token_id=100,
    eos_token_ids=(11,),
    block_size=32,
    max_position=262144,
    dtype="bfloat16",
    model_type=MODEL_TYPE,
    rope=PUBLIC_ROPE,
)


def test_a_public_config_is_read_whole() -> None:
    assert read_config(values(), "config.json") == PUBLIC


INNER = values()["rope_parameters"]
OUTER = {key: value for key, value in INNER.items() if key != "rope_theta"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (dict(eos_token_id=[11, 2]), dict(eos_token_ids=(11, 2))),
        (dict(eos_token_id=[]), dict(eos_token_ids=())),
        (dict(block_size=...), dict(block_size=None)),
        (dict(max_position_embeddings=None), dict(max_position=None)),
        (dict(tie_word_embeddings=True), dict(tie_word_embeddings=True)),
        (dict(dtype=..., torch_dtype="float16"), dict(dtype="float16")),
        (dict(dtype="torch.float64"), dict(dtype="float64")),
        (dict(rope_parameters=OUTER, rope_theta=1e9), dict(rope=dataclasses.replace(PUBLIC_ROPE, theta=1e9))),
        (dict(rope_theta=7.0), {}),  # the inner one counts
        (dict(rope_parameters=..., rope_scaling=OUTER | {"rope_type": ..., "type": "yarn"}, rope_theta=1e6), {}),
        (dict(rope_parameters=..., rope_theta=5e5), dict(rope=RopeConfig(theta=5e5))),
        (dict(rope_parameters={"rope_type": "default", "rope_theta": 5e5}), dict(rope=RopeConfig(theta=5e5))),
        (
            dict(rope_parameters=INNER | {"truncate": False, "attention_factor": 2, "beta_fast": None}),
            dict(rope=dataclasses.replace(PUBLIC_ROPE, truncate=False, attention_factor=2.0)),
        ),
    ],
)
def test_other_spellings_are_read(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    if "rope_scaling" in changes:
        changes["rope_scaling"] = {key: value for key, value in changes["rope_scaling"].items() if value is not ...}
    assert read_config(values(**changes), "config.json") == dataclasses.replace(PUBLIC, **expected)


SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "mask_token_id",
)


@pytest.mark.parametrize("key", [*SIZES, "rms_norm_eps", "eos_token_id"])
@pytest.mark.parametrize("value", [..., None])
def test_a_missing_value_is_named(key: str, value: Any) -> None:
    message = refusal(lambda: read_config(values(**{key: value}), "a/config.json"))
    assert message == f"a/config.json: {key} is missing"


@pytest.mark.parametrize("key", [*SIZES, "block_size", "max_position_embeddings", "eos_token_id"])
@pytest.mark.parametrize("value", [True, 8.0, "8", -1, 10**30, [8.0], {"a": 1}])
def test_only_integers_in_range_are_sizes(key: str, value: Any) -> None:
    message = refusal(lambda: read_config(values(**{key: value}), "a/config.json"))
    assert message.startswith(f"a/config.json: {key} is {value!r}, but only an integer in [")


@pytest.mark.parametrize(
    ("changes", "culprits"),
    [
        (dict(mask_token_id=131072), ("mask_token_id", "131072", "[0, 131071]")),
        (dict(eos_token_id=[11, 131072]), ("eos_token_id", "[0, 131071]")),
        (dict(eos_token_id=[[11]]), ("eos_token_id",)),
        (dict(vocab_size=0), ("vocab_size", "[1, ")),
        (dict(num_hidden_layers=10**9), ("num_hidden_layers", "4096")),
        (dict(block_size=1), ("block_size", "[2, ")),
        (dict(num_key_value_heads=5), ("32 query heads", "5 key/value heads")),
        (dict(head_dim=127), ("head_dim", "127", "even")),
        (dict(rms_norm_eps="1e-5"), ("rms_norm_eps", "'1e-5'")),
        (dict(rms_norm_eps=float("nan")), ("rms_norm_eps", "nan")),
        (dict(rms_norm_eps=-1e-5), ("rms_norm_eps",)),
        (dict(rms_norm_eps=10**400), ("rms_norm_eps",)),
        (dict(rms_norm_eps=True), ("rms_norm_eps",)),
        (dict(tie_word_embeddings=1), ("tie_word_embeddings", "True or False")),
        (dict(tie_word_embeddings="false"), ("tie_word_embeddings",)),
        (dict(attention_bias=True), ("attention_bias", "False")),
        (dict(mlp_bias=True), ("mlp_bias", "False")),
        (dict(hidden_act="gelu"), ("hidden_act", "'gelu'", "'silu'")),
        (dict(sliding_window=4096), ("sliding_window", "4096")),
        (dict(dtype="int8"), ("dtype", "'int8'", "bfloat16")),
        (dict(dtype=..., torch_dtype=16), ("torch_dtype", "16")),
        (dict(rope_parameters=...), ("rope_scaling", "rope_theta is missing")),
        (dict(rope_parameters=[1]), ("rope_parameters", "[1]", "object")),
        (dict(partial_rotary_factor=0.5), ("partial_rotary_factor", "0.5")),
    ],
)
def test_a_config_that_is_not_supported_is_refused(changes: dict[str, Any], culprits: tuple[str, ...]) -> None:
    message = refusal(lambda: read_config(values(**changes), "a/config.json"))
    assert message.startswith("a/config.json: ") and all(culprit in message for culprit in culprits), message


@pytest.mark.parametrize(
    ("key", "value", "culprit"),
    [
        ("rope_type", "linear", "'linear'"),
        ("rope_type", ["yarn"], "rope_type"),
        ("rope_theta", None, "rope_theta is missing"),
        ("rope_theta", "1e6", "rope_theta"),
        ("rope_theta", 1.0, "above 1"),
        ("factor", None, "factor is missing"),
        ("factor", 0.5, "factor"),
        ("original_max_position_embeddings", None, "original_max_position_embeddings is missing"),
        ("original_max_position_embeddings", 16384.0, "original_max_position_embeddings"),
        ("original_max_position_embeddings", 0, "original_max_position_embeddings"),
        ("beta_fast", "32", "beta_fast"),
        ("beta_slow", -1, "beta_slow"),
        ("mscale", True, "mscale"),
        ("mscale_all_dim", float("inf"), "mscale_all_dim"),
        ("attention_factor", 0, "attention_factor"),
        ("truncate", 1, "truncate"),
        ("llama_4_scaling_beta", "x", "llama_4"),
        ("full_attention", {"rope_theta": 1e6}, "full_attention"),
    ],
)
def test_rotary_settings_that_are_not_supported_are_refused(key: str, value: Any, culprit: str) -> None:
    message = refusal(lambda: read_config(values(rope_parameters=INNER | {key: value}), "a/config.json"))
    assert message.startswith("a/config.json: rope_parameters") and culprit in message, message


def test_the_query_scale_needs_the_original_length() -> None:
    parameters = {"rope_type": "default", "rope_theta": 1e4, "llama_4_scaling_beta": 0.1}
    message = refusal(lambda: read_config(values(rope_parameters=parameters), "c"))
    assert "original_max_position_embeddings is missing" in message


@pytest.mark.parametrize(
    ("text", "culprit"),
    [
        (b"{", "not valid JSON"),
        (b"", "not valid JSON"),
        (b"\xff\xfe\x00", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"hidden_size": 1' + b"0" * 5000 + b"}", "not valid JSON"),
        (b"[1, 2]", "JSON object"),
        (b'"x"', "JSON object"),
        (b"null", "JSON object"),
        (b"{}", "model_type is missing"),
        (b'{"model_type": "llama"}', "'llama'"),
        (b'{"model_type": ["x"]}', "nemotron_labs_diffusion"),
        (b'{"model_type": 7}', "nemotron_labs_diffusion"),
    ],
    ids=range(12),
)
def test_a_broken_config_file_is_refused(folder: Path, text: bytes, culprit: str) -> None:
    (folder / "config.json").write_bytes(text)
    message = refusal(lambda: load_model(folder, device="cpu"))
    assert culprit in message and "config.json" in message


def test_a_folder_without_config_is_refused(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert "config.json" in refusal(lambda: load_model(folder, device="cpu"))


# Weights


@pytest.mark.parametrize(
    ("change", "culprits"),
    [
        (lambda t: t.pop(Q), (Q, "1 tensor", "missing")),
        (lambda t: t.pop("diffusion_head.weight"), ("diffusion_head.weight", "missing")),
        (lambda t: t.update({"encoder.layers.2.mlp.up_proj.weight": torch.ones(2)}), ("encoder.layers.2", "unexpected")),
        (lambda t: t.update({"model." + Q: t.pop(Q)}), (Q, "missing", "model." + Q, "unexpected")),
        (lambda t: t.update({Q: t[Q].T.contiguous()}), (Q, "shape", "[24, ")),
        (lambda t: t.update({Q: t[Q][:-1]}), (Q, "shape")),
        (lambda t: t.update({"encoder.norm.weight": torch.ones(())}), ("encoder.norm.weight", "[]", "[24]")),
        (lambda t: t.update({Q: t[Q].to(torch.int8)}), (Q, "I8", "BF16")),
        (lambda t: t.update({Q: t[Q].bool()}), (Q, "BOOL")),
        (lambda t: t.update({Q: t[Q].to(torch.float8_e4m3fn)}), (Q, "F8_E4M3")),
        (lambda t: t.clear(), ("21 tensors", "and 18 more", "missing")),
    ],
)
def test_weights_that_do_not_fit_are_refused(folder: Path, change: Callable, culprits: tuple[str, ...]) -> None:
    edit_tensors(folder, change)
    message = refusal(lambda: load_model(folder, device="cpu"))
    assert str(folder) in message and all(culprit in message for culprit in culprits), message


def test_a_config_of_other_sizes_is_refused(folder: Path) -> None:
    edit_config(folder, num_hidden_layers=3)
    assert "9 tensors (encoder.layers.2." in refusal(lambda: load_model(folder, device="cpu"))
    edit_config(folder, num_hidden_layers=2, vocab_size=12)
    assert "encoder.embed_tokens.weight [11, 24] instead of [12, 24]" in refusal(lambda: load_model(folder, device="cpu"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b[:-4],
        lambda b: b[: len(b) // 2],
        lambda b: b[:100],
        lambda b: b[:7],
        lambda b: b"",
        lambda b: b + b"\0" * 4,
        lambda b: b"\xff" * 8 + b[8:],
        lambda b: b[:8] + b"x" + b[9:],
        lambda b: b.replace(b'"F32"', b'"F99"', 1),
        lambda b: b.replace(b'"data_offsets":[0,', b'"data_offsets":[4,', 1),
        lambda b: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    ],
    ids=range(11),
)
@pytest.mark.parametrize("sharded", [False, True])
def test_a_damaged_file_is_refused(folder: Path, damage: Callable[[bytes], bytes], sharded: bool) -> None:
    if sharded:
        shard(folder)
    file = sorted(folder.glob("*.safetensors"))[-1]
    before = file.read_bytes()
    file.write_bytes(damage(before))
    assert file.read_bytes() != before
    message = refusal(lambda: load_model(folder, device="cpu"))
    assert str(file) in message and "safetensors file" in message


def test_a_folder_without_weights_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    message = refusal(lambda: load_model(folder, device="cpu"))
    assert all(name in message for name in ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"))


def test_a_missing_shard_is_named(folder: Path) -> None:
    file = sorted(set(shard(folder).values()))[1]
    (folder / file).unlink()
    assert file in refusal(lambda: load_model(folder, device="cpu"))


def test_a_tensor_must_be_in_the_shard_that_the_index_names(folder: Path) -> None:
    weight_map = shard(folder)
    other = sorted(set(weight_map.values()) - {weight_map[Q]})[0]
    write_index(folder, weight_map | {Q: other})
    message = refusal(lambda: load_model(folder, device="cpu"))
    assert Q in message and other in message and "does not hold" in message
    del weight_map[Q]
    write_index(folder, weight_map)
    message = refusal(lambda: load_model(folder, device="cpu"))
    assert Q in message and "does not list them" in message


@pytest.mark.parametrize(
    "file",
    [
        "../model.safetensors",
        "/etc/passwd",
        "sub/model.safetensors",
        "..\\model.safetensors",
        "..",
        "",
        "model.bin",
        "C:model.safetensors",
        "a\0.safetensors",
        7,
        None,
        ["model.safetensors"],
    ],
)
def test_an_index_reaches_no_other_folder(folder: Path, file: Any) -> None:
    weight_map = shard(folder)
    (folder / "sub").mkdir()
    for place in (folder.parent, folder / "sub"):
        save_file({Q: torch.ones(2)}, place / "model.safetensors")
    write_index(folder, weight_map | {Q: file})
    message = refusal(lambda: load_model(folder, device="cpu"))
    assert Q in message and "same folder" in message


@pytest.mark.parametrize(
    ("text", "culprit"),
    [
        ("{", "not valid JSON"),
        ("[]", "JSON object"),
        ("{}", "weight_map is missing"),
        ('{"weight_map": []}', "JSON object"),
        ('{"weight_map": {}}', "missing"),
    ],
)
def test_a_broken_index_is_refused(folder: Path, text: str, culprit: str) -> None:
    shard(folder)
    (folder / "model.safetensors.index.json").write_text(text)
    assert culprit in refusal(lambda: load_model(folder, device="cpu"))


# Arguments and places


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.complex64, torch.float8_e4m3fn, "float32", float])
def test_only_float_dtypes_are_accepted(folder: Path, dtype: Any) -> None:
    message = refusal(lambda: load_model(folder, device="cpu", dtype=dtype))
    assert "dtype" in message and "bfloat16" in message


@pytest.mark.parametrize("device", ["gpu", "meta", "cuda:99", "", 3.5, ["cpu"]])
def test_unknown_devices_are_refused(folder: Path, device: Any) -> None:
    assert "device is" in refusal(lambda: load_model(folder, device=device))


def test_names_lead_to_folders(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_folder(str(folder)) == resolve_folder(folder) == folder
    monkeypatch.setenv("HOME", str(folder.parent))
    assert resolve_folder("~/checkpoint") == folder
    monkeypatch.chdir(folder.parent)
    assert resolve_folder("checkpoint").resolve() == folder


def test_the_bundled_name_leads_into_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading.resources, "files", lambda package: tmp_path / package)
    assert "tiny" in refusal(lambda: resolve_folder("tiny"))
    random_checkpoint(tmp_path / "packed_ss" / "assets" / "tiny")
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve_folder("tiny") == tmp_path / "packed_ss" / "assets" / "tiny"
    assert resolve_folder("./tiny") == Path("tiny")
    assert load_model("tiny", device="cpu").source == resolve_folder("tiny")


@pytest.mark.parametrize("name", ["", 7, None, b"x", ["tiny"], "a\0b"])
def test_what_is_no_name_is_refused(name: Any) -> None:
    assert "hub id" in refusal(lambda: resolve_folder(name))


@pytest.mark.parametrize("name", ["./none", "/no/such", "a/b/c", "../x", "~nobody/x", "x/", "two words", "-x", "a//b"])
def test_missing_folders_are_not_looked_for_on_the_hub(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *a, **k: pytest.fail("asked the hub"))
    assert repr(name) in refusal(lambda: resolve_folder(name))
    assert "no folder" in refusal(lambda: resolve_folder(Path("owner/name")))


def test_a_file_is_no_checkpoint(folder: Path) -> None:
    assert "is a file" in refusal(lambda: load_model(folder / "config.json"))


def test_a_hub_id_is_downloaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **given: asked.append((name, given)) or str(folder))
    assert load_model("owner/some-model_1.0", device="cpu", revision="v1").source == folder
    name, given = asked[0]
    assert name == "owner/some-model_1.0" and given["revision"] == "v1"
    assert not any(pattern in ("*", "*.py", "*.bin") for pattern in given["allow_patterns"])


def test_offline_is_respected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    message = refusal(lambda: load_model("owner/none-such"))
    assert "'owner/none-such'" in message and "HF_HUB_OFFLINE" in message


@pytest.mark.parametrize(
    ("kind", "culprit"),
    [
        ("RepositoryNotFoundError", "no such repository"),
        ("RevisionNotFoundError", "revision 'v9'"),
        ("GatedRepoError", "accepted"),
        ("LocalEntryNotFoundError", "not reachable (LocalEntryNotFoundError)"),
        (None, "not reachable (OSError)"),
    ],
)
def test_the_hubs_errors_become_one_sentence(kind: str | None, culprit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import errors

    error = OSError if kind is None else getattr(errors, kind)

    def fail(*given: Any, **named: Any) -> None:
        made = error.__new__(error)  # their constructors differ and want an HTTP response
        made.args = ("Two. Sentences.\nAnd lines.",)
        raise made

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    message = refusal(lambda: load_model("owner/name", revision="v9"))
    assert "'owner/name'" in message and culprit in message


def test_no_code_of_a_checkpoint_is_run(folder: Path) -> None:
    (folder / "modeling.py").write_text("raise SystemExit('ran')")
    edit_config(folder, auto_map={"AutoModel": "modeling.Model"})
    load_model(folder, device="cpu")
    assert not re.search("pickle|torch.load", Path(os.fspath(loading.__file__)).read_text())
    reads = re.findall(r"torch\.load\(.*", Path(os.fspath(weights.__file__)).read_text())
    assert len(reads) == 1 and "weights_only=True" in reads[0]
