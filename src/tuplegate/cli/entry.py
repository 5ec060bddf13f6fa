"""Where the program begins: so early that Ctrl-C ends it quietly, also while it is still being loaded."""

import os
import sys


def main() -> None:
    try:
        from tuplegate.cli.main import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.stderr.flush()
        os._exit(130)  # nothing is open yet, and another Ctrl-C must not find Python on its way out
    sys.exit(code)
