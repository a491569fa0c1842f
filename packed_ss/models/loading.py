"""Finds a checkpoint, checks all of it from its headers, and reads it straight into a model's parameters."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from safetensors import SafetensorError, safe_open

from . import nemotron
from .config import Fields, ModelConfig, shown
from .transformer import Transformer

#: Checkpoints that ship with the package, by name.
BUNDLED = ("tiny",)

#: safetensors' names of the dtypes that weights may have.
FLOAT_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer*", "vocab.txt", "merges.txt"]
HUB_IGNORED = ["consolidated*", "original/*"]  # the same weights once more, in another format


class Family(Protocol):
    """What a module that describes one checkpoint format provides; see `nemotron` for the meaning of each."""

    def read_config(self, config: dict[str, Any], where: str) -> ModelConfig: ...

    def tensor_map(self, config: ModelConfig) -> nemotron.TensorMap: ...

    def tied_copies(self, config: ModelConfig) -> nemotron.TensorMap: ...


#: ``model_type`` of config.json -> the format's module.
FAMILIES: dict[str, Family] = {nemotron.MODEL_TYPE: nemotron}


class Stored(NamedTuple):
    """One tensor of a checkpoint as its file's header describes it; ``dtype`` is safetensors' name."""

    file: Path
    shape: tuple[int, ...]
    dtype: str


def load_model(
    path_or_id: str | os.PathLike[str],
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    revision: str | None = None,
) -> Transformer:
    """Loads a checkpoint for inference: eval mode, no gradients, ``model.source`` the folder it came from.

    ``path_or_id`` is as `resolve_folder` takes it.  ``device`` None is CUDA where there is any, else the CPU; ``dtype``
    None is float32 on the CPU and the checkpoint's own on CUDA.  Names, shapes and dtypes are checked before any weight
    is read; weights are then read one tensor at a time, so that the peak is one copy of the model and one tensor.

    Raises ValueError for anything that is missing, unreadable, contradictory or not supported.
    """
    device, dtype = _device(device), _float_dtype(dtype)
    folder = resolve_folder(path_or_id, revision)
    values = _read_object(folder / "config.json")
    family = _family(values, folder / "config.json")
    config = family.read_config(values, str(folder / "config.json"))
    tensors, copies = family.tensor_map(config), family.tied_copies(config)
    stored = _stored(folder)
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
    return model


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
        return Path(snapshot_download(name, revision=revision, allow_patterns=HUB_FILES, ignore_patterns=HUB_IGNORED))
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


def _read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        values = json.loads(path.read_bytes())
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ValueError(f"{path} is not valid JSON") from None
    return Fields(values, str(path)).values


def _stored(folder: Path) -> dict[str, Stored]:
    """Every tensor of the checkpoint by name, from the headers of its files."""
    if (folder / WEIGHTS).exists():
        return _header(folder / WEIGHTS)
    index = folder / INDEX
    if not index.exists():
        raise ValueError(f"{folder} holds neither {WEIGHTS} nor {INDEX}")
    listed = Fields(_read_object(index), str(index)).get("weight_map")
    shards: dict[str, set[str]] = {}
    for name, file in Fields(listed, f"{index}: weight_map").values.items():
        # A shard lies beside its index, wherever the index says it is.
        if not isinstance(file, str) or not re.fullmatch(r"[\w.-]+\.safetensors", file, re.ASCII):
            raise ValueError(f"{index}: tensor {shown(name)} is in {shown(file)}, but only names of .safetensors files "
                             "in the same folder are accepted")
        shards.setdefault(file, set()).add(name)
    stored: dict[str, Stored] = {}
    strays = []
    for file, names in shards.items():
        if not (folder / file).exists():
            raise ValueError(f"{index} lists the shard {file!r}, but {folder} does not hold it")
        held = _header(folder / file)
        if absent := sorted(names - held.keys()):
            raise ValueError(f"{index} lists {_names(absent)} in {file!r}, but that shard does not hold them")
        strays += sorted(held.keys() - names)
        stored |= held
    if strays:
        raise ValueError(f"the shards of {index} hold {_names(strays)} where it does not list them")
    return stored


def _header(path: Path) -> dict[str, Stored]:
    stored = {}
    with _opened(path) as file:
        for name in file.keys():  # noqa: SIM118 - not a dict
            part = file.get_slice(name)
            stored[name] = Stored(path, tuple(part.get_shape()), part.get_dtype())
    return stored


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            yield file
    except (SafetensorError, OSError) as error:
        reason = re.sub(r"\s+", " ", str(error)).rstrip(".")
        raise ValueError(f"{path} is not a complete safetensors file: {reason}") from None


def _check(stored: dict[str, Stored], tensors: nemotron.TensorMap, copies: nemotron.TensorMap, folder: Path) -> None:
    """Refuses a checkpoint whose tensors are not exactly those of the model."""
    needed = dict(part for parts in tensors.values() for part in parts)
    known = needed | dict(part for parts in copies.values() for part in parts)
    faults = []
    if missing := [name for name in needed if name not in stored]:
        faults.append(f"{_names(missing)} missing")
    if unexpected := [name for name in stored if name not in known]:
        faults.append(f"{_names(unexpected)} unexpected")
    present = {name: tensor for name, tensor in stored.items() if name in known}
    misshaped = {name: t.shape for name, t in present.items() if t.shape != known[name]}
    if shapes := [f"{name} {list(shape)} instead of {list(known[name])}" for name, shape in misshaped.items()]:
        faults.append(f"{_names(shapes)} of a wrong shape")
    if dtypes := [f"{name} {t.dtype}" for name, t in present.items() if t.dtype not in FLOAT_DTYPES]:
        faults.append(f"{_names(dtypes)} of a dtype other than {', '.join(FLOAT_DTYPES)}")
    if faults:
        raise ValueError(f"the weights in {folder} do not fit its config.json: {'; '.join(faults)}")


def _names(names: list[str], most: int = 3) -> str:
    """The first few names and how many there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{len(names)} tensor{'s' if len(names) > 1 else ''} ({', '.join(names[:most])}{more})"


def _read(model: Transformer, stored: dict[str, Stored], tensors: nemotron.TensorMap) -> None:
    """Copies every tensor to its rows of its parameter, file by file."""
    targets = {}
    for parameter, parts in tensors.items():
        first = 0
        for name, shape in parts:
            targets[name] = model.get_parameter(parameter).detach()[first: first + shape[0]]
            first += shape[0]
    for path in sorted({stored[name].file for name in targets}):
        with _opened(path) as file:
            for name, target in targets.items():
                if stored[name].file == path:
                    target.copy_(file.get_tensor(name))


def _compare(model: Transformer, stored: dict[str, Stored], copies: nemotron.TensorMap) -> None:
    """Refuses a tied tensor that is stored twice with different values."""
    for parameter, parts in copies.items():
        weight = model.get_parameter(parameter)
        for name, _ in parts:
            if name in stored:
                with _opened(stored[name].file) as file:
                    if not torch.equal(file.get_tensor(name).to(weight), weight):
                        raise ValueError(f"config.json ties the weights, but {name} in {stored[name].file} differs from "
                                         f"the embedding")
