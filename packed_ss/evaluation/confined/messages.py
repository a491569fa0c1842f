"""What passes between the process that runs an answer and the one that judges it: JSON, of plain values and nothing else."""

from __future__ import annotations

import itertools
import json
import numbers
import struct
from decimal import Decimal
from fractions import Fraction
from typing import Any, BinaryIO

MOST_BYTES, MOST_ITEMS = 2**24, 10**6
_COLLECTIONS = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


def send(file: BinaryIO, message: Any) -> None:
    """Write one message."""
    text = json.dumps(message).encode()
    if len(text) > MOST_BYTES:
        raise ValueError(f"a message has {len(text)} bytes, but at most {MOST_BYTES} are accepted")
    file.write(struct.pack("I", len(text)) + text)
    file.flush()


def receive(file: BinaryIO) -> Any:
    """Read one message.  Raises EOFError where the other side has ended, ValueError for anything that is no message."""
    size = file.read(4)
    if len(size) < 4:
        raise EOFError("the other side has ended")
    (length,) = struct.unpack("I", size)
    if length > MOST_BYTES:
        raise ValueError("a message is too long")
    text = file.read(length)
    if len(text) < length:
        raise EOFError("the other side has ended")
    return json.loads(text)


class Other:
    """Stands for a value that is not plain: equal to nothing but itself, and as true as that value was."""

    def __init__(self, true: bool) -> None:
        self._true = true

    def __bool__(self) -> bool:
        return self._true


def encode(value: Any) -> Any:
    """A value as JSON: plain types, and their subclasses as those; anything else as no more than whether it is true."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value) if type(value) is str else str.__str__(value)
    if isinstance(value, Fraction):
        return ["fraction", encode(value.numerator), encode(value.denominator)]
    if isinstance(value, numbers.Integral):
        return ["int", hex(int(value))]
    if isinstance(value, Decimal):
        return ["decimal", str(value)]
    if isinstance(value, numbers.Real):
        return ["float", float(value).hex()]
    if isinstance(value, complex):
        return ["complex", value.real.hex(), value.imag.hex()]
    if isinstance(value, (bytes, bytearray)):
        return [bytearray.__name__ if isinstance(value, bytearray) else bytes.__name__, bytes(value).hex()]
    if isinstance(value, range):
        return ["range", *map(encode, (value.start, value.stop, value.step))]
    for name, kind in _COLLECTIONS.items():
        if isinstance(value, kind):
            return [name, *map(encode, value)]
    if isinstance(value, dict):
        return ["dict", *([encode(key), encode(one)] for key, one in value.items())]
    if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0:
        return encode(value.item())
    if hasattr(value, "__next__"):
        return ["iterator", *map(encode, itertools.islice(value, MOST_ITEMS))]
    return ["other", bool(value)]


def decode(value: Any) -> Any:
    """What `encode` was given, in plain types: nothing in it has code of the other side.  ValueError for anything else."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if not isinstance(value, list) or not value or not isinstance(value[0], str):
        raise ValueError("no encoded value")
    name, *parts = value
    if name in _COLLECTIONS:
        return _COLLECTIONS[name](map(decode, parts))
    if name == "dict":
        return {decode(key): decode(one) for key, one in parts}
    if name == "iterator":
        return iter([decode(one) for one in parts])
    if name == "int":
        return int(parts[0], 16)
    if name == "float":
        return float.fromhex(parts[0])
    if name == "complex":
        return complex(float.fromhex(parts[0]), float.fromhex(parts[1]))
    if name == "fraction":
        return Fraction(decode(parts[0]), decode(parts[1]))
    if name == "decimal":
        return Decimal(parts[0])
    if name in ("bytes", "bytearray"):
        return (bytes if name == "bytes" else bytearray).fromhex(parts[0])
    if name == "other":
        return Other(parts[0] is True)
    if name == "range":
        return range(*map(decode, parts))
    raise ValueError(f"no encoded value is called {name[:20]!r}")
