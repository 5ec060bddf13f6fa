"""`make torture`: transactions through HTTP while the service is harmed, and a verdict on their whole history.

    make torture ARGS="--transactions 200000 --seed 7 --fault-every 500"
    make torture ARGS="--engine-binary /path/to/cockroach --transactions 50000 --seed 7"

The seed decides what every client sends and which faults come after how many transactions; how the clients interleave
is the machine's own. Progress goes to stderr, the verdict to stdout; the exit code is 1 where anything is wrong.
"""

import argparse
import random
import sys
import threading
import time
from pathlib import Path

from tests.fault_plan import KINDS, SLEEP_KINDS, FaultPlan
from tests.faults import none_in_doubt, once_back, serves
from tests.histories import check
from tests.list_append.statements import create_table, final_lists, save_history
from tests.list_append.workload import ListAppend, Shares
from tests.service import Service, Sql, new_data_dir, remove, start_service

from torture.cluster_run import FAULTS, ClusterRun
from torture.cluster_run import run as run_on_cluster

TABLE = "torture"
BUNDLED = (*KINDS, *SLEEP_KINDS)
CHOSEN_IDS = 0.3
QUERIES = 0.3
FAULTY = ("Traceback", "unexpected failure", "a background task failed", "the worker stands still")
"""What a service logs only where it has a fault of its own, whatever is done to it."""
REPORT_S = 5.0
CHARACTERS_MAX = 1000
WAITING_S = 20.0
"""Who has been at one transaction for longer is named."""
STILL_S = 180.0
"""Where nobody has ended a transaction for longer, the run is given up: a client gives up a request before that."""


def main() -> int:
    arguments = _arguments()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(2**32)
    _say(f"seed {seed}: {arguments.transactions:,} transactions, {arguments.clients} clients")
    wrong = _torture_cluster(arguments, seed) if arguments.engine_binary else _torture_bundled(arguments, seed)
    for line in wrong[:20]:
        print(line[:CHARACTERS_MAX])
    print(f"seed {seed}: {f'{len(wrong)} WRONG' if wrong else 'nothing wrong'}")
    return 1 if wrong else 0


def _torture_cluster(arguments: argparse.Namespace, seed: int) -> list[str]:
    started = time.monotonic()
    asked = ClusterRun(
        arguments.engine_binary,
        seed,
        arguments.transactions,
        arguments.clients,
        tuple(arguments.faults),
        arguments.fault_every,
        arguments.seconds,
    )
    return run_on_cluster(asked, lambda text: _say(f"{time.monotonic() - started:6.1f} {text}"))


def _torture_bundled(arguments: argparse.Namespace, seed: int) -> list[str]:
    data_dir = new_data_dir()
    service = start_service(data_dir, "--workers", str(arguments.workers), "--cell-idle-s", "1")
    try:
        return _torture(service, arguments, seed)
    finally:
        service.stop()
        remove(data_dir)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="torture", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--transactions", type=int, default=200_000)
    parser.add_argument("--seed", type=int, help="printed by an earlier run; a new one without it")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--interactive", type=float, default=0.3, help="the share of transactions that are sent statement by statement"
    )
    parser.add_argument("--fault-every", type=int, default=500, help="transactions between two faults, on average")
    parser.add_argument(
        "--engine-binary", type=Path, help="the program of CockroachDB: three nodes of it, behind two of the service"
    )
    parser.add_argument("--seconds", type=float, default=86400, help="on CockroachDB: none is begun after that time")
    parser.add_argument(
        "--faults",
        nargs="*",
        metavar="FAULT",
        help=f"some of: {', '.join(BUNDLED)}; on CockroachDB of: {', '.join(FAULTS)}; or none",
    )
    arguments = parser.parse_args()
    kinds = list(FAULTS if arguments.engine_binary else BUNDLED)
    if arguments.faults is None:
        arguments.faults = kinds
    unknown = [kind for kind in arguments.faults if kind not in kinds]
    if unknown:
        parser.error(f"no such fault: {', '.join(unknown)}")
    return arguments


def _torture(service: Service, arguments: argparse.Namespace, seed: int) -> list[str]:
    with service.client() as client:
        create_table(Sql(client), TABLE)
    share = CHOSEN_IDS if arguments.faults else 0.0
    work = ListAppend(service, TABLE, seed, arguments.transactions, arguments.clients)
    work.shares = Shares(QUERIES, arguments.interactive, chosen_ids=share, keys=0.5)
    work.askers = 1
    thread = threading.Thread(target=work.run, daemon=True)
    started = time.monotonic()
    thread.start()
    still: list[str] = []
    if arguments.faults:
        kinds = tuple(arguments.faults)
        plan = FaultPlan(service, seed, arguments.fault_every, lambda: work.done, kinds, work.rest)
        try:
            with plan:
                still = _report(thread, work, started, plan)
        except BaseException as exc:  # noqa: BLE001 - told with what is known of the run
            still = [f"after the faults {dict(plan.done)}: {exc!r}", *work.describe_waiting(0)]
        _say(f"faults: {dict(plan.done)}; steps that did not come: {dict(plan.missed)}")
    else:
        still = _report(thread, work, started, None)
    if still:
        return [*still, *work.wrong, f"what there is of the history is in {_kept(work, seed)}, with the service's log"]
    once_back(lambda: serves(service) and none_in_doubt(service))
    with service.client() as client:
        final = final_lists(Sql(client), TABLE)
    _say(f"{_counts(work, started)}; checking")
    began = time.monotonic()
    wrong = [*work.wrong, *(str(anomaly) for anomaly in check(work.history, final, real_time=True))]
    _say(f"checked in {time.monotonic() - began:.0f} s")
    log = service.log
    wrong += [f"the service logged {sign!r} {log.count(sign)} times" for sign in FAULTY if sign in log]
    if len(work.history) != arguments.transactions:
        wrong.append(f"only {len(work.history)} transactions have an end")
    if wrong:
        wrong.append(f"the history is in {_kept(work, seed)}, with the service's log beside it")
    return wrong


def _report(thread: threading.Thread, work: ListAppend, started: float, plan: FaultPlan | None) -> list[str]:
    """Tell how it goes until it is over. Return what is wrong where it stands still."""
    done, since = work.done, time.monotonic()
    while thread.is_alive():
        thread.join(REPORT_S)
        faults = f", {plan.done.total()} faults" if plan is not None else ""
        _say(f"{_counts(work, started)}{faults}")
        for line in work.describe_waiting(WAITING_S):
            _say(f"  {line}")
        if plan is not None and plan.failure is not None:
            return []
        if work.done != done:
            done, since = work.done, time.monotonic()
        elif time.monotonic() - since > STILL_S:
            return [f"nothing has ended for {STILL_S:.0f} s", *work.describe_waiting(0)]
    return []


def _counts(work: ListAppend, started: float) -> str:
    rate = work.done / (time.monotonic() - started)
    return f"{work.done:,} done, {rate:.0f}/s, {dict(work.counts)}"


def _kept(work: ListAppend, seed: int) -> Path:
    path = Path(f"/tmp/torture-{seed}.jsonl")  # noqa: S108 - it outlives the run on purpose
    save_history(work.history, path)
    path.with_suffix(".log").write_text(work.service.log)
    return path


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
