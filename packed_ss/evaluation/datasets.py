"""Read data sets: JSON lines, gzipped or not, or one JSON list."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..models.config import shown

Record = dict[str, Any]
#: Fields by name, with the types that are accepted.
Fields = dict[str, type | tuple[type, ...]]


def read_records(path: Path, fields: Fields) -> list[Record]:
    """The records of ``path``, each of which must hold ``fields``, by name with the types that are accepted.

    Raise ValueError with the file and the line (of a ``.json`` list: the record) for anything else, such as a file that was
    cut off.
    """
    if not path.is_file():
        raise ValueError(f"{path} is not a file, but a file of records is needed")
    records = []
    for where, record in _list(path) if path.suffix == ".json" else _lines(path):
        if not isinstance(record, dict):
            raise ValueError(f"{path} {where} is {shown(record)}, but a JSON object is accepted")
        for name, kind in fields.items():
            if not isinstance(record.get(name), kind):
                kinds = " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
                fault = f"has {shown(record[name])} as {name!r}" if name in record else f"has no {name!r}"
                raise ValueError(f"{path} {where} {fault}, but {kinds} is needed there")
        records.append(record)
    if not records:
        raise ValueError(f"{path} holds no records")
    return records


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    number = 0
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        try:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield f"line {number}", _parsed(line, f"{path} line {number}")
        except (EOFError, OSError, zlib.error) as error:
            reason = getattr(error, "strerror", None) or "the compressed data is cut off or damaged"
            raise ValueError(f"{path} cannot be read past line {number}: {reason}") from None


def _list(path: Path) -> Iterator[tuple[str, Any]]:
    values = _parsed(path.read_bytes(), str(path))
    if not isinstance(values, list):
        raise ValueError(f"{path} holds {shown(values)}, but a JSON list of records is accepted")
    yield from ((f"record {number}", value) for number, value in enumerate(values, 1))


def _parsed(text: bytes, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        line = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) and error.lineno > 1 else ""
        raise ValueError(f"{where} is not valid JSON{line}: the file is damaged or cut off there") from None


def packaged(package: str, file: str) -> Path | None:
    """A file of an installed package, which is not imported; None where there is none."""
    spec = find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (Path(folder) / file).is_file():
            return Path(folder) / file
    return None
