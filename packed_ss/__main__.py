"""``python -m packed_ss``: the command line."""

from .cli import main

main()
