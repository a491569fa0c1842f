"""The command line: ``packed-ss generate | compare | bench | verify | info``."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point.  Errors in what was asked for print one sentence and exit with code 2, never a traceback."""
    from .app import app

    try:
        app()
    except ValueError as error:
        print(f"packed-ss: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
