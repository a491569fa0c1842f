"""Right, wrong, unreadable and hostile responses, on made-up records."""

from __future__ import annotations

from fractions import Fraction

import pytest

from packed_ss.evaluation import math_worker, sandbox, scoring

needs_sandbox = pytest.mark.skipif(bool(sandbox.unavailable()), reason=sandbox.unavailable())

HUMANEVAL = {
    "task_id": "Made/0",
    "entry_point": "doubled",
    "prompt": "from typing import List\n\n\ndef step() -> int:\n    return 2\n\n\ndef doubled(xs: List[int]) -> List[int]:\n"
    '    """ Every number times two.\n    >>> doubled([1])\n    [2]\n    """\n',
    "test": "METADATA = {}\n\n\ndef check(candidate):\n    assert candidate([1, 4]) == [step(), 8]\n"
    "    assert candidate([]) == []\n",
}
MBPP = {
    "task_id": 1,
    "prompt": "Write a function to add two numbers.",
    "test_imports": ["import math"],
    "code": "import sys\ndef sum(a, b):\n  return a + b",
    "test_list": [
        "assert sum(1, 2) == 3",
        "assert math.isclose(sum(0.1, 0.2), 0.3)",
        "assert set([sum(1, 1)]) == set([2])",
        "assert sum(0, 0) < sys.maxsize",
    ],
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"so \boxed{4}", "4"),
        (r"\boxed{1}, no: \boxed{2}.", "2"),
        (r"\boxed{\frac{1}{\sqrt{2}}} is it", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed {x}", "x"),
        (r"\fbox{9}", "9"),
        (r"\boxed{3} and \boxed{4", "3"),
        (r"\boxed{4", None),
        ("4", None),
        ("", None),
        (r"\boxed{}", ""),
    ],
)
def test_the_last_closed_box(text, expected):
    assert scoring.last_boxed(text) == expected


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("1/2", r"\frac{1}{2}", True),
        (r"\frac{1}{2}", "0.5", True),
        ("10", "10.0", True),
        ("x+1", "1 + x", True),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3, \pi/2)", True),
        (r"\text{Evelyn}", r"\text{Evelyn}", True),
        ("10", "11", False),
        (r"\frac{1}{3}", "0.33", False),
        ("(1, 2)", "(2, 1)", False),
        ("x", "y", False),
        ("4", "", False),
        ("4", r"\frac{", False),
        ("4", "4" * 2000, False),
        ("4", r"\frac{\frac{", False),
        ("4", "\0}{\ud800", False),
    ],
)
def test_boxed_answers(gold, answer, right):
    assert scoring.boxed(gold, f"I think it is $\\boxed{{{answer}}}$.") is right


def test_a_response_without_a_box_is_wrong():
    for text in ("", "4", "The answer is 4.", r"<think>\boxed{4}</think> Sorry."):
        assert not scoring.boxed("4", text)
    assert scoring.boxed("4", r"<think>\boxed{5}</think> It is \boxed{4}.")


def test_a_comparison_without_end_is_ended():
    endless = "9^{9^{9^{9^{9}}}}"
    assert not math_worker.equal("7", endless, seconds=1.0)
    assert math_worker.equal("1/2", "0.5", seconds=60.0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\boxed{18}", 18),
        (r"It costs \boxed{\$1,234.50} now", Fraction("1234.5")),
        (r"\boxed{18\text{ eggs}}", 18),
        (r"\boxed{x = 18}", 18),
        (r"\boxed{3 + 4 = 7 \text{ dollars}}", 7),
        (r"\boxed{-5}", -5),
        (r"\boxed{\frac{3}{4}}", Fraction(3, 4)),
        (r"\boxed{3/4}", Fraction(3, 4)),
        (r"\boxed{50\%}", 50),
        (r"\boxed{1{,}000}", 1000),
        (r"\boxed{.5}", Fraction(1, 2)),
        (r"\boxed{18.00}", 18),
        ("9 * 2 = <<9*2=18>>18\n#### 18", 18),
        ("#### 1,000 dollars", 1000),
        ("The answer is: $12.", 12),
        ("the ANSWER IS **12**", 12),
        ("#### 3\nThe answer is 4", 3),
        (r"#### 3 \boxed{5}", 5),
        ("<think>The answer is 3.</think> The answer is 4.", 4),
        ("12", None),
        ("", None),
        (r"\boxed{none}", None),
        ("#### none", None),
        (r"\boxed{1/0}", None),
        (r"\boxed{" + "1" * 5000 + "}", None),
    ],
)
def test_final_numbers(text, expected):
    assert scoring.gsm8k_answer(text) == expected


def test_gsm8k():
    gold = "He sells 16 - 3 = <<16-3=13>>13 eggs.\n#### 1,013"
    assert scoring.gsm8k(gold, r"\boxed{1013}") and scoring.gsm8k(gold, "#### 1013.0")
    assert not scoring.gsm8k(gold, r"\boxed{13}") and not scoring.gsm8k(gold, "1013") and not scoring.gsm8k(gold, "")


def test_word_problems():
    assert scoring.word_problem("23", "After that 3.\nThe answer is 23.")
    assert not scoring.word_problem("23", "The answer is 2.") and not scoring.word_problem("23", "23")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("```python\ndef f(): pass\n```", "def f(): pass\n"),
        ("Here:\n```\nx = 1\n```\nDone.", "x = 1\n"),
        ("```py\ndef f(): 1\n```\nUse:\n```\nf()\n```", "def f(): 1\n"),
        ("```\ndef f(): 1\n```\n```\ndef f(): 2\n```", "def f(): 2\n"),
        ("```python\ndef f():\n    return 1", "def f():\n    return 1"),
        ("def f(): pass", "def f(): pass"),
        ("<think>```\ndef f(): 1\n```</think>    return 2", "    return 2"),
        ("    return `x`", "    return `x`"),
    ],
)
def test_code_in_a_response(text, expected):
    assert scoring.code_of(text, ["f"]) == expected


def test_names_that_an_answer_has_to_define():
    tests = "import math\nassert set(f([x for x in range(3)])) == {1}\nassert math.isclose(g(key=lambda y: y), sum([1]))"
    assert scoring.required_names(tests, "def f(): pass") == ["f", "g"]
    assert scoring.required_names(tests, "def sum(x): pass") == ["f", "g", "sum"]


@needs_sandbox
@pytest.mark.parametrize(
    ("response", "right"),
    [
        ("    return [step() * x for x in xs]", True),
        ("```python\ndef doubled(xs):\n    return [2 * x for x in xs]\n```", True),
        ("```python\nfrom __future__ import annotations\ndef doubled(xs: List[int]):\n    return [2 * x for x in xs]\n```", True),
        ("    return [x + 2 for x in xs]", False),
        ("", False),
        ("I cannot do that.", False),
        ("    import os; os._exit(0)", False),
        ("    raise SystemExit(0)", False),
        ("```\ndef step(): return 0\ndef doubled(xs): return [0 and x or 8 * (x == 4) for x in xs]\n```", False),
        ("```\ndef check(candidate): pass\ndef doubled(xs): pass\n```", False),
    ],
)
def test_humaneval(response, right):
    assert scoring.humaneval(HUMANEVAL, response) is right


@needs_sandbox
@pytest.mark.parametrize(
    ("response", "right"),
    [
        ("```python\ndef sum(a, b):\n    return a + b\n```", True),
        ("def sum(a, b): return a + b", True),
        ("```python\ndef sum(a, b):\n    return a - b\n```", False),
        ("```python\ndef add(a, b):\n    return a + b\n```", False),
        ("class A:\n    def __eq__(self, o): return True\ndef set(x): return A()\ndef sum(a, b): return A()", False),
        ("```", False),
    ],
)
def test_mbpp(response, right):
    assert scoring.mbpp(MBPP, response) is right
