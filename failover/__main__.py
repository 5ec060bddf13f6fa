"""`make failover`: list-append histories through two service nodes while the cluster behind them is harmed.

    make failover ARGS="--seed 7 --seconds 600"
    make failover ARGS="--only switchover,kill"

The seed decides what every client sends and in which order faults come. Progress goes to stderr, the verdict to stdout;
the exit code is 1 where anything is wrong, and 2 where a program is missing.
"""

import argparse
import random
import signal
import sys
import time

from failover.cluster import NotInstalled
from failover.faults import FAULTS
from failover.trial import Trial, run

LINES_MAX = 40
CHARACTERS_MAX = 1000


def main() -> int:
    arguments = _arguments()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(2**32)
    # Whatever ends this process ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - started:6.1f} {text}", file=sys.stderr, flush=True)

    say(f"seed {seed}")
    bounds = (arguments.seconds, arguments.rounds, arguments.transactions, arguments.clients)
    trial = Trial(seed, arguments.only, *bounds, url_options=arguments.url_options)
    try:
        verdict = run(trial, say)
    except NotInstalled as exc:
        print(exc, file=sys.stderr)
        return 2
    failed = [*(f"WRONG {line}" for line in verdict.wrong), *(f"LATE  {line}" for line in verdict.late)]
    for line in (*verdict.figures, f"transactions: {verdict.counts}", *failed[:LINES_MAX]):
        print(line[:CHARACTERS_MAX])
    print(f"seed {seed}: {len(verdict.wrong)} wrong, {len(verdict.late)} late")
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="failover",
        description=(__doc__ or "").splitlines()[0],
        epilog="\n".join(f"{kind.name}: {kind.sentence}" for kind in FAULTS.values()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, help="printed by an earlier run; a new one without it")
    parser.add_argument("--seconds", type=float, default=600, help="no fault begins after that time")
    parser.add_argument("--rounds", type=int, help="how often each fault comes, instead of --seconds")
    parser.add_argument("--transactions", type=int, default=200_000, help="no more than these")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--url-options", default="", help="added to the engine's URL: target_session_attrs=primary")
    parser.add_argument("--only", type=_kinds, default=tuple(FAULTS), metavar="FAULT,FAULT", help="some of those below")
    return parser.parse_args()


def _kinds(text: str) -> tuple[str, ...]:
    kinds = tuple(text.split(","))
    if unknown := [kind for kind in kinds if kind not in FAULTS]:
        raise argparse.ArgumentTypeError(f"no such fault: {', '.join(unknown)}; there are {', '.join(FAULTS)}")
    return kinds


if __name__ == "__main__":
    sys.exit(main())
