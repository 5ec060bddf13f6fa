"""`make attack`: every attack of the table, then hostile objects from a seed, then the front door, on fresh services.

    make attack ARGS="--seed 7 --minutes 10"
    make attack ARGS="--only a_domain_in_pg_temp_takes_the_place_of_a_type"
    make attack ARGS="--only crosstalk oddities"
    make attack ARGS="--only floods --beside uvicorn granian"

With `--beside`, the floods are also run against those servers, which are installed into .peers/, and compared.

Verdicts and figures go to stdout. The exit code is 1 where a wall did not hold or the bystander saw an error.
"""

import argparse
import random
import sys
import time

from bench.peers.asgi import ASGI_SERVERS

from attack.arena import Arena, open_arena, running_service
from attack.campaign import Verdict, try_attack, try_hostile
from attack.door.beside import compare
from attack.door.floods import FLOODS
from attack.door.trials import TRIALS
from attack.subjects import ATTACKS


def main() -> int:
    arguments = _arguments()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(2**32)
    print(f"seed {seed}", flush=True)
    if arguments.beside:
        floods = [flood for flood in FLOODS.values() if not arguments.only or flood.name in arguments.only]
        for line in compare(floods, arguments.beside, seed):
            print(f"left out: {line}")
        return 0
    failed = 0
    if not arguments.only or not TRIALS.keys() >= set(arguments.only):
        with running_service() as service, open_arena(service) as arena:
            for probe in sorted(arena.broken_probes):
                print(f"left out of all attacks: the probe {probe} stops the engine by itself on this machine")
            failed += _campaign(arena, arguments, seed)
    for trial in TRIALS.values():
        if not arguments.only or trial.name in arguments.only:
            failed += _told(trial.run(seed))
    print(f"seed {seed}: {f'{failed} FAILED' if failed else 'every wall held'}")
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="attack", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, help="of everything that is made up; a new one without it")
    parser.add_argument("--minutes", type=float, default=10, help="for attacks of a tenant and hostile objects")
    parser.add_argument(
        "--only", nargs="*", metavar="NAME", help="attacks by name; `hostile` for those of the seed, `floods` for all"
    )
    parser.add_argument("--beside", nargs="+", choices=ASGI_SERVERS, help="run floods against these servers too")
    parser.add_argument("--list", action="store_true", help="show the attacks and what must not happen")
    arguments = parser.parse_args()
    if arguments.list:
        for attack in ATTACKS.values():
            print(f"{attack.name}: {attack.sentence}")
        for trial in TRIALS.values():
            print(f"{trial.name}: {trial.sentence}")
        sys.exit(0)
    if arguments.only and "floods" in arguments.only:
        arguments.only = [*(name for name in arguments.only if name != "floods"), *FLOODS]
    known = {*ATTACKS, *TRIALS, "hostile"}
    unknown = [name for name in arguments.only or [] if name not in known]
    if unknown:
        parser.error(f"no such attack: {', '.join(unknown)}; --list shows them")
    return arguments


def _campaign(arena: Arena, arguments: argparse.Namespace, seed: int) -> int:
    deadline = time.monotonic() + arguments.minutes * 60
    failed = 0
    for attack in ATTACKS.values():
        if (not arguments.only or attack.name in arguments.only) and time.monotonic() < deadline:
            failed += _told(try_attack(arena, attack))
    rounds = 0
    while (not arguments.only or "hostile" in arguments.only) and time.monotonic() < deadline:
        failed += _told(try_hostile(arena, seed + rounds))
        rounds += 1
    return failed


def _told(verdict: Verdict) -> bool:
    print(f"{'FAILED' if verdict.wrong else 'held  '} {verdict.name}: {verdict.figures}", flush=True)
    for line in verdict.wrong:
        print(f"    {line[:2000]}", flush=True)
    for line in verdict.sent if verdict.wrong else ():
        print(f"        {line[:500]}", flush=True)
    return bool(verdict.wrong)


if __name__ == "__main__":
    sys.exit(main())
