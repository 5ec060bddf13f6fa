"""Entry point of the program. It handles Ctrl-C from the very start, even while modules are still loading."""

import gc
import os
import sys


def main() -> None:
    try:
        # httpx would load a command of its own and all that draws it, a sixth of the start; it does without.
        sys.modules["httpx._main"] = None  # type: ignore[assignment]  # so that an import of it fails
        from tuplegate.cli.main import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.stderr.flush()
        os._exit(130)  # nothing is open yet, and another Ctrl-C must not find Python on its way out
    gc.freeze()  # the end frees everything: Python need not look for garbage in all that was loaded first
    sys.exit(code)
