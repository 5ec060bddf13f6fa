"""`make failover`: list-append histories through two service nodes while the cluster behind them is harmed.

    make failover ARGS="--seed 7 --seconds 600"
    make failover ARGS="--only switchover,kill"
    make failover ARGS="--mutate all"

The seed decides what every client sends and in which order faults come. Progress goes to stderr, the verdict to stdout;
the exit code is 1 where anything is wrong, or a mutation was not found, and 2 where a program is missing.
"""

import argparse
import random
import signal
import sys
import time

from failover.cluster import NotInstalled
from failover.faults import FAULTS
from failover.mutations import MUTATIONS
from failover.trial import Say, Trial, run, run_all

LINES_MAX = 40
CHARACTERS_MAX = 1000
LINE_MAX = 300
SHOWN = 3
MUTATED_MIN = 800
"""Transactions of a run with a mutation, at least."""


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
    trial = Trial(seed, arguments.only, *bounds, url_options=arguments.url_options, waits=not arguments.asynchronous)
    try:
        if arguments.mutate:
            return _mutate(arguments.mutate, seed, say)
        verdict = run(trial, say)
    except NotInstalled as exc:
        print(exc, file=sys.stderr)
        return 2
    for line in (*verdict.figures, f"transactions: {verdict.counts}", *verdict.failed[:LINES_MAX]):
        print(line[:CHARACTERS_MAX])
    print(f"seed {seed}: {len(verdict.failed)} complaints, {len(verdict.wrong)} of them about what was promised")
    return 1 if verdict.failed else 0


def _mutate(names: tuple[str, ...], seed: int, say: Say) -> int:
    """Run the product with each weakness. Return 1 where one was not found."""
    missed = 0
    for waits in (True, False):
        chosen = [MUTATIONS[name] for name in names if MUTATIONS[name].waits is waits]
        trials = [
            Trial(seed, mutation.faults, rounds=1, calm_s=0, shares=mutation.shares, mutation=mutation.name,
                  transactions_min=MUTATED_MIN, waits=waits)
            for mutation in chosen
        ]  # fmt: skip
        for mutation, verdict in zip(chosen, run_all(trials, say) if trials else (), strict=True):
            missed += not verdict.wrong
            found = f"found, {len(verdict.wrong)} times" if verdict.wrong else "NOT FOUND"
            lines = (
                f"{mutation.name}: {mutation.sentence}: {found}",
                *verdict.wrong[:SHOWN],
                *verdict.logged,
                *verdict.broken,
            )
            for line in (*lines, *([] if verdict.wrong else verdict.figures)):
                print(line[:LINE_MAX], flush=True)
    print(f"seed {seed}: {len(names) - missed} of {len(names)} mutations found")
    return 1 if missed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="failover",
        description=(__doc__ or "").splitlines()[0],
        epilog="\n".join(
            [
                *(f"{kind.name}: {kind.sentence}" for kind in FAULTS.values()),
                *(f"--mutate {mutation.name}: {mutation.sentence}" for mutation in MUTATIONS.values()),
            ]
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, help="printed by an earlier run; a new one without it")
    parser.add_argument("--seconds", type=float, default=600, help="no fault begins after that time")
    parser.add_argument("--rounds", type=int, help="how often each fault comes, instead of --seconds")
    parser.add_argument("--transactions", type=int, default=200_000, help="no more than these")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--url-options", default="", help="added to the engine's URL: target_session_attrs=primary")
    parser.add_argument(
        "--asynchronous", action="store_true", help="commits do not wait for a standby; only outcomes are judged"
    )
    parser.add_argument(
        "--mutate", type=_mutations, metavar="NAME,NAME", help="weaken the service, or `all`; each must be found"
    )
    parser.add_argument("--only", type=_kinds, default=tuple(FAULTS), metavar="FAULT,FAULT", help="some of those below")
    return parser.parse_args()


def _kinds(text: str) -> tuple[str, ...]:
    kinds = tuple(text.split(","))
    if unknown := [kind for kind in kinds if kind not in FAULTS]:
        raise argparse.ArgumentTypeError(f"no such fault: {', '.join(unknown)}; there are {', '.join(FAULTS)}")
    return kinds


def _mutations(text: str) -> tuple[str, ...]:
    names = tuple(MUTATIONS) if text == "all" else tuple(text.split(","))
    if unknown := [name for name in names if name not in MUTATIONS]:
        raise argparse.ArgumentTypeError(f"no such mutation: {', '.join(unknown)}; there are {', '.join(MUTATIONS)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
