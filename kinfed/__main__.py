"""`python -m kinfed` is `kinfed`."""

from kinfed.cli import main

main()
