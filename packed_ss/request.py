"""What a caller may ask of a decoder, checked once, at the border."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import torch

from .models.config import ModelConfig
from .sampling import GREEDY_BELOW

VERIFICATIONS = ("auto", "greedy", "rejection", "coupled", "match")


@dataclass(frozen=True)
class Request:
    """One checked generation request of N prompts.

    ``verification`` is the mode to run; ``seeds`` are signed 64-bit integers.  Settings and stops are each prompt's own: stops[i]
    are the token id lists that end sequence i.
    """

    prompts: list[list[int]]
    max_new_tokens: int
    verification: str
    temperature: list[float]
    top_k: list[int]
    top_p: list[float]
    seeds: list[int]
    stops: list[list[list[int]]]


def check_request(
    config: ModelConfig,
    *,
    batch_size: int,
    max_length: int,
    input_ids: Any,
    max_new_tokens: Any,
    temperature: Any,
    top_k: Any,
    top_p: Any,
    seed: Any,
    verification: Any,
    eos_token_id: Any,
    stop_sequences: Any,
) -> Request:
    """The request as plain values.  Raises ValueError, one sentence, for anything outside the accepted ranges."""
    new = whole_number("max_new_tokens", max_new_tokens, least=0)
    prompts = prompt_lists(input_ids, config.vocab_size)
    if len(prompts) > batch_size:
        raise ValueError(f"{len(prompts)} prompts were given, but this decoder's batch_size is {batch_size}")
    longest = max(len(prompt) for prompt in prompts)
    if longest + new > max_length:
        raise ValueError(
            f"a prompt of {longest} tokens and max_new_tokens {new} make {longest + new}, "
            f"but this decoder's max_length is {max_length}"
        )
    n = len(prompts)
    heats = _each("temperature", temperature, n, _temperature)
    top_ks = _each("top_k", top_k, n, lambda name, k: min(whole_number(name, k, least=0), config.vocab_size))
    top_ps = _each("top_p", top_p, n, _top_p)
    if verification not in VERIFICATIONS:
        raise ValueError(f"verification is {verification!r}, but it must be one of {', '.join(VERIFICATIONS)}")
    greedy = max(heats) < GREEDY_BELOW
    if verification == "greedy" and not greedy:
        raise ValueError(f"verification 'greedy' needs temperature 0, but temperature is {temperature}")
    mode = "greedy" if greedy else "rejection" if verification == "auto" else verification
    stops = [[token] for token in _eos(eos_token_id, config)] + _stop_sequences(stop_sequences, config.vocab_size)
    return Request(prompts, new, mode, heats, top_ks, top_ps, _seeds(seed, n), [stops] * n)


def _each(name: str, value: Any, n: int, check: Callable[[str, Any], Any]) -> list[Any]:
    """A setting of each of n prompts: from one value for all of them, or one for each."""
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        if len(value) != n:
            raise ValueError(f"{name} is {value!r}, but one number or one per prompt ({n}) is needed")
        return [check(name, one) for one in value]
    return [check(name, value)] * n


def _temperature(name: str, value: Any) -> float:
    number = _number(name, value)
    if not 0 <= number <= torch.finfo(torch.float32).max:
        raise ValueError(f"{name} is {value}, but it must be 0 or more, and a float32 number")
    return number


def _top_p(name: str, value: Any) -> float:
    number = _number(name, value)
    if not 0 < number <= 1:
        raise ValueError(f"{name} is {value}, but it must be in (0, 1]")
    return number


def whole_number(name: str, value: Any, *, least: int) -> int:
    """``value`` as an int; ValueError, with its name, where it is not a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} is {value!r}, but it must be a whole number of at least {least}")
    return int(value)


def _number(name: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name} is {value!r}, but it must be a finite number")
    return number


def _ids(what: str, value: Any, vocab_size: int) -> list[int]:
    """A 1-D run of token ids as a list."""
    if isinstance(value, torch.Tensor):
        if value.dim() != 1 or value.dtype.is_floating_point or value.dtype == torch.bool:
            raise ValueError(f"{what} is a {value.dtype} tensor of shape {tuple(value.shape)}, but it must be integers in 1-D")
        value = value.tolist()
    if isinstance(value, (str, bytes)) or (not isinstance(value, Sequence) and not hasattr(value, "__iter__")):
        raise ValueError(f"{what} is {value!r}, but a run of token ids is needed")
    ids = list(value)
    if not ids:
        raise ValueError(f"{what} is empty, but at least one token is needed")
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, Integral) or not 0 <= int(token) < vocab_size:
            raise ValueError(f"{what} holds {token!r}, but token ids must be whole numbers in [0, {vocab_size})")
    return [int(token) for token in ids]


def prompt_lists(value: Any, vocab_size: int) -> list[list[int]]:
    """One prompt or several (1-D or 2-D integer tensor, list of ids, or list of those) as lists; ValueError for anything else."""
    if isinstance(value, torch.Tensor) and value.dim() == 2:
        value = list(value)
    nested = (
        isinstance(value, (list, tuple))
        and len(value) > 0
        and not isinstance(value[0], Integral)
        and not (isinstance(value[0], torch.Tensor) and value[0].dim() == 0)
    )
    if isinstance(value, (list, tuple)) and len(value) > 0 and isinstance(value[0], torch.Tensor) and value[0].dim() == 0:
        value = [token.item() for token in value]
    if not nested:
        return [_ids("the prompt", value, vocab_size)]
    return [_ids(f"prompt {i}", prompt, vocab_size) for i, prompt in enumerate(value)]


def _eos(value: Any, config: ModelConfig) -> list[int]:
    if value is None:
        return list(config.eos_token_ids)
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    if isinstance(value, Integral) and not isinstance(value, bool):
        value = [value]
    if not isinstance(value, Sized):
        raise ValueError(f"eos_token_id is {value!r}, but a token id or a list of them is needed")
    return _ids("eos_token_id", value, config.vocab_size) if len(value) else []


def _stop_sequences(value: Any, vocab_size: int) -> list[list[int]]:
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise ValueError(f"stop_sequences is {value!r}, but a list of token id lists is needed")
    return [_ids(f"stop sequence {i}", stop, vocab_size) for i, stop in enumerate(value)]


def _seeds(value: Any, n: int) -> list[int]:
    """Signed 64-bit seeds: seed s gives sequence i the seed s + i; a list gives one each."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        seeds = [int(value)] if n == 1 else [int(value) + i for i in range(n)]
        _whole_64(value)
    else:
        if isinstance(value, torch.Tensor):
            value = value.tolist()
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence) or len(value) != n:
            raise ValueError(f"seed is {value!r}, but one 64-bit integer or one per prompt ({n}) is needed")
        seeds = [_whole_64(one) for one in value]
    return [(one + 2**63) % 2**64 - 2**63 for one in seeds]


def _whole_64(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or not -(2**63) <= int(value) < 2**64:
        raise ValueError(f"seed is {value!r}, but it must be a whole number of 64 bits")
    return int(value)
