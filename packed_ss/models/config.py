"""What a transformer of this family is made of, read from a checkpoint's own ``config.json``."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Names of the float dtypes that weights may have.
DTYPES = ("float32", "bfloat16", "float16", "float64")

#: How a model is decoded: in blocks that begin with the last verified token (App. D.1), or by position, in any order (App. D.2).
LAYOUTS = ("block", "ordered")


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding: plain (``yarn_factor`` None) or YaRN, and the Llama-4 query scale.

    ``original_max_position`` is in positions; ``beta_fast`` and ``beta_slow`` in rotations over that many positions.
    """

    theta: float = 10_000.0
    yarn_factor: float | None = None
    original_max_position: int | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    truncate: bool = True
    llama_4_scaling_beta: float | None = None


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and special ids of one model.

    ``vocab_size`` is V, the rows of the embedding and the columns of the logits.  ``block_size`` is B, the rows of one
    proposal region, the default of `packed_ss.Decoder`.  ``eos_token_ids`` are the ids that end a text, ``mask_token_id``
    the id that stands for an open position.  ``layout`` is one of `LAYOUTS`.  ``horizon`` is how many positions after the
    leftmost open one training reached (ordered layout; None: not known).  ``excluded_token_ids``, ascending, are ids that
    neither verifier nor drafter may give: their logits count as -inf, before any softmax or argmax.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    mask_token_id: int
    eos_token_ids: tuple[int, ...]
    block_size: int | None = None
    max_position: int | None = None
    qk_norm: bool = False
    tie_word_embeddings: bool = False
    dtype: str = "float32"
    model_type: str = ""
    rope: RopeConfig = field(default_factory=RopeConfig)
    layout: str = "block"
    horizon: int | None = None
    excluded_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "num_layers", "intermediate_size", "num_heads", "num_kv_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but it must be at least 1")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"{self.num_heads} query heads do not divide among {self.num_kv_heads} key/value heads")
        if self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}, but rotary embedding needs an even one")
        for name, ids in (("mask_token_id", (self.mask_token_id,)), ("eos_token_id", self.eos_token_ids)):
            for token in ids:
                if not 0 <= token < self.vocab_size:
                    raise ValueError(f"{name} is {token}, but ids must be in [0, {self.vocab_size})")
        if self.layout not in LAYOUTS:
            raise ValueError(f"layout is {self.layout!r}, but only {' or '.join(map(repr, LAYOUTS))} is accepted")
        excluded = self.excluded_token_ids
        if list(excluded) != sorted(set(excluded)) or any(not 0 <= token < self.vocab_size for token in excluded):
            raise ValueError(f"excluded_token_ids is {shown(excluded)}, but ascending ids in [0, {self.vocab_size}) are accepted")
        if len(excluded) == self.vocab_size:
            raise ValueError(f"all {self.vocab_size} ids are excluded, but at least one must remain")


def parameter_count(config: ModelConfig) -> int:
    """Number of parameters of a model of this configuration."""
    c = config
    attention = c.head_dim * c.hidden_size * (2 * c.num_heads + 2 * c.num_kv_heads)
    norms = 2 * c.hidden_size + (2 * c.head_dim if c.qk_norm else 0)
    layer = attention + 3 * c.hidden_size * c.intermediate_size + norms
    return c.num_layers * layer + c.hidden_size + c.vocab_size * c.hidden_size * (1 if c.tie_word_embeddings else 2)


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; ValueError where there is none."""
    try:
        values = json.loads(path.read_bytes())
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ValueError(f"{path} is not valid JSON") from None
    return Fields(values, str(path)).values


_REQUIRED: Any = object()


def shown(value: Any) -> str:
    """A value as an error message quotes it: on one line and not longer than 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


class Fields:
    """Typed reads from a JSON object.

    Every method takes a key and returns its value, or ``default`` where the key is missing or null; without a default a
    missing key is an error.  Every fault is a ValueError of one sentence with the file, the key and what is accepted.
    """

    def __init__(self, values: Any, where: str) -> None:
        if not isinstance(values, dict):
            raise ValueError(f"{where} holds {shown(values)}, but a JSON object is accepted")
        self.values, self.where = values, where

    def get(self, key: str, default: Any = _REQUIRED) -> Any:
        """The value as it stands."""
        value = self.values.get(key)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise ValueError(f"{self.where}: {key} is missing")
        return default

    def integer(self, key: str, low: int, high: int, default: Any = _REQUIRED) -> Any:
        """An integer in [low, high]."""
        value = self.get(key, default)
        if key in self and not _is_integer(value, low, high):
            raise self.refusal(key, f"an integer in [{low}, {high}]")
        return value

    def number(self, key: str, low: float, default: Any = _REQUIRED, *, above: bool = False) -> Any:
        """A finite number that is at least ``low`` (more than ``low`` with ``above``), as a float."""
        value = self.get(key, default)
        if key not in self:
            return value
        accepted = f"a finite number {'above' if above else 'not below'} {low}"
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.refusal(key, accepted)
        try:
            value = float(value)
        except OverflowError:
            raise self.refusal(key, accepted) from None
        if not math.isfinite(value) or value < low or (above and value == low):
            raise self.refusal(key, accepted)
        return value

    def flag(self, key: str, default: Any = _REQUIRED) -> Any:
        """True or false."""
        return self.choice(key, (True, False), default)

    def choice(self, key: str, accepted: tuple[Any, ...], default: Any = _REQUIRED) -> Any:
        """One of a few values, compared by type as well: 1 is not true."""
        value = self.get(key, default)
        if key in self and not any(type(value) is type(one) and value == one for one in accepted):
            raise self.refusal(key, " or ".join(repr(one) for one in accepted))
        return value

    def integers(self, key: str, low: int, high: int, default: Any = _REQUIRED) -> tuple[int, ...]:
        """An integer in [low, high] or a list of them, as a tuple."""
        value = self.get(key, default)
        values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
        if not all(_is_integer(one, low, high) for one in values):
            raise self.refusal(key, f"an integer in [{low}, {high}] or a list of them")
        return values

    def refusal(self, key: str, accepted: str) -> ValueError:
        """The error that says what ``key`` holds and what is accepted."""
        return ValueError(f"{self.where}: {key} is {shown(self.values[key])}, but only {accepted} is accepted")

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None


def _is_integer(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def read_dtype(fields: Fields) -> str:
    """``dtype``, or the older ``torch_dtype``; with or without the ``torch.`` that some writers put before it."""
    key = "dtype" if "dtype" in fields else "torch_dtype"
    return fields.choice(key, DTYPES + tuple(f"torch.{name}" for name in DTYPES), "float32").removeprefix("torch.")


def read_rope(fields: Fields) -> RopeConfig:
    """``rope_parameters`` or the older ``rope_scaling``; a top-level ``rope_theta`` counts where they have none."""
    key = "rope_parameters" if "rope_parameters" in fields else "rope_scaling"
    where = f"{fields.where}: {key}"
    parameters = dict(Fields(fields.get(key, {}), where).values)
    for outer in ("rope_theta", "partial_rotary_factor"):
        if parameters.get(outer) is None and outer in fields:
            parameters[outer] = fields.get(outer)
    return rope_from_json(parameters, where)


def rope_from_json(parameters: dict[str, Any], where: str) -> RopeConfig:
    """Rotary settings from a ``rope_parameters`` (or older ``rope_scaling``) dictionary.

    Raises ValueError for a rope type other than ``default`` and ``yarn``, for settings that differ by layer type or turn
    a part of the head only, for missing YaRN values, and for values of a wrong type or range.
    """
    fields = Fields(parameters, where)
    kind = fields.choice("rope_type" if "rope_type" in fields else "type", ("default", "yarn"), "default")
    for key, value in parameters.items():
        if isinstance(value, dict):
            raise ValueError(f"{where}: {key} is an object, but rotary settings per layer type are not supported")
    if fields.number("partial_rotary_factor", 0.0, 1.0) != 1.0:
        raise fields.refusal("partial_rotary_factor", "1")
    theta = fields.number("rope_theta", 1.0, above=True)
    factor = fields.number("factor", 1.0) if kind == "yarn" else None
    beta = fields.number("llama_4_scaling_beta", 0.0, None)
    positions = 1, 2**31 - 1
    if kind == "yarn" or beta is not None:
        original = fields.integer("original_max_position_embeddings", *positions)
    else:
        original = fields.integer("original_max_position_embeddings", *positions, None)
    return RopeConfig(
        theta=theta,
        yarn_factor=factor,
        original_max_position=original,
        beta_fast=fields.number("beta_fast", 0.0, 32.0) or 32.0,
        beta_slow=fields.number("beta_slow", 0.0, 1.0) or 1.0,
        mscale=fields.number("mscale", 0.0, None),
        mscale_all_dim=fields.number("mscale_all_dim", 0.0, None),
        attention_factor=fields.number("attention_factor", 0.0, None, above=True),
        truncate=fields.flag("truncate", True),
        llama_4_scaling_beta=beta,
    )
