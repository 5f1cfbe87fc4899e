"""`python -m kinfed` and the script `kinfed`."""

import os
import signal
from importlib import import_module
from types import FrameType

COMMANDS = "kinfed.cli."
SHARED = "kinfed.cli.options"  # called by commands, and before them
IMPORTS = "<frozen importlib"  # where Python's own code of imports is


def main() -> None:
    """Runs the command line."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # ignored in a shell's background
        signal.signal(signal.SIGINT, interrupt)
    import_module("kinfed.cli").main()


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raises KeyboardInterrupt in a command, and leaves at once while Python still imports what it needs.

    An exception there would be a traceback, or lost in libraries that are half imported.
    """
    if is_at_work(frame):
        signal.default_int_handler(number, frame)
    os.write(2, b"interrupted\n")
    os._exit(130)


def is_at_work(frame: FrameType | None) -> bool:
    """Whether a command runs, and does more than to import what it needs."""
    inner = ""
    while frame:
        module, code = str(frame.f_globals.get("__name__")), frame.f_code
        if module.startswith(COMMANDS) and inner.startswith(IMPORTS):
            return False
        if module.startswith(COMMANDS) and module != SHARED and code.co_name != "<module>":
            return True
        inner, frame = code.co_filename, frame.f_back
    return False


if __name__ == "__main__":
    main()
