"""Lists of tensors that operators take as one operand: what each tensor must be, stated once.

A dataclass of such tensors (`packed_ss.state.BlockState`, `packed_ss.rows.Rows` ...) names its operands in the order in which
operators take them.  Checks, the plain-torch kernels and the Triton launches are made from that list; C++ has the same lists in
csrc/include/packed_ss/state_fields.h, which a test compares.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import get_type_hints

import torch
from torch import Tensor

#: Sizes that may be 0: sequences and stops.
_MAY_BE_EMPTY = ("N", "S")


@dataclass(frozen=True)
class Shape:
    """Marks a dataclass field as an operand: symbols of its sizes, such as "N W", and whether operators write it."""

    symbols: str
    written: bool = True


@dataclass(frozen=True)
class Operand:
    """One tensor of a list, int32 and contiguous: its name, the symbols of its sizes, and whether operators write it."""

    name: str
    shape: tuple[str, ...]
    written: bool


@functools.cache
def operands_of(state: Hashable) -> tuple[Operand, ...]:
    """The operands among the fields of a dataclass, in order."""
    hints = get_type_hints(state, include_extras=True)
    return tuple(
        Operand(f.name, tuple(shape.symbols.split()), shape.written)
        for f in fields(state)  # type: ignore[arg-type]  # a class is hashable too
        for shape in getattr(hints[f.name], "__metadata__", ())
    )


def named(operands: Sequence[Operand], tensors: Sequence[Tensor]) -> SimpleNamespace:
    """The tensors of a list, by name."""
    return SimpleNamespace(**{one.name: tensor for one, tensor in zip(operands, tensors, strict=True)})


def check_operands(
    op: str, what: str, operands: Sequence[Operand], tensors: Sequence[Tensor], device: torch.device, sizes: dict[str, int]
) -> None:
    """Refuse tensors that are not what ``operands`` says.

    ``sizes``: what symbols stand for; free ones are bound at their first use.  Values on a device are not looked at.
    """
    if len(tensors) != len(operands):
        names = ", ".join(one.name for one in operands)
        raise ValueError(f"{op}: {what} must have {len(operands)} tensors ({names}), got {len(tensors)}.")
    for one, tensor in zip(operands, tensors, strict=True):
        check_tensor(op, one.name, tensor, torch.int32, one.shape, device, sizes)


def check_tensor(
    op: str,
    name: str,
    tensor: Tensor,
    dtype: torch.dtype | Sequence[torch.dtype],
    shape: Sequence[str],
    device: torch.device,
    sizes: dict[str, int],
    *,
    strided: bool = False,
) -> None:
    """Refuse a tensor of another dtype, shape or device, or that is not contiguous (``strided``: along its last dimension)."""
    accepted = [dtype] if isinstance(dtype, torch.dtype) else list(dtype)
    known = [symbol for symbol in dict.fromkeys(shape) if symbol in sizes]
    fits = tensor.dim() == len(shape) and all(
        size == sizes[symbol] if symbol in sizes else size >= (0 if symbol in _MAY_BE_EMPTY else 1)
        for symbol, size in zip(shape, tensor.shape, strict=True)
    )
    gapless = is_dense(tensor) if strided else tensor.is_contiguous()
    if not fits or tensor.dtype not in accepted or not gapless or tensor.device != device:
        given = f" with {', '.join(f'{symbol} = {sizes[symbol]}' for symbol in known)}" if known else ""
        raise ValueError(
            f"{op}: {name} must be contiguous {names_of(accepted)} [{', '.join(shape)}]{given} on {device}, "
            f"{got(tensor, gapless)}."
        )
    sizes.update(zip(shape, tensor.shape, strict=True))


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements of the last dimension lie side by side."""
    return tensor.dim() > 0 and (tensor.stride(-1) == 1 or tensor.shape[-1] <= 1)


def names_of(dtypes: Iterable[torch.dtype]) -> str:
    """Names of dtypes for people."""
    *most, last = (str(one).removeprefix("torch.") for one in dtypes)
    return f"{', '.join(most)} or {last}" if most else last


def got(tensor: Tensor, gapless: bool | None = None) -> str:
    """What a tensor is, for the end of a refusal."""
    gap = "" if (tensor.is_contiguous() if gapless is None else gapless) else "non-contiguous "
    return f"got {gap}{names_of([tensor.dtype])} {list(tensor.shape)} on {tensor.device}"
