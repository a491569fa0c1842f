"""Proposal-only LoRA in the PEFT format: low-rank updates of the rows that draft, and of no other.

A drafting row's product with W becomes ``W x + (alpha / r) B A x``.  Verifier rows keep ``W x``, out of the very same matrix
product, so what the model accepts or emits is the base model's with or without an adapter (App. F.2).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import Fields, read_object, shown
from .tensors import TensorMap
from .weights import FLOAT_DTYPES, Stored, count_names, opened, stored_in

if TYPE_CHECKING:
    from .transformer import Projection

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."

#: Settings of PEFT that would change what is computed, or where; each must be absent, null, false or empty.
UNSUPPORTED = (
    "alora_invocation_tokens",
    "alpha_pattern",
    "arrow_config",
    "exclude_modules",
    "fan_in_fan_out",
    "layer_replication",
    "layers_to_transform",
    "lora_bias",
    "megatron_config",
    "modules_to_save",
    "rank_pattern",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_dora",
    "use_qalora",
)
#: Named initialisations that leave the base weights alone; the others go with a changed base.
INITIALISATIONS = ("gaussian", "eva", "orthogonal")


class LowRank(nn.Module):
    """What an adapter adds to one `Projection`: (alpha / r) B A x, in those of its output columns that have an update.

    Matrices that are fused (q, k and v; gate and up) have one update each.  ``down`` [k r, in] holds their A one after the
    other, ``up`` their (alpha / r) B, [columns, r] each; ``columns`` are the output columns of each, first and behind last.
    """

    def __init__(self, size_in: int, rank: int, columns: list[tuple[int, int]]) -> None:
        super().__init__()
        self.rank, self.columns = rank, columns
        self.down = nn.Parameter(torch.zeros(len(columns) * rank, size_in))
        self.up = nn.ParameterList(torch.zeros(last - first, rank) for first, last in columns)

    def forward(self, x: Tensor, y: Tensor) -> None:
        """Adds the update of x [N, P, in] to y [N, P, out] in place."""
        low = F.linear(x, self.down).split(self.rank, dim=-1)
        for part, (first, last), up in zip(low, self.columns, self.up, strict=True):
            y[..., first:last].baddbmm_(part, up.t().expand(len(x), -1, -1))


class Target(NamedTuple):
    """A checkpoint's matrix that can have an update: its parameter's name, its rows in it, and its number of columns."""

    parameter: str
    first: int
    last: int
    size_in: int


def targets(tensors: TensorMap) -> dict[str, Target]:
    """The matrices of the blocks by the name of their module in the checkpoint, such as "encoder.layers.0.mlp.up_proj"."""
    found = {}
    for parameter, parts in tensors.items():
        first = 0
        for name, shape in parts:
            if parameter.startswith("blocks.") and len(shape) == 2:
                found[name.removesuffix(".weight")] = Target(parameter, first, first + shape[0], shape[1])
            first += shape[0]
    return found


def load_adapter(model: nn.Module, folder: Path, tensors: TensorMap) -> None:
    """Reads the adapter in ``folder`` into ``model``, a loaded `Transformer` whose matrices ``tensors`` names.

    Everything is checked before anything is read.  Raises ValueError for what is missing, unreadable or not supported.
    """
    rank, scale, names = _read_config(folder / CONFIG)
    if not (folder / WEIGHTS).is_file():
        raise ValueError(f"{folder} holds no {WEIGHTS}")
    known = targets(tensors)
    chosen = {module: target for module, target in known.items() if any(_named(module, name) for name in names)}
    if strange := [name for name in names if not any(_named(module, name) for module in known)]:
        raise ValueError(
            f"{folder / CONFIG}: target_modules has {', '.join(map(shown, strange))}, but only linear layers of the "
            f"model's blocks are accepted: {', '.join(sorted({module.rpartition('.')[2] for module in known}))}"
        )
    stored = stored_in(folder / WEIGHTS)
    _check(stored, chosen, rank, folder)
    attach(model, list(chosen.values()), rank)
    model.requires_grad_(False)
    with opened(folder / WEIGHTS) as file:
        for module, target in chosen.items():
            a, b = (file.get_tensor(name) for name in keys(module))
            down, up = part_of(model, target)
            down.copy_(a)
            # Folded in before rounding to the model's dtype.
            up.copy_(b.to(torch.promote_types(up.dtype, torch.float32)) * scale)


def attach(model: nn.Module, chosen: list[Target], rank: int) -> None:
    """Gives each chosen matrix an update of zero, on its device and of its dtype."""
    columns: dict[str, list[tuple[int, int]]] = {}
    for target in chosen:
        columns.setdefault(target.parameter, []).append((target.first, target.last))
    for parameter, spans in columns.items():
        projection = _projection(model, parameter)
        projection.adapter = LowRank(projection.in_features, rank, spans).to(projection.weight)


def carries(model: nn.Module, target: Target) -> bool:
    """Whether a matrix has an update."""
    update = _projection(model, target.parameter).adapter
    return update is not None and (target.first, target.last) in update.columns


def part_of(model: nn.Module, target: Target) -> tuple[Tensor, Tensor]:
    """A [r, in] and (alpha / r) B [out, r] of a matrix, as views of the parameters of its `LowRank`."""
    module = cast("LowRank", _projection(model, target.parameter).adapter)
    k = module.columns.index((target.first, target.last))
    return module.down.detach()[k * module.rank : (k + 1) * module.rank], module.up[k].detach()


def _projection(model: nn.Module, parameter: str) -> Projection:
    """The layer that a weight belongs to."""
    return cast("Projection", model.get_submodule(parameter.removesuffix(".weight")))


def _read_config(path: Path) -> tuple[int, float, list[str]]:
    """r, alpha / r, and the names of the modules that the adapter updates."""
    if not path.is_file():
        raise ValueError(f"{path.parent} holds no {CONFIG}, so it is no adapter in the PEFT format")
    fields = Fields(read_object(path), str(path))
    fields.choice("peft_type", ("LORA",))
    fields.choice("bias", ("none",), "none")
    for key in UNSUPPORTED:
        if fields.get(key, None) not in (None, False, {}, []):
            raise ValueError(f"{path}: {key} is {shown(fields.get(key))}, but adapters with it are not supported")
    start = fields.get("init_lora_weights", True)
    if not isinstance(start, bool) and start not in INITIALISATIONS:
        raise fields.refusal("init_lora_weights", f"true, false or one of {', '.join(INITIALISATIONS)}")
    rank = fields.integer("r", 1, 2**20)
    alpha = fields.number("lora_alpha", 0.0, above=True)
    names = fields.get("target_modules")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise fields.refusal("target_modules", "a list of module names")
    return rank, alpha / (math.sqrt(rank) if fields.flag("use_rslora", False) else rank), names


def _check(stored: dict[str, Stored], chosen: dict[str, Target], rank: int, folder: Path) -> None:
    """Refuses weights that are not exactly the A and B of the chosen matrices."""
    needed: dict[str, tuple[int, int]] = {}
    for module, target in chosen.items():
        a, b = keys(module)
        needed |= {a: (rank, target.size_in), b: (target.last - target.first, rank)}
    faults = []
    if missing := [name for name in needed if name not in stored]:
        faults.append(f"{count_names(missing)} missing")
    if unexpected := [name for name in stored if name not in needed]:
        faults.append(f"{count_names(unexpected)} unexpected")
    present = {name: tensor for name, tensor in stored.items() if name in needed}
    shapes = [f"{name} {list(t.shape)} instead of {list(needed[name])}" for name, t in present.items() if t.shape != needed[name]]
    if shapes:
        faults.append(f"{count_names(shapes)} of a wrong shape")
    if dtypes := [f"{name} {t.dtype}" for name, t in present.items() if t.dtype not in FLOAT_DTYPES]:
        faults.append(f"{count_names(dtypes)} of a dtype other than {', '.join(FLOAT_DTYPES)}")
    if faults:
        raise ValueError(f"the adapter in {folder} does not fit its {CONFIG} and the model: {'; '.join(faults)}")


def keys(module: str) -> tuple[str, str]:
    """The names of A and B of a module in the file."""
    return f"{PREFIX}{module}.lora_A.weight", f"{PREFIX}{module}.lora_B.weight"


def _named(module: str, name: str) -> bool:
    """Whether PEFT takes ``name`` to mean the module: its whole name, or the end of it after a dot."""
    return module == name or module.endswith("." + name)
