"""SetDLM checkpoints: the wrapper, the base config, sizes from shapes, both kinds of weight file, and transformers' logits."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from packed_ss.models import loading, setdlm, weights
from packed_ss.models.config import ModelConfig, RopeConfig
from packed_ss.models.export import setdlm_json, write_nemotron, write_setdlm
from packed_ss.models.loading import load_model
from packed_ss.models.transformer import Transformer
from tests.models.test_loading import edit_config, edit_tensors, refusal, same
from tests.models.test_oracle import causal
from tests.support.checkpoints import random_config, random_model, random_set_checkpoint, random_set_config
from tests.support.oracle import qwen3

LAYER = "backbone.model.model.layers.{}."
Q, Q_NORM = LAYER.format(1) + "self_attn.q_proj.weight", LAYER.format(0) + "self_attn.q_norm.weight"
EMBEDDING, HEAD = "backbone.model.model.embed_tokens.weight", "backbone.model.lm_head.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return random_set_checkpoint(tmp_path / "checkpoint", seed=3)


def edit_base(folder: Path, **changes: Any) -> None:
    """Changes keys of base_config.json; ``...`` removes one."""
    values = json.loads((folder / "base_config.json").read_text())
    values = {key: value for key, value in (values | changes).items() if value is not ...}
    (folder / "base_config.json").write_text(json.dumps(values))


def as_saved(folder: Path, change: Callable[[dict[str, Any]], Any] = lambda t: None, **options: Any) -> Path:
    """Puts what torch.save writes in the place of the safetensors file."""
    tensors: dict[str, Any] = dict(load_file(folder / "model.safetensors"))
    change(tensors)
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin", **options)
    return folder / "pytorch_model.bin"


# Round trips


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_what_is_written_is_loaded_bit_for_bit(tmp_path: Path, dtype: str, tied: bool) -> None:
    config = random_set_config(2, dtype=dtype, tie_word_embeddings=tied, eos_token_ids=(1, 4))
    model = random_model(config, seed=4, dtype=getattr(torch, dtype))
    write_setdlm(model, tmp_path)
    loaded = load_model(tmp_path, device="cpu", dtype=getattr(torch, dtype))
    assert loaded.config == config and same(loaded, model)
    assert (loaded.head.weight is loaded.embed.weight) == tied
    assert not loaded.training and not any(p.requires_grad for p in loaded.parameters())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["base_config.json", "config.json", "model.safetensors"]


def test_the_files_have_the_public_names(folder: Path) -> None:
    values = json.loads((folder / "config.json").read_text())
    assert values["model_type"] == "bd3lm" and values["vocab_size"] == 11 and values["mask_token_id"] == 3
    assert values["length"] == values["block_size"] == values["eval_block_size"] == 512
    assert values["eos_token_id"] == 1 and values["pad_token_id"] == 0
    assert values["tokenization_config"] == {"vocab_size": 11, "mask_token_id": 3, "eos_token_id": 1, "pad_token_id": 0}
    assert values["noise_config"]["desired_block_size"] == 8 and "_target_" in values["backbone_config"]
    base = json.loads((folder / "base_config.json").read_text())
    assert base["model_type"] == "qwen3" and base["rope_theta"] == 10_000.0 and base["rope_scaling"] is None
    assert base["vocab_size"] == 13 and base["head_dim"] == 16 and base["rms_norm_eps"] == 1e-6
    layer = {
        LAYER.format(n) + f"{name}.weight"
        for n in (0, 1)
        for name in (
            "input_layernorm",
            "post_attention_layernorm",
            "self_attn.q_proj",
            "self_attn.k_proj",
            "self_attn.v_proj",
            "self_attn.q_norm",
            "self_attn.k_norm",
            "self_attn.o_proj",
            "mlp.gate_proj",
            "mlp.up_proj",
            "mlp.down_proj",
        )
    }
    assert set(load_file(folder / "model.safetensors")) == layer | {EMBEDDING, "backbone.model.model.norm.weight"}


@pytest.mark.parametrize(
    "overrides",
    [
        dict(mask_token_id=12, excluded_token_ids=(12,)),
        dict(mask_token_id=11, excluded_token_ids=(11, 12)),
        dict(mask_token_id=12, excluded_token_ids=(10, 11, 12)),
        dict(mask_token_id=3, excluded_token_ids=(3,)),
        dict(horizon=None),
        dict(max_position=None),
        dict(num_layers=1),
        dict(num_layers=12, hidden_size=8, intermediate_size=8),
        dict(rope=RopeConfig(theta=500.0, yarn_factor=4.0, original_max_position=9)),
        dict(head_dim=8, num_heads=3, num_kv_heads=1),
    ],
)
def test_every_setting_survives_a_round_trip(tmp_path: Path, overrides: dict[str, Any]) -> None:
    assert load_model(random_set_checkpoint(tmp_path, **overrides), device="cpu").config == random_set_config(**overrides)


@pytest.mark.parametrize(
    ("mask", "excluded", "vocabulary"), [(3, (3,), 13), (3, (3, 12), 12), (12, (12,), 13), (11, (11, 12), 12), (12, (11, 12), 11)]
)
def test_the_written_vocabulary_ends_where_the_excluded_ids_begin(mask: int, excluded: tuple[int, ...], vocabulary: int) -> None:
    config = random_set_config(mask_token_id=mask, excluded_token_ids=excluded)
    assert setdlm_json(config, None)["vocab_size"] == vocabulary


@pytest.mark.parametrize(
    ("config", "culprit"),
    [
        (random_config(), "block-layout"),
        (random_set_config(qk_norm=False), "without q/k norms"),
        (random_set_config(rope=RopeConfig(original_max_position=8, llama_4_scaling_beta=0.1)), "query scale"),
        (random_set_config(horizon=7), "horizon is 7"),
        (random_set_config(excluded_token_ids=(2, 3)), "2 ids are excluded"),
        (random_set_config(excluded_token_ids=()), "0 ids are excluded"),
    ],
)
def test_a_model_that_does_not_fit_the_format_is_not_written(tmp_path: Path, config: ModelConfig, culprit: str) -> None:
    assert culprit in refusal(lambda: write_setdlm(random_model(config), tmp_path / "x"))
    assert not (tmp_path / "x").exists()


def test_an_ordered_model_is_no_block_model(tmp_path: Path) -> None:
    config = random_set_config(qk_norm=False)
    assert "ordered layout" in refusal(lambda: write_nemotron(random_model(config), tmp_path / "x"))


# The wrapper


def test_exclusion_and_layout_are_in_the_config(folder: Path) -> None:
    config = load_model(folder, device="cpu").config
    assert config.layout == "ordered" and config.block_size is None and config.horizon == 16 and config.qk_norm
    assert config.vocab_size == 13 and config.excluded_token_ids == (3, 11, 12)
    edit_config(folder, vocab_size=13)
    assert load_model(folder, device="cpu").config.excluded_token_ids == (3,)
    edit_config(folder, vocab_size=9, mask_token_id=12)
    assert load_model(folder, device="cpu").config.excluded_token_ids == (9, 10, 11, 12)


@pytest.mark.parametrize("layout", ["", "Block", "rows"])
def test_only_known_layouts_are_accepted(layout: str) -> None:
    assert f"layout is {layout!r}" in refusal(lambda: random_set_config(layout=layout))


@pytest.mark.parametrize("ids", [(3, 2), (3, 3), (13,), (-1,), tuple(range(13))])
def test_excluded_ids_are_checked(ids: tuple[int, ...]) -> None:
    assert "excluded" in refusal(lambda: random_set_config(excluded_token_ids=ids))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (dict(noise_config=None), dict(horizon=None)),
        (dict(noise_config=...), dict(horizon=None)),
        (dict(noise_config={"_target_": "os.system", "length": 1024}), dict(horizon=None)),
        (dict(noise_config={"desired_block_size": 16}), dict(horizon=32)),
        (dict(length=...), dict(max_position=None)),
        (dict(eos_token_id=[1, 2]), dict(eos_token_ids=(1, 2))),
        (dict(backbone_config=...), {}),
        (dict(block_size=1024, eval_block_size=4), {}),
        (dict(tokenization_config=None), {}),
    ],
)
def test_other_wrappers_are_read(folder: Path, changes: dict[str, Any], expected: dict[str, Any]) -> None:
    edit_config(folder, **changes)
    assert load_model(folder, device="cpu").config == dataclasses.replace(random_set_config(3), **expected)


@pytest.mark.parametrize(
    ("changes", "culprits"),
    [
        (dict(vocab_size=...), ("vocab_size is missing",)),
        (dict(vocab_size="11"), ("vocab_size", "'11'")),
        (dict(vocab_size=0), ("vocab_size", "[1, ")),
        (dict(vocab_size=14), ("vocab_size is 14", "13 rows")),
        (dict(mask_token_id=...), ("mask_token_id is missing",)),
        (dict(mask_token_id=13), ("mask_token_id is 13", "[0, 12]")),
        (dict(mask_token_id=None), ("mask_token_id is missing",)),
        (dict(mask_token_id=True), ("mask_token_id", "True")),
        (dict(eos_token_id=...), ("eos_token_id is missing",)),
        (dict(eos_token_id=11), ("eos_token_id", "[0, 10]")),
        (dict(length=0), ("length is 0",)),
        (dict(length="1024"), ("length", "'1024'")),
        (dict(dtype="int8"), ("dtype", "'int8'")),
        (dict(noise_config=[8]), ("noise_config", "[8]", "object")),
        (dict(noise_config={"desired_block_size": 0}), ("noise_config", "desired_block_size is 0")),
        (dict(vocab_size=1, mask_token_id=0, eos_token_id=0), ("all 13 ids are excluded",)),
        (dict(model_type="bd3lm2"), ("'bd3lm2'", "nemotron_labs_diffusion", "bd3lm")),
    ],
)
def test_a_wrapper_that_is_not_supported_is_refused(folder: Path, changes: dict[str, Any], culprits: tuple[str, ...]) -> None:
    edit_config(folder, **changes)
    message = refusal(lambda: load_model(folder, device="cpu"))
    assert str(folder / "config.json") in message and all(culprit in message for culprit in culprits), message


def test_targets_are_never_imported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "evil.py").write_text("raise SystemExit('ran')")
    monkeypatch.syspath_prepend(folder)
    target = {"_target_": "evil.run"}
    edit_config(folder, backbone_config=target, noise_config=target, tokenization_config=target, auto_map={"AutoModel": "evil.M"})
    load_model(folder, device="cpu")


# The base model's config


def test_rotary_settings_and_epsilon_come_from_the_base_config(folder: Path) -> None:
    edit_base(folder, rope_theta=777.0, rms_norm_eps=1e-3)
    config = load_model(folder, device="cpu").config
    assert config.rope == RopeConfig(theta=777.0) and config.rms_norm_eps == 1e-3
    edit_base(folder, rope_theta=..., rope_parameters={"rope_type": "default", "rope_theta": 55.0})
    assert load_model(folder, device="cpu").config.rope.theta == 55.0


def test_without_a_base_config_qwen3s_values_are_used_and_said(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        load_model(folder, device="cpu")
        assert not caplog.records
        (folder / "base_config.json").unlink()
        config = load_model(folder, device="cpu").config
    assert config.rope == RopeConfig(theta=1e6) and config.rms_norm_eps == 1e-6 and config.tie_word_embeddings
    (message,) = [record.getMessage() for record in caplog.records]
    assert str(folder) in message and "rope_theta 1e+06" in message and "rms_norm_eps 1e-06" in message


def test_the_base_config_in_the_hub_cache_is_found(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit_base(folder, rope_theta=321.0)
    cached = tmp_path / "cached.json"
    shutil.move(folder / "base_config.json", cached)
    edit_config(folder, backbone_config={"_target_": "x", "pretrained_model_name_or_path": "Owner/Base-1"})
    asked: list[tuple[str, str]] = []
    answers: list[Any] = [str(cached), None, object()]  # found, unknown, known not to exist
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *given: asked.append(given) or answers.pop(0))
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *given, **named: pytest.fail("asked the hub"))
    assert load_model(folder, device="cpu").config.rope.theta == 321.0
    assert [load_model(folder, device="cpu").config.rope.theta for _ in range(2)] == [1e6, 1e6]
    assert asked == [("Owner/Base-1", "config.json")] * 3


@pytest.mark.parametrize("name", [None, "", "/data/base", "../base", "a/b/c"])
def test_a_base_that_is_no_hub_id_is_not_looked_for(folder: Path, name: Any) -> None:
    (folder / "base_config.json").unlink()
    edit_config(folder, backbone_config={"pretrained_model_name_or_path": name})
    assert load_model(folder, device="cpu").config.rope.theta == 1e6


@pytest.mark.parametrize(
    ("backbone", "culprit"),
    [
        ({"pretrained_model_name_or_path": 7}, "pretrained_model_name_or_path is 7"),
        ([], "backbone_config"),
        ("x", "backbone_config"),
    ],
)
def test_a_mistyped_backbone_is_refused(folder: Path, backbone: Any, culprit: str) -> None:
    (folder / "base_config.json").unlink()
    edit_config(folder, backbone_config=backbone)
    assert culprit in refusal(lambda: load_model(folder, device="cpu"))


@pytest.mark.parametrize(
    ("changes", "culprits"),
    [
        (dict(model_type="qwen2"), ("model_type", "'qwen2'", "'qwen3'")),
        (dict(model_type=...), ("model_type is missing",)),
        (dict(hidden_act="gelu"), ("hidden_act", "'gelu'")),
        (dict(attention_bias=True), ("attention_bias",)),
        (dict(use_sliding_window=True), ("use_sliding_window",)),
        (dict(rope_theta=...), ("rope_theta is missing",)),
        (dict(rope_theta="1e6"), ("rope_theta", "'1e6'")),
        (dict(rope_scaling={"type": "linear"}), ("rope_scaling", "'linear'")),
        (dict(rms_norm_eps=...), ("rms_norm_eps is missing",)),
        (dict(rms_norm_eps=-1.0), ("rms_norm_eps", "-1.0")),
        (dict(tie_word_embeddings="yes"), ("tie_word_embeddings", "'yes'")),
    ],
)
def test_a_base_config_that_is_not_supported_is_refused(folder: Path, changes: dict[str, Any], culprits: tuple[str, ...]) -> None:
    edit_base(folder, **changes)
    message = refusal(lambda: load_model(folder, device="cpu"))
    assert str(folder / "base_config.json") in message and all(culprit in message for culprit in culprits), message


@pytest.mark.parametrize("text", [b"{", b"[]", b"\xff"])
def test_a_broken_base_config_is_refused(folder: Path, text: bytes) -> None:
    (folder / "base_config.json").write_bytes(text)
    assert "base_config.json" in refusal(lambda: load_model(folder, device="cpu"))


# Sizes from shapes


def test_sizes_come_from_the_tensors_alone(folder: Path) -> None:
    edit_base(folder, head_dim=8, num_attention_heads=99, hidden_size=1, num_hidden_layers=7, intermediate_size=3, vocab_size=2)
    assert load_model(folder, device="cpu").config == random_set_config(3)


@pytest.mark.parametrize(
    ("change", "culprits"),
    [
        (lambda t: t.pop(EMBEDDING), (EMBEDDING, "how large")),
        (lambda t: t.pop(Q_NORM), (Q_NORM, "how large")),
        (lambda t: t.clear(), (EMBEDDING, "how large")),
        (lambda t: t.update({EMBEDDING: t[EMBEDDING][0]}), (EMBEDDING, "[24]", "2")),
        (lambda t: t.update({EMBEDDING: t[EMBEDDING][:0]}), (EMBEDDING, "[0, 24]", "positive")),
        (lambda t: t.update({Q_NORM: torch.ones(5)}), ("q_proj", "whole heads of 5")),
        (lambda t: t.update({Q_NORM: torch.ones(1)}), ("head_dim is 1", "even")),
        (lambda t: t.pop(Q), (Q, "1 tensor", "missing")),
        (lambda t: t.update({Q: t[Q].T.contiguous()}), (Q, "shape")),
        (lambda t: t.update({Q: t[Q].to(torch.int8)}), (Q, "I8")),
        (lambda t: t.update({LAYER.format(5) + "mlp.up_proj.weight": torch.ones(2)}), ("layers.5", "unexpected", "missing")),
        (lambda t: t.update({LAYER.format(10**30) + "mlp.up_proj.weight": torch.ones(2)}), ("unexpected",)),
        (lambda t: t.update({"backbone.extra": torch.ones(2)}), ("backbone.extra", "unexpected")),
    ],
)
def test_weights_that_do_not_fit_are_refused(folder: Path, change: Callable, culprits: tuple[str, ...]) -> None:
    edit_tensors(folder, change)
    message = refusal(lambda: load_model(folder, device="cpu"))
    assert str(folder) in message and all(culprit in message for culprit in culprits), message


def test_heads_must_divide(folder: Path) -> None:
    edit_tensors(folder, lambda t: t.update({LAYER.format(0) + "self_attn.k_proj.weight": torch.ones(16 * 5, 24)}))
    assert "query heads do not divide" in refusal(lambda: load_model(folder, device="cpu"))


def test_a_stray_mask_buffer_is_ignored(folder: Path) -> None:
    whole = load_model(folder, device="cpu")
    strays = {"static_attention_mask": torch.ones(4, 4, dtype=torch.bool), "backbone.static_attention_mask": torch.ones(2)}
    edit_tensors(folder, lambda t: t.update(strays))
    assert same(load_model(folder, device="cpu"), whole)
    as_saved(folder)
    assert same(load_model(folder, device="cpu"), whole)


def test_the_head_may_repeat_the_embedding_only(folder: Path) -> None:
    edit_tensors(folder, lambda t: t.update({HEAD: t[EMBEDDING].clone()}))
    load_model(folder, device="cpu")
    edit_tensors(folder, lambda t: t[HEAD][3, 4].add_(1))
    message = refusal(lambda: load_model(folder, device="cpu"))
    assert HEAD in message and "tied to the embedding" in message


# What torch.save wrote


SAVED = {"today": {}, "old": {"_use_new_zipfile_serialization": False}}


@pytest.mark.parametrize("options", SAVED.values(), ids=SAVED.keys())
def test_a_saved_file_holds_the_same_model(folder: Path, options: dict[str, Any]) -> None:
    whole = load_model(folder, device="cpu")

    def spread(tensors: dict[str, Any]) -> None:
        """Parameters, a view into a larger tensor, transposed strides, and the head as the embedding itself."""
        tensors[Q] = torch.nn.Parameter(tensors[Q])
        tensors[Q_NORM] = torch.cat([torch.zeros(3), tensors[Q_NORM]])[3:]
        up = LAYER.format(0) + "mlp.up_proj.weight"
        tensors[up] = tensors[up].T.contiguous().T
        tensors[HEAD] = tensors[EMBEDDING]

    as_saved(folder, spread, **options)
    assert same(load_model(folder, device="cpu"), whole)


def test_safetensors_come_first(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"not read")
    load_model(folder, device="cpu")


def test_a_compressed_file_is_not_mapped(folder: Path) -> None:
    whole = load_model(folder, device="cpu")
    file = as_saved(folder)
    with zipfile.ZipFile(file) as archive:
        members = [(member, archive.read(member)) for member in archive.infolist()]
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in members:
            archive.writestr(member.filename, data)
    assert same(load_model(folder, device="cpu"), whole)


def test_saved_shards_hold_the_same_model(folder: Path) -> None:
    whole = load_model(folder, device="cpu")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {name: f"pytorch_model-0000{i % 2 + 1}-of-00002.bin" for i, name in enumerate(sorted(tensors))}
    for file in set(weight_map.values()):
        torch.save({name: tensors[name] for name in tensors if weight_map[name] == file}, folder / file)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert same(load_model(folder, device="cpu"), whole)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map | {Q: "../pytorch_model.bin"}}))
    assert "same folder" in refusal(lambda: load_model(folder, device="cpu"))
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map | {Q: "model.safetensors"}}))
    assert ".bin files" in refusal(lambda: load_model(folder, device="cpu"))


class Runs:
    """Runs code when it is unpickled by a reader that lets it."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.place),)


@pytest.mark.parametrize("options", SAVED.values(), ids=SAVED.keys())
def test_nothing_in_a_saved_file_is_run(folder: Path, options: dict[str, Any]) -> None:
    mark = folder / "ran"
    file = as_saved(folder, lambda t: t.update(evil=Runs(mark)), **options)
    torch.load(file, weights_only=False)
    assert mark.exists()
    mark.rmdir()
    message = refusal(lambda: load_model(folder, device="cpu"))
    assert not mark.exists() and "pytorch_model.bin" in message and "it asks for posix.mkdir" in message


@pytest.mark.parametrize(
    ("content", "culprit"),
    [
        ([torch.ones(2)], "'list'"),
        (torch.ones(2), "'Tensor'"),
        ({"state_dict": {"x": torch.ones(1)}}, "'state_dict'"),
        ({"step": 3}, "'step'"),
        ({3: torch.ones(1)}, "no name"),
        ({"x": torch.ones(2).to_sparse()}, "'x'"),
        ({"x": torch.ones(2, device="meta")}, "'x'"),
    ],
)
def test_a_saved_file_of_other_things_is_refused(folder: Path, content: Any, culprit: str) -> None:
    file = as_saved(folder)
    torch.save(content, file)
    message = refusal(lambda: load_model(folder, device="cpu"))
    assert str(file) in message and culprit in message, message


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b[:-4],
        lambda b: b[: len(b) // 2],
        lambda b: b[:100],
        lambda b: b[:7],
        lambda b: b"",
        lambda b: b"\xff" * 8 + b[8:],
        lambda b: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        lambda b: pickle.dumps({"x": 1}, protocol=2),
    ],
    ids=range(8),
)
@pytest.mark.parametrize("options", SAVED.values(), ids=SAVED.keys())
def test_a_damaged_saved_file_is_refused(folder: Path, damage: Callable[[bytes], bytes], options: dict[str, Any]) -> None:
    file = as_saved(folder, **options)
    file.write_bytes(damage(file.read_bytes()))
    assert str(file) in refusal(lambda: load_model(folder, device="cpu"))


def test_saved_tensors_of_a_wrong_dtype_are_refused(folder: Path) -> None:
    as_saved(folder, lambda t: t.update({Q: t[Q].to(torch.int32)}))
    message = refusal(lambda: load_model(folder, device="cpu"))
    assert Q in message and "int32" in message and "BF16" in message


def test_saved_files_are_fetched_only_where_there_are_no_safetensors(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download", lambda name, **given: asked.append(given["allow_patterns"]) or str(folder)
    )
    load_model("owner/set", device="cpu")
    assert asked == [loading.HUB_FILES]
    as_saved(folder)
    load_model("owner/set", device="cpu")
    assert asked[1:] == [loading.HUB_FILES, loading.HUB_SAVED] and weights.SAVED in loading.HUB_SAVED


# The oracle


CONFIGS = {
    "tied": random_set_config(0),
    "untied": random_set_config(1, tie_word_embeddings=False),
    "one kv head": random_set_config(0, num_heads=3, num_kv_heads=1),
    "six heads": random_set_config(0, num_heads=6, num_kv_heads=2, num_layers=3),
    "epsilon": random_set_config(0, rms_norm_eps=0.5),
    "long rotation": random_set_config(0, rope=RopeConfig(theta=1e6)),
}


def gap(model: Transformer, oracle: torch.nn.Module, rows: int = 40) -> float:
    """Largest difference of a logit from the oracle's, over two random sequences."""
    ids = torch.randint(model.config.vocab_size, (2, rows), generator=torch.Generator().manual_seed(6))
    ours, theirs = model(ids, causal(model, rows)), oracle(ids, use_cache=False).logits
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    return (ours - theirs).abs().max().item()


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-4), (torch.float64, 1e-5)], ids=["float32", "float64"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_causal_logits_of_a_loaded_checkpoint_are_those_of_qwen3(
    tmp_path: Path, config: ModelConfig, dtype: torch.dtype, most: float
) -> None:
    model = random_model(config, seed=5, dtype=torch.float32)
    write_setdlm(model, tmp_path)
    assert gap(load_model(tmp_path, device="cpu", dtype=dtype), qwen3(model.to(dtype))) < most


@pytest.mark.parametrize("broken", ["q_norm", "k_norm", "theta", "eps"])
def test_what_the_oracle_would_not_forgive(tmp_path: Path, broken: str) -> None:
    """Norms, rotation and epsilon matter: with another value of one of them the logits are far from the oracle's."""
    model = random_model(random_set_config(0), seed=5, dtype=torch.float64)
    other = random_model(
        dataclasses.replace(
            model.config, **{"theta": {"rope": RopeConfig(theta=100.0)}, "eps": {"rms_norm_eps": 0.1}}.get(broken, {})
        ),
        seed=5,
        dtype=torch.float64,
    )
    if broken.endswith("norm"):
        for block in other.blocks:
            getattr(block, broken).weight.fill_(1.0)
    assert gap(model, qwen3(model)) < 1e-5
    assert gap(other, qwen3(model)) > 1e-2


def test_transformers_loads_the_base_part_by_itself(folder: Path, tmp_path: Path) -> None:
    """The base config and the tensors without their wrapper's prefix are a whole Qwen3 checkpoint."""
    from transformers import Qwen3ForCausalLM

    tensors: dict[str, Tensor] = load_file(folder / "model.safetensors")
    save_file(
        {name.removeprefix("backbone.model."): t for name, t in tensors.items()},
        tmp_path / "model.safetensors",
        metadata={"format": "pt"},
    )
    shutil.copy(folder / setdlm.BASE_CONFIG, tmp_path / "config.json")
    oracle = Qwen3ForCausalLM.from_pretrained(tmp_path, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        assert gap(load_model(folder, device="cpu"), oracle) < 1e-4
