"""Entry point of the program. It handles Ctrl-C from the very start, even while modules are still loading."""

import gc
import os
import sys


def main() -> None:
    try:
        # httpx would load its own command line with all its dependencies, a sixth of our start; it works without.
        sys.modules["httpx._main"] = None  # type: ignore[assignment]  # so that an import of it fails
        from tuplegate.cli.main import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.stderr.flush()
        os._exit(130)  # nothing is open yet, and a second Ctrl-C must not interrupt Python's exit
    gc.freeze()  # exit frees everything: Python need not search all loaded modules for garbage first
    sys.exit(code)
