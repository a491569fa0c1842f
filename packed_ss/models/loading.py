"""Finds a checkpoint, checks all of it from its headers, and reads it straight into a model's parameters."""

from __future__ import annotations

import dataclasses
import os
import re
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

import torch

from . import nemotron, setdlm
from .adapter import load_adapter
from .config import Fields, ModelConfig, read_object, shown
from .tensors import Shapes, TensorMap
from .transformer import Transformer
from .weights import FLOAT_DTYPES, INDEX, SAVED, WEIGHTS, Stored, count_names, opened, stored_tensors

#: Checkpoints that ship with the package, by name.
BUNDLED = ("tiny", "tiny-set")

HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer*", "vocab.txt", "merges.txt"]
HUB_IGNORED = ["consolidated*", "original/*"]  # the same weights once more, in another format
HUB_SAVED = [SAVED, "pytorch_model-*.bin"]  # fetched only where there are no safetensors


class Family(Protocol):
    """What a module that describes one checkpoint format provides.

    ``IGNORED``: last parts of tensor names that stand for nothing the model needs.  See `nemotron` for the functions.
    """

    IGNORED: frozenset[str]

    def model_config(self, config: dict[str, Any], folder: Path, shapes: Shapes) -> ModelConfig: ...

    def tensor_map(self, config: ModelConfig) -> TensorMap: ...

    def tied_copies(self, config: ModelConfig) -> TensorMap: ...


#: ``model_type`` of config.json -> the format's module.
FAMILIES: dict[str, Family] = {nemotron.MODEL_TYPE: nemotron, setdlm.MODEL_TYPE: setdlm}


def load_model(
    path_or_id: str | os.PathLike[str],
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    revision: str | None = None,
    adapter: str | os.PathLike[str] | None = None,
) -> Transformer:
    """Loads a checkpoint for inference: eval mode, no gradients, ``model.source`` the folder it came from.

    ``path_or_id`` is as `resolve_folder` takes it.  ``device`` None is CUDA where there is any, else the CPU; ``dtype``
    None is float32 on the CPU and the checkpoint's own on CUDA.  Names, shapes and dtypes are checked before any weight
    is read; weights are then read one tensor at a time, so that the peak is one copy of the model and one tensor.

    ``adapter`` is a proposal-only LoRA in the PEFT format, which acts on the rows that draft and on no other, so that the
    text stays the base model's: a folder inside the checkpoint's by name, such as "linear_spec_lora", or any local folder.

    Raises ValueError for anything that is missing, unreadable, contradictory or not supported.
    """
    device, dtype = _device(device), _float_dtype(dtype)
    folder = resolve_folder(path_or_id, revision)
    values = read_object(folder / "config.json")
    family = _family(values, folder / "config.json")
    stored = {name: t for name, t in stored_tensors(folder).items() if name.rpartition(".")[2] not in family.IGNORED}
    config = family.model_config(values, folder, {name: t.shape for name, t in stored.items()})
    tensors, copies = family.tensor_map(config), family.tied_copies(config)
    _check(stored, tensors, copies, folder)
    if values.get("dtype") is None and values.get("torch_dtype") is None:
        config = dataclasses.replace(config, dtype=FLOAT_DTYPES[stored[tensors["embed.weight"][0][0]].dtype])
    if dtype is None:
        dtype = torch.float32 if device.type == "cpu" else getattr(torch, config.dtype)

    with torch.device("meta"):
        model = Transformer(config).to(dtype)
    model = model.to_empty(device=device).requires_grad_(False).eval()
    _read(model, stored, tensors)
    _compare(model, stored, copies)
    model.source = folder
    if adapter is not None:
        model.adapter_source = adapter_folder(adapter, folder)
        load_adapter(model, model.adapter_source, tensors)
    return model


def adapter_folder(adapter: str | os.PathLike[str], checkpoint: Path) -> Path:
    """The folder of an adapter: inside the checkpoint's, else a local one.  Raises ValueError where there is none."""
    if not isinstance(adapter, (str, os.PathLike)) or not os.fspath(adapter):
        raise ValueError(f"the adapter is {shown(adapter)}, but the name of a folder in the checkpoint, or a folder, is accepted")
    for folder in (checkpoint / adapter, Path(adapter).expanduser()):
        if folder.is_dir():
            return folder
    raise ValueError(
        f"there is no adapter {str(adapter)!r}: {checkpoint} has no folder of that name, and there is no such local folder"
    )


def resolve_folder(path_or_id: str | os.PathLike[str], revision: str | None = None) -> Path:
    """The folder of a checkpoint: a bundled one by name, else a local folder, else a Hugging Face Hub id.

    A local folder that is called like a bundled checkpoint is reached as ``./name``.  ``revision`` (branch, tag or
    commit) is for hub ids.  Raises ValueError where there is no such checkpoint or the hub does not give it.
    """
    if not isinstance(path_or_id, (str, os.PathLike)) or not os.fspath(path_or_id):
        raise ValueError(f"the checkpoint is {shown(path_or_id)}, but a folder, a hub id or one of {BUNDLED} is accepted")
    name = str(path_or_id)
    if name in BUNDLED:
        folder = Path(str(resources.files("packed_ss").joinpath("assets", name)))
        if not folder.is_dir():
            raise ValueError(f"the bundled checkpoint {name!r} is missing from this installation: {folder} does not exist")
        return folder
    local = Path(os.path.expanduser(name))
    if local.is_dir():
        return local
    if local.exists():
        raise ValueError(f"{name!r} is a file, but a checkpoint is a folder with config.json and weights in it")
    # Hub ids have at most one slash; "./x" and "x/" are meant as folders.
    if isinstance(path_or_id, os.PathLike) or not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name, re.ASCII):
        raise ValueError(f"there is no folder {name!r}, and it has not the form of a hub id")
    return _download(name, revision)


def _download(name: str, revision: str | None) -> Path:
    from huggingface_hub import constants, errors, snapshot_download

    nowhere = f"{name!r} is neither a bundled checkpoint {BUNDLED} nor a local folder"
    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=HUB_FILES, ignore_patterns=HUB_IGNORED))
        if not any((folder / file).exists() for file in (WEIGHTS, INDEX)):
            snapshot_download(name, revision=revision, allow_patterns=HUB_SAVED)
        return folder
    except errors.GatedRepoError:
        reason = "the hub gives it only to accounts that accepted its terms and are logged in"
    except errors.RevisionNotFoundError:
        reason = f"the hub has no revision {revision!r} of it"
    except errors.RepositoryNotFoundError:
        reason = "the hub has no such repository, or a private one"
    except Exception as error:
        if constants.HF_HUB_OFFLINE:
            reason = "it is not in the hub cache, with HF_HUB_OFFLINE set"
        else:
            reason = f"it is not in the hub cache, with the hub not reachable ({type(error).__name__})"
    raise ValueError(f"{nowhere}, and {reason}") from None


def _device(device: str | torch.device | None) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        known = torch.device(device)
    except (RuntimeError, TypeError):
        known = None
    if known is None or known.type not in ("cpu", "cuda"):
        raise ValueError(f"device is {shown(device)}, but 'cpu', 'cuda' or 'cuda:N' is accepted")
    if known.type == "cuda" and (known.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device is {shown(device)}, but this machine has {torch.cuda.device_count()} usable CUDA devices")
    return known


def _float_dtype(dtype: torch.dtype | None) -> torch.dtype | None:
    if dtype is not None and dtype not in [getattr(torch, name) for name in FLOAT_DTYPES.values()]:
        raise ValueError(f"dtype is {shown(dtype)}, but a torch dtype among {', '.join(FLOAT_DTYPES.values())} is accepted")
    return dtype


def _family(values: dict[str, Any], file: Path) -> Family:
    kind = Fields(values, str(file)).get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ValueError(f"{file}: model_type is {shown(kind)}, but only {', '.join(map(repr, FAMILIES))} is supported")
    return FAMILIES[kind]


def _check(stored: dict[str, Stored], tensors: TensorMap, copies: TensorMap, folder: Path) -> None:
    """Refuses a checkpoint whose tensors are not exactly those of the model."""
    needed = dict(part for parts in tensors.values() for part in parts)
    known = needed | dict(part for parts in copies.values() for part in parts)
    faults = []
    if missing := [name for name in needed if name not in stored]:
        faults.append(f"{count_names(missing)} missing")
    if unexpected := [name for name in stored if name not in known]:
        faults.append(f"{count_names(unexpected)} unexpected")
    present = {name: tensor for name, tensor in stored.items() if name in known}
    misshaped = {name: t.shape for name, t in present.items() if t.shape != known[name]}
    if shapes := [f"{name} {list(shape)} instead of {list(known[name])}" for name, shape in misshaped.items()]:
        faults.append(f"{count_names(shapes)} of a wrong shape")
    if dtypes := [f"{name} {t.dtype}" for name, t in present.items() if t.dtype not in FLOAT_DTYPES]:
        faults.append(f"{count_names(dtypes)} of a dtype other than {', '.join(FLOAT_DTYPES)}")
    if faults:
        raise ValueError(f"the weights in {folder} do not fit its config.json: {'; '.join(faults)}")


def _read(model: Transformer, stored: dict[str, Stored], tensors: TensorMap) -> None:
    """Copies every tensor to its rows of its parameter, file by file."""
    targets = {}
    for parameter, parts in tensors.items():
        first = 0
        for name, shape in parts:
            targets[name] = model.get_parameter(parameter).detach()[first : first + shape[0]]
            first += shape[0]
    for path in sorted({stored[name].file for name in targets}):
        with opened(path) as file:
            for name, target in targets.items():
                if stored[name].file == path:
                    target.copy_(file.get_tensor(name))


def _compare(model: Transformer, stored: dict[str, Stored], copies: TensorMap) -> None:
    """Refuses a tied tensor that is stored twice with different values."""
    for parameter, parts in copies.items():
        weight = model.get_parameter(parameter)
        for name, _ in parts:
            if name in stored:
                with opened(stored[name].file) as file:
                    if not torch.equal(file.get_tensor(name).to(weight), weight):
                        raise ValueError(f"the head is tied to the embedding, but {name} in {stored[name].file} differs from it")
