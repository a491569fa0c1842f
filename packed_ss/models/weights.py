"""The weight files of a checkpoint folder: which there are, what their headers say, and one tensor at a time.

Safetensors, or what ``torch.save`` wrote, each in one file or in shards with an index.  Of the latter, torch's
``weights_only`` reader takes tensors in plain containers and nothing else: no code that a file names is ever run.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .config import Fields, read_object, shown

#: safetensors' names of the dtypes that weights may have.
FLOAT_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}

#: Where weights may be, in order of preference: a file of all tensors, or the index of its shards.
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
SAVED, SAVED_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"


class Stored(NamedTuple):
    """One tensor of a checkpoint as its file's header describes it; ``dtype`` is safetensors' name."""

    file: Path
    shape: tuple[int, ...]
    dtype: str


class WeightFile(Protocol):
    """An open file of named tensors."""

    def header(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and dtype of every tensor by name."""

    def get_tensor(self, name: str) -> Tensor:
        """One tensor, on the CPU."""


def stored_tensors(folder: Path) -> dict[str, Stored]:
    """Every tensor of the checkpoint by name, from the headers of its files; ValueError where they are not whole."""
    for single, index in ((WEIGHTS, INDEX), (SAVED, SAVED_INDEX)):
        if (folder / single).exists():
            return stored_in(folder / single)
        if (folder / index).exists():
            return _shards(folder / index, Path(single).suffix)
    raise ValueError(f"{folder} holds neither {WEIGHTS} nor {INDEX}, and neither {SAVED} nor {SAVED_INDEX}")


def _shards(index: Path, ending: str) -> dict[str, Stored]:
    """The tensors of all shards that an index lists."""
    folder = index.parent
    listed = Fields(read_object(index), str(index)).get("weight_map")
    shards: dict[str, set[str]] = {}
    for name, file in Fields(listed, f"{index}: weight_map").values.items():
        # A shard lies beside its index, wherever the index says it is.
        if not isinstance(file, str) or not re.fullmatch(r"[\w.-]+" + re.escape(ending), file, re.ASCII):
            raise ValueError(
                f"{index}: tensor {shown(name)} is in {shown(file)}, but only names of {ending} files "
                "in the same folder are accepted"
            )
        shards.setdefault(file, set()).add(name)
    stored: dict[str, Stored] = {}
    strays = []
    for file, names in shards.items():
        if not (folder / file).exists():
            raise ValueError(f"{index} lists the shard {file!r}, but {folder} does not hold it")
        held = stored_in(folder / file)
        if absent := sorted(names - held.keys()):
            raise ValueError(f"{index} lists {count_names(absent)} in {file!r}, but that shard does not hold them")
        strays += sorted(held.keys() - names)
        stored |= held
    if strays:
        raise ValueError(f"the shards of {index} hold {count_names(strays)} where it does not list them")
    return stored


def count_names(names: list[str], most: int = 3) -> str:
    """The first few names and how many there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{len(names)} tensor{'s' if len(names) > 1 else ''} ({', '.join(names[:most])}{more})"


def stored_in(path: Path) -> dict[str, Stored]:
    """Every tensor of one file by name, from its header."""
    with opened(path) as file:
        return {name: Stored(path, shape, dtype) for name, (shape, dtype) in file.header().items()}


@contextmanager
def opened(path: Path) -> Iterator[WeightFile]:
    """A weight file of either kind; ValueError, then and while it is read, where it is damaged."""
    if path.suffix == ".bin":
        yield _SavedFile(path)
        return
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            yield _SafetensorsFile(file)
    except (SafetensorError, OSError) as error:
        reason = re.sub(r"\s+", " ", str(error)).rstrip(".")
        raise ValueError(f"{path} is not a complete safetensors file: {reason}") from None


class _SafetensorsFile:
    """What safetensors has open, as a `WeightFile`."""

    def __init__(self, file: safe_open) -> None:
        self._file = file

    def header(self) -> dict[str, tuple[tuple[int, ...], str]]:
        parts = {name: self._file.get_slice(name) for name in self._file.keys()}  # noqa: SIM118 - not a dict
        return {name: (tuple(part.get_shape()), part.get_dtype()) for name, part in parts.items()}

    def get_tensor(self, name: str) -> Tensor:
        return self._file.get_tensor(name)


class _SavedFile:
    """What ``torch.save`` wrote, as a `WeightFile`: memory-mapped where the file allows it, else read whole."""

    def __init__(self, path: Path) -> None:
        values = _load_saved(path)
        if not isinstance(values, dict):
            raise ValueError(f"{path} holds {shown(type(values).__name__)}, but named tensors are accepted")
        self._tensors: dict[str, Tensor] = {}
        for name, value in values.items():
            plain = type(value) in (Tensor, torch.nn.Parameter) and value.layout == torch.strided and value.device.type == "cpu"
            if not isinstance(name, str) or not plain:
                what = "no plain tensor" if isinstance(name, str) else "no name"
                raise ValueError(f"{path}: {what} stands at {shown(name)}, but only named tensors of numbers are accepted")
            self._tensors[name] = value.detach()

    def header(self) -> dict[str, tuple[tuple[int, ...], str]]:
        names = {getattr(torch, ours): theirs for theirs, ours in FLOAT_DTYPES.items()}
        return {
            name: (tuple(t.shape), names.get(t.dtype, str(t.dtype).removeprefix("torch."))) for name, t in self._tensors.items()
        }

    def get_tensor(self, name: str) -> Tensor:
        return self._tensors[name]


def _load_saved(path: Path) -> object:
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=_can_be_mapped(path))
    except Exception as error:
        asked = re.search(r"GLOBAL ([\w.]+)", str(error))
        reason = f"it asks for {asked[1]}" if asked else f"torch's weights_only reader ends in {type(error).__name__}"
        raise ValueError(f"{path} is not a complete file of named tensors: {reason}") from None


def _can_be_mapped(path: Path) -> bool:
    """Whether tensors can be used where they lie in the file: in the zip format of today, and not compressed."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return all(member.compress_type == zipfile.ZIP_STORED for member in archive.infolist())
