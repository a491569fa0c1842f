"""Compare final answers with math-verify, as long as it is asked: ``python -I mathematics.py FOLDER``.

Each line of standard input is ``{"gold": ..., "answer": ...}``, both LaTeX; each line of standard output ``true`` or ``false``.
It confines itself where the system lets it, for what it parses was written by a model.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from contextlib import suppress

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from confine import CannotConfine, confine
from math_verify import LatexExtractionConfig, parse, verify


def equal(gold: str, answer: str) -> bool:
    """Whether math-verify takes both for the same; False where it cannot read one of them."""
    config = [LatexExtractionConfig(boxed_match_priority=0)]
    # The time of both is limited from outside: a signal does not interrupt the power of large numbers.
    known, given = (parse(f"\\boxed{{{text}}}", config, parsing_timeout=None) for text in (gold, answer))
    return bool(known and given and verify(known, given, timeout_seconds=None))


def main() -> None:
    """Answers line by line."""
    logging.disable(logging.CRITICAL)
    output = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    equal("1", "1.0")  # what is loaded or built at first use
    with suppress(CannotConfine):
        confine(sys.argv[1], cpu_seconds=2**31, memory=2**32, file_size=2**20)
    print("ready", file=output, flush=True)
    for line in sys.stdin:
        pair = json.loads(line)
        try:
            result = equal(pair["gold"], pair["answer"])
        except Exception:  # whatever sympy raises
            result = False
        print(json.dumps(result), file=output, flush=True)


if __name__ == "__main__":
    main()
