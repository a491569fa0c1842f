"""Triton kernels compiled ahead of time, for any architecture and without a GPU, and what the compiled code needs.

Either every launch that a wrapper makes, as it makes it on such a device:

    with recorded(90) as launches:                  # under fake CUDA tensors: nothing is run, and none is read by the host
        tail_attention(torch.empty(1, 64, 32, 128, dtype=torch.bfloat16, device="cuda"), ...)
    for launch in launches:
        launch.compiled().check()                   # no spills, shared memory within the limit of sm_90

or one kernel with arguments by name, where a dtype stands for a pointer to such elements:

    code = compile_kernel(my_kernel, {"x_ptr": torch.bfloat16, "size": 4096, "scale": 0.5, "BLOCK": 128}, 90, warps=8, stages=3)
    assert code.uses("wgmma.mma_async")

Arguments are specialised as a launch specialises them: a pointer is divisible by 16 bytes, and so is every integer that is; an
integer 1 and None become constants (integers that the kernel excludes by ``do_not_specialize`` do neither).  Without this, loads
would not be vectorised in the code that is looked at.

A process in which TRITON_INTERPRET=1 was set before triton was imported cannot compile; `unavailable` says so, and
`compile_kernel` skips the running test with that reason.  Calls that come down to the same code compile it once per process, and
Triton's own cache on disk makes a second run of the tests short.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

#: Compute capabilities that every kernel compiles for, as 10 * major + minor.
TARGETS = (80, 90, 100)
#: Bytes of shared memory that one program can have (CUDA C++ Programming Guide, technical specifications).
SHARED_LIMIT = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
#: Tensor-core instructions in PTX, by the architecture that brought them.
TENSOR_CORE = {80: "mma.sync", 90: "wgmma.mma_async", 100: "tcgen05.mma"}

_POINTERS = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float64: "*fp64",
    torch.uint8: "*u8",
    torch.int8: "*i8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.bool: "*i1",
}


@dataclass(frozen=True)
class Compiled:
    """Code of one kernel for one target.

    ``registers``: per thread.  ``local_bytes``: the stack frame of a thread, which is where registers spill to; 0 without spills.
    ``shared_bytes``: of one program.  ``ptx``: the code before ptxas.
    """

    name: str
    target: int
    registers: int
    local_bytes: int
    shared_bytes: int
    ptx: str = field(repr=False)

    def count(self, instruction: str) -> int:
        """How often a PTX instruction, such as "mma.sync" or "ld.global.v4", stands in the code."""
        return len(re.findall(rf"^\s*(?:@!?%p\d+ )?{re.escape(instruction)}\b", self.ptx, re.MULTILINE))

    def uses(self, instruction: str) -> bool:
        return self.count(instruction) > 0

    def check(self) -> None:
        """Asserts what every kernel must satisfy: nothing spilled, and shared memory that a program can have."""
        assert self.local_bytes == 0, f"{self} spills"
        assert self.shared_bytes <= SHARED_LIMIT[self.target], f"{self} exceeds the limit, {SHARED_LIMIT[self.target]} bytes"

    def __str__(self) -> str:
        return (
            f"{self.name} for sm_{self.target}: {self.registers} registers, {self.local_bytes} bytes of stack, "
            f"{self.shared_bytes} bytes of shared memory"
        )


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel: the grid, the arguments by name (a dtype for a tensor), and how it is compiled."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    warps: int
    stages: int
    target: int
    maxnreg: int | None = None

    def compiled(self) -> Compiled:
        """Its code; skips the running test where it cannot be compiled."""
        return compile_kernel(
            self.kernel, self.arguments, self.target, warps=self.warps, stages=self.stages, maxnreg=self.maxnreg
        )


@contextlib.contextmanager
def recorded(target: int, multiprocessors: int = 132) -> Iterator[list[Launch]]:
    """The launches made inside, by wrappers that take this device from `tiles.device`; they are listed and not run.

    Tensors made inside are fake: reading one on the host raises.
    """
    pytest.importorskip("triton")
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip(unavailable(target))
    from packed_ss.triton_kernels import tiles
    from triton.runtime.jit import JITFunction

    launches = []

    def run(
        self: Any,
        *arguments: Any,
        grid: tuple[int, ...],
        warmup: bool,
        num_warps: int = 4,
        num_stages: int = 3,
        maxnreg: int | None = None,
        **named: Any,
    ) -> None:
        given = dict(zip((parameter.name for parameter in self.params), arguments)) | named  # noqa: B905
        assert len(given) == len(self.params), f"arguments of {self.__name__}: {sorted(given)}"
        dtypes = {name: x.dtype if isinstance(x, Tensor) else x for name, x in given.items()}
        launches.append(Launch(self, tuple(grid), dtypes, num_warps, num_stages, target, maxnreg))

    device = tiles.Device(target, multiprocessors)
    with mock.patch.object(JITFunction, "run", run), mock.patch.object(tiles, "device", return_value=device), FakeTensorMode():
        yield launches


def compile_kernel(
    kernel: Any, arguments: Mapping[str, Any], target: int, *, warps: int, stages: int, maxnreg: int | None = None
) -> Compiled:
    """The kernel, a function under ``triton.jit``, specialised for these arguments and compiled for sm_<target>.

    Skips the running test where that is not possible, with the reason.
    """
    reason = unavailable(target)
    if reason:
        pytest.skip(reason)
    names = [parameter.name for parameter in kernel.params]
    assert sorted(names) == sorted(arguments), f"arguments of {kernel.__name__}: {names}"
    signature, constants, divisible = [], [], []
    for index, parameter in enumerate(kernel.params):
        value = arguments[parameter.name]
        kind, aligned = _specialised(parameter, value)
        signature.append((parameter.name, kind))
        if kind == "constexpr":
            constants.append((index, value))
        if aligned:
            divisible.append(index)
    return _compile(kernel, tuple(signature), tuple(constants), tuple(divisible), target, warps, stages, maxnreg)


@functools.cache
def unavailable(target: int) -> str:
    """Why nothing can be compiled for sm_<target> here; empty when it can."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return "TRITON_INTERPRET=1: a process interprets or compiles"
    try:
        from triton import knobs
    except ImportError as error:
        return f"no triton: {error}"
    tool = knobs.nvidia.ptxas_blackwell if target >= 100 else knobs.nvidia.ptxas
    try:
        listed = subprocess.run([tool.path, "--help"], capture_output=True, text=True, check=True).stdout
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        return f"no ptxas of triton for sm_{target}: {error}"
    return "" if f"'sm_{target}'" in listed else f"ptxas of triton ({tool.version}) does not know sm_{target}"


def _specialised(parameter: Any, value: Any) -> tuple[str, bool]:
    """Type of an argument ("constexpr" for constants), and whether it is divisible by 16."""
    if parameter.is_constexpr or value is None:
        return "constexpr", False
    if isinstance(value, torch.dtype):
        return _POINTERS[value], True
    if isinstance(value, float):
        return "fp32", False
    if isinstance(value, bool):
        return "i1", False
    if value == 1 and not parameter.do_not_specialize:
        return "constexpr", False
    return "i32" if -(2**31) <= value < 2**31 else "i64", value % 16 == 0 and not parameter.do_not_specialize


@functools.cache
def _compile(
    kernel: Any, signature: tuple, constants: tuple, divisible: tuple, target: int, warps: int, stages: int, maxnreg: int | None
) -> Compiled:
    import triton
    from triton.backends.compiler import GPUTarget

    source = triton.compiler.ASTSource(
        kernel,
        dict(signature),
        {(index,): value for index, value in constants},
        {(index,): [["tt.divisibility", 16]] for index in divisible},
    )
    options = {"num_warps": warps, "num_stages": stages} | ({"maxnreg": maxnreg} if maxnreg else {})
    code = triton.compile(source, target=GPUTarget("cuda", target, 32), options=options)
    registers, stack = _resources(code.asm["cubin"])
    return Compiled(kernel.__name__, target, registers, stack, code.metadata.shared, code.asm["ptx"])


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of stack of a thread."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        shown = subprocess.run(
            [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", shown)
    assert found, shown
    return int(found[1]), int(found[2]) + int(found[3])
