"""Whether a response is right (App. E.3): boxed answers, normalised final numbers, and code that passes its tests.

Every function takes what the record holds and a response's text, and gives False for a response that it cannot read.
"""

from __future__ import annotations

import ast
import builtins
import re
from fractions import Fraction
from typing import Any

from . import math_worker, sandbox
from .problems import final_answer

#: A longer final answer is none.
MOST_CHARACTERS = 1000
_NUMBER = r"[-+−]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:\s*/\s*\d[\d,]*)?"


def after_thinking(text: str) -> str:
    """What comes after the last block of thinking."""
    return text.rpartition("</think>")[2]


def last_boxed(text: str) -> str | None:
    r"""The content of the last ``\boxed{...}`` (or ``\fbox``) whose braces are closed; None where there is none."""
    for start in reversed([found.end() for found in re.finditer(r"\\(?:boxed|fbox)\s*\{", text)]):
        depth = 1
        for i in range(start, len(text)):
            if text[i] in "{}" and (i == start or text[i - 1] != "\\"):
                depth += 1 if text[i] == "{" else -1
                if depth == 0:
                    return text[start:i].strip()
    return None


def boxed(gold: str, response: str) -> bool:
    """MATH-500: whether the last boxed answer is ``gold``, to the letter or to math-verify."""
    answer = last_boxed(after_thinking(response))
    if not answer or len(answer) > MOST_CHARACTERS:
        return False
    return re.sub(r"\s", "", answer) == re.sub(r"\s", "", gold) or math_worker.equal(gold, answer)


def gsm8k_answer(text: str) -> Fraction | None:
    r"""The final number of a text: in its last ``\boxed{}``, else after its last "####", else after "the answer is"."""
    text = after_thinking(text)
    final = last_boxed(text)
    if final is None:
        found = re.findall(r"####\s*([^\n]+)", text) or re.findall(r"answer is:?\s*([^\n]+)", text, re.IGNORECASE)
        if not found:
            return None
        final = found[-1]
    return number(final)


def number(text: str) -> Fraction | None:
    r"""The first number after the last "=": no thousands separators, currency, units or LaTeX around it; None: there is none."""
    text = re.sub(r"\\[dt]?frac\s*\{\s*(-?\d+)\s*\}\s*\{\s*(\d+)\s*\}", r"\1/\2", text.rpartition("=")[2])
    text = re.sub(r"\\(?:text|mathrm|mbox)\s*\{|\\[,;!: ]|\{,\}|[$\\{}*]", lambda found: "," if found[0] == "{,}" else "", text)
    found = re.search(_NUMBER, text)
    if found is None or len(found[0]) > MOST_CHARACTERS:
        return None
    above, _, below = re.sub(r"[,\s]", "", found[0]).replace("−", "-").partition("/")
    divisor = Fraction(below or 1)
    return Fraction(above) / divisor if divisor else None


def gsm8k(gold: str, response: str) -> bool:
    """GSM8K: whether the response's final number is that of the record's solution."""
    answer = gsm8k_answer(response)
    return answer is not None and answer == gsm8k_answer(gold)


def word_problem(gold: str, response: str) -> bool:
    """The bundled problems: whether the number after the last "The answer is" is ``gold``."""
    return final_answer(response) == gold


def code_of(response: str, names: list[str]) -> str:
    """The code in a response: of its fenced blocks the last that defines one of ``names``, else the last; else all of it.

    A block that the end of the text cut off counts.
    """
    text = after_thinking(response)
    blocks = re.findall(r"^[ \t]*```[^\n`]*\n(.*?)(?:^[ \t]*```|\Z)", text, re.DOTALL | re.MULTILINE)
    return next((block for block in reversed(blocks) if _defines(block, names)), blocks[-1] if blocks else text)


def humaneval(record: dict[str, Any], response: str) -> bool:
    """HumanEval: whether the completed function passes its check.  Runs the code, confined.

    A response that defines the function anew follows the prompt; any other text continues it.
    """
    name, prompt = record["entry_point"], record["prompt"]
    code = code_of(response, [name])
    sources = [prompt, code] if _defines(code, [name]) else [prompt + code]
    checks = sandbox.Checks(record["test"], [name], setup=[prompt], call="check")
    return not sandbox.judge(sources, checks)


def mbpp(record: dict[str, Any], response: str) -> bool:
    """MBPP: whether the code passes the original base tests.  Runs the code, confined."""
    tests, names = _mbpp_tests(record)
    return not sandbox.judge([code_of(response, names)], sandbox.Checks(tests, names))


def are_tests(record: dict[str, Any]) -> bool:
    """Whether an MBPP record's tests can be judged by."""
    try:
        return bool(_mbpp_tests(record)[1])
    except (SyntaxError, ValueError, TypeError):
        return False


def _mbpp_tests(record: dict[str, Any]) -> tuple[str, list[str]]:
    """The tests, with what the record's own solution imports, which one of them counts on; and the names they call."""
    solution = record.get("code", "")
    tests = "\n".join([*_imports(solution), *record["test_imports"], *record["test_list"]])
    return tests, required_names(tests, solution)


def required_names(tests: str, solution: str) -> list[str]:
    """The names that tests use and do not themselves bind: what an answer has to define.

    Built-in ones count only where the record's own ``solution`` defines them (one problem has its own "sum"): an answer that
    put a "set" of its own into the tests could pass them all.
    """
    used: set[str] = set()
    bound = {name for name in dir(builtins) if not _defines(solution, [name])}
    for node in ast.walk(ast.parse(tests)):
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                used.add(node.id)
            else:
                bound.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            bound |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
    return sorted(used - bound)


def _imports(code: str) -> list[str]:
    """The import statements of a module that parses; none of another one."""
    try:
        return [ast.unparse(node) for node in ast.parse(code).body if isinstance(node, (ast.Import, ast.ImportFrom))]
    except (SyntaxError, ValueError):
        return []


def _defines(code: str, names: list[str]) -> bool:
    return any(re.search(rf"^(?:async[ \t]+)?def[ \t]+{re.escape(name)}\b", code, re.MULTILINE) for name in names)
