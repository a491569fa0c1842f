"""Module-level imports of packed_ss make no circle, and what decoding needs is no more than what is always installed."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def modules() -> dict[str, Path]:
    """Every module of the package by name."""
    paths = sorted((ROOT / "packed_ss").rglob("*.py"))
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


def imported(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Import statements that run when the module is imported: none in functions or for type checkers alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from imported(ast.Module(child.orelse, []))
        elif not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from imported(child)


def needed(name: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules that importing one runs first; not the packages that it is in itself."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in imported(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        else:
            parts = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parts, *([node.module] if node.module else [])])
            found = [f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base for alias in node.names]
        for one in found:
            parents = [".".join(one.split(".")[:i]) for i in range(1, one.count(".") + 2)]
            yield from (
                parent for parent in parents if (parent in known and not f"{name}.".startswith(f"{parent}.")) or parent == one
            )


def test_imports_make_no_circle() -> None:
    known = modules()
    graph = {name: {one for one in needed(name, path, known) if one in known} - {name} for name, path in known.items()}
    assert graph["packed_ss.cli.app"] == set() and "packed_ss.decoder" in graph["packed_ss"]
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError
    assert len(order) == len(known)


def test_the_command_line_starts_without_the_extras() -> None:
    program = (
        "import sys\nfor name in ('matplotlib', 'scipy', 'math_verify', 'flashinfer', 'triton'): sys.modules[name] = None\n"
        "import packed_ss, packed_ss.cuda, packed_ss.cli.app, packed_ss.evaluation.bench.report\n"
        "from packed_ss.cli import bench, compare, generate, info, verify\nprint('imported')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "imported\n", done.stderr
