"""Skips where there is no C++ compiler."""

from __future__ import annotations

import pytest

from . import build, library


@pytest.fixture(scope="session")
def examples_library() -> library.Library:
    """The example kernels, compiled."""
    try:
        return library.load("examples")
    except build.NotBuilt as reason:
        pytest.skip(f"no CUDA sources on the host: {reason}")
