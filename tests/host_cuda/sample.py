"""A pytest plugin, `-p tests.host_cuda.sample`: a few cases of each test, for runs under sanitizers, which are slow.

Backends of which nothing is compiled here, plain torch, Triton and the GPU, are left out. The choice depends on names alone.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict

import pytest

CASES = 3  # of each test, with each backend
NOT_COMPILED = ("torch", "triton", "cuda")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects all but CASES of each test function and backend."""
    cases: dict[tuple[str, str | None], list[pytest.Item]] = defaultdict(list)
    for item in items:
        backend = item.callspec.params.get("backend") if hasattr(item, "callspec") else None
        name = getattr(backend, "name", backend)
        if name not in NOT_COMPILED:
            cases[item.nodeid.partition("[")[0], name].append(item)
    kept: set[pytest.Item] = set()
    for group in cases.values():
        kept.update(sorted(group, key=lambda item: hashlib.sha256(item.nodeid.encode()).digest())[:CASES])
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]
