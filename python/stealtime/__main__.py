"""The command."""

from __future__ import annotations

import signal
import sys

from stealtime import _native


def main() -> int:
    """Runs the command with the program's arguments. Returns its exit status."""
    # Ctrl-C is the command's.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    started_by = [sys.executable, "-m", "stealtime"]
    return _native.main(started_by, ["stealtime", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
