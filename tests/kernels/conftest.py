"""Fixtures of the kernel tests."""

from __future__ import annotations

from .backends import backend as backend
