"""Where the CUDA toolkit is, if there is one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def home() -> Path | None:
    """The folder with include/cuda_runtime_api.h: CUDA_HOME, CUDA_PATH, beside the nvcc on PATH, or the usual one."""
    nvcc = shutil.which("nvcc")
    named = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), nvcc and Path(nvcc).resolve().parents[1]]
    places = [Path(place) for place in (*named, "/usr/local/cuda") if place]
    return next((place for place in places if (place / "include" / "cuda_runtime_api.h").exists()), None)
