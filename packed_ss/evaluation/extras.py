"""Optional packages: what needs one says how to install it."""

from __future__ import annotations

from importlib.util import find_spec


def need(purpose: str, *packages: str, extra: str = "bench") -> None:
    """Raise ValueError, one sentence, where one of ``packages`` cannot be imported."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise ValueError(f"{purpose} needs {' and '.join(missing)}, which {verb} not installed: pip install packed-ss[{extra}]")
