"""What the documents name exists: commands and their options, files, links and Python names; and tests start the commands."""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

import pytest
import typer

from packed_ss.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("bench", "csrc", "docs", "examples", "packed_ss", "tests", "tools", "triton_kernels")
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted((ROOT / "docs").glob("*.md"))
SOURCES = ("py", "cpp", "h", "cu", "cuh")


@pytest.fixture(params=DOCUMENTS, ids=lambda path: path.name)
def document(request: pytest.FixtureRequest) -> Path:
    return request.param


def blocks(text: str) -> list[str]:
    """Lines of code blocks."""
    return [
        line for block in re.findall(r"^ *```\w*\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE) for line in block.splitlines()
    ]


def spans(text: str) -> list[str]:
    """Code within lines."""
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]


def commands(path: Path) -> Iterator[list[str]]:
    """make, python and packed-ss commands, by word; comments and what lies behind a pipe apart."""
    text = path.read_text(encoding="utf-8")
    for line in [*blocks(text), *spans(text)]:
        for part in re.split(r"\s\|\s|&&", line.partition(" #")[0]):
            if re.match(r"\s*(make|python|packed-ss)\s+\S", part):
                yield shlex.split(part)


@cache
def files() -> frozenset[str]:
    """Files of the folders above, from the root."""
    return frozenset(path.relative_to(ROOT).as_posix() for name in FOLDERS for path in (ROOT / name).rglob("*") if path.is_file())


@cache
def sources_of_tests() -> str:
    """The tests' sources, apart from this folder's."""
    paths = sorted(path for path in (ROOT / "tests").rglob("test_*.py") if path.parent.name != "docs")
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


@cache
def parsed_options() -> str:
    """The sources in which scripts define options."""
    return "\n".join(
        (ROOT / name).read_text(encoding="utf-8") for name in sorted(files()) if re.match(r"(bench|tools)/.*py$", name)
    )


def test_the_documents_name_commands_of_each_kind() -> None:
    named = {words[0] for path in DOCUMENTS for words in commands(path)}
    assert named == {"make", "python", "packed-ss"}


def test_make_has_the_targets(document: Path) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for words in commands(document):
        if words[0] == "make":
            assert words[1] in targets, words


def test_scripts_exist_have_the_options_and_are_tested(document: Path) -> None:
    for words in commands(document):
        if words[0] == "python" and words[1] != "-m":
            assert words[1] in files(), words
            for option in (word for word in words if word.startswith("--")):
                assert f'"{option}"' in parsed_options(), words
            assert re.search(rf"\b{re.escape(Path(words[1]).stem)}\b", sources_of_tests()), f"no test starts {words[1]}"


def test_subcommands_exist_have_the_options_and_are_tested(document: Path) -> None:
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for words in commands(document):
        if words[0] == "packed-ss":
            options = {name for parameter in known[words[1]].params for name in parameter.opts} | {"--help"}
            assert {word for word in words if word.startswith("--")} <= options, words
            assert re.search(rf'packed_ss\(\s*"{words[1]}"', sources_of_tests()), f"no test starts packed-ss {words[1]}"


def test_every_script_is_tested() -> None:
    for name in sorted(files()):
        if re.match(r"(bench|tools|examples)/(?!test_)\w+\.py$", name) and "__main__" in (ROOT / name).read_text(
            encoding="utf-8"
        ):
            text = sources_of_tests() + (Path(__file__).parent / "test_examples.py").read_text(encoding="utf-8")
            assert re.search(rf"\b{Path(name).stem}\b", text), f"no test starts {name}"


def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8")):
        if not re.match(r"https?://|#", target):
            assert (document.parent / target.partition("#")[0]).exists(), target


def test_paths_exist(document: Path) -> None:
    for span in spans(document.read_text(encoding="utf-8")):
        if not re.fullmatch(r"[\w./*-]+", span):
            continue
        if span.split("/")[0] in FOLDERS and "/" in span:
            assert any(ROOT.glob(span.rstrip("/"))), span
        elif span.rpartition(".")[2] in SOURCES and re.match(r"[\w*/]+\.", span):
            assert any(PurePosixPath(name).match(span) for name in files()), span


def test_python_names_exist(document: Path) -> None:
    for span in spans(document.read_text(encoding="utf-8")):
        if name := re.match(r"(torch\.ops\.)?packed_ss(\.[A-Za-z_]\w*)+", span):
            assert resolves(name.group()), span


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for part in parts[count:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def test_a_wrong_name_is_noticed() -> None:
    assert resolves("packed_ss.runtime.graphs.CudaGraphs") and resolves("torch.ops.packed_ss.verify_rows")
    assert not resolves("packed_ss.runtime.graphs.Graphs2") and not resolves("packed_ss.nothing")
    text = "a `make x`\n```\npacked-ss y\n```\n`two\nwords`"
    assert blocks(text) == ["packed-ss y"] and spans(text) == ["make x", "two words"]
