"""A pytest plugin, `-p tests.host_cuda.sample`: a few cases of each test, for runs under sanitizers, which are slow.

Backends of which nothing is compiled here, plain torch and the GPU, are left out. The choice depends on names alone.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict

import pytest

CASES_PER_TEST = 5


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects all but CASES_PER_TEST of the cases of each test function."""
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        backend = item.callspec.params.get("backend") if hasattr(item, "callspec") else None
        if getattr(backend, "name", backend) not in ("torch", "cuda"):
            cases[item.nodeid.partition("[")[0]].append(item)
    kept: set[pytest.Item] = set()
    for group in cases.values():
        kept.update(sorted(group, key=lambda item: hashlib.sha256(item.nodeid.encode()).digest())[:CASES_PER_TEST])
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]
