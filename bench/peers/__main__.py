"""`make bench-peers`: the service beside its peers. Fails when a ratio misses its bar or a peer is missing."""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from bench.load import generator_name
from bench.peers import bars, report
from bench.peers.install import NotInstalled, install
from bench.peers.processes import NotStarted, machine_busy
from bench.peers.rounds import MAIN, Case, Plan, Results, Wrong, run
from bench.peers.servers import PEERS, Server, Tuplegate
from bench.peers.workloads import LOADS, Workload
from bench.svg import Bars, bar_panels

ROOT = Path(__file__).parent.parent.parent
OUT = ROOT / "bench/out"
ROUNDS, QUICK_ROUNDS = 5, 1
SECONDS, QUICK_SECONDS = 2.0, 1.0
MINUTES = 20.0
BUSY_MAX = 0.1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-peers ARGS=…", description=__doc__)
    names = [peer.name for peer in PEERS]
    parser.add_argument("--peers", nargs="*", choices=names, default=names)
    parser.add_argument("--workloads", nargs="+", choices=list(Workload), default=list(Workload), type=Workload)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, help="of one load; half of it with one connection")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="no round begins that would end later")
    parser.add_argument("--quick", action="store_true", help="one short round: does it work, not how fast is it")
    parser.add_argument("--allow-missing", action="store_true", help="a peer that cannot be had is only named")
    parser.add_argument("--folder", type=Path, default=ROOT / ".peers", help="where the peers are installed")
    chosen = parser.parse_args()
    chosen.rounds = chosen.rounds or (QUICK_ROUNDS if chosen.quick else ROUNDS)
    chosen.seconds = chosen.seconds or (QUICK_SECONDS if chosen.quick else SECONDS)
    return chosen


def main() -> int:
    chosen = arguments()
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, _interrupt)
    began = time.monotonic()
    busy = machine_busy()
    if busy > BUSY_MAX:
        tell(f"WARNING others use {busy:.0%} of this machine: what follows is mostly noise")
    missing: dict[str, str] = {}
    with ExitStack() as ends:
        home = Path(tempfile.mkdtemp(prefix="tg-peers-", dir="/tmp"))
        home.chmod(0o755)
        ends.callback(shutil.rmtree, home, ignore_errors=True)
        servers = start_all(chosen, home, missing, ends)
        versions = {server.name: server.version() for server in servers}
        for server in servers:
            tell(f"{server.title}: {versions[server.name]}; a commit is {server.durability}")
        tell(f"load generator: {generator_name()}")
        driver = find_driver(chosen, missing)
        plan = Plan(chosen.workloads, chosen.rounds, chosen.seconds, began + chosen.minutes * 60, driver)
        results = run(servers, plan, tell)
    found = bars.ratios(results, servers)
    text = report.markdown(results, servers, versions, found, missing, busy)
    OUT.mkdir(exist_ok=True)
    (OUT / "peers.md").write_text(text)
    (OUT / "peers.json").write_text(report.as_json(results, versions, found, missing, busy))
    (OUT / "peers.svg").write_text(plot(results, servers))
    print(f"\n{text}\nwritten to {OUT.relative_to(ROOT)}: peers.md, peers.json, peers.svg")
    return verdict(found, bars.errors(results), missing, chosen.allow_missing)


def start_all(chosen: argparse.Namespace, home: Path, missing: dict[str, str], ends: ExitStack) -> list[Server]:
    """The service and every peer that can be had; the others are named."""
    servers: list[Server] = []
    kinds: list[type[Server]] = [Tuplegate, *(peer for peer in PEERS if peer.name in chosen.peers)]
    for kind in kinds:
        try:
            installed = ROOT if kind is Tuplegate else install(kind.name, chosen.folder)
            (home / kind.name).mkdir(mode=0o755)
            server = kind(installed, home / kind.name)
            ends.callback(server.stop)
            server.start()
        except (NotInstalled, NotStarted) as exc:
            missing[kind.name] = str(exc)
            tell(f"MISSING {kind.title}: {exc}")
        else:
            servers.append(server)
    return servers


def find_driver(chosen: argparse.Namespace, missing: dict[str, str]) -> Path | None:
    """Return where Neon's driver is; without it, its workload is left out."""
    if Workload.NEON not in chosen.workloads:
        return None
    try:
        return install("neon", chosen.folder)
    except NotInstalled as exc:
        missing["neon"] = str(exc)
        chosen.workloads.remove(Workload.NEON)
        return None


def plot(results: Results, servers: list[Server]) -> str:
    panels = []
    for workload in (*LOADS, Workload.STREAM):
        connections = 1 if workload is Workload.STREAM else MAIN
        cases = [(server.title, results.samples.get(Case(server.name, workload, connections))) for server in servers]
        values = [(title, [sample.rate for sample in samples]) for title, samples in cases if samples]
        unit = "rows a second" if workload is Workload.STREAM else f"requests a second, {MAIN} connections"
        if values:
            panels.append(Bars(f"{workload.label}: {unit}", values))
    return bar_panels("Tuplegate and its peers, one machine, one run", panels)


def verdict(found: list[bars.Ratio], errors: int, missing: dict[str, str], allow_missing: bool) -> int:
    failures = [f"{ratio.bar.title}: {ratio.median:.2f}" for ratio in found if ratio.passed is False]
    if errors > bars.ERRORS_MAX:
        failures.append(f"{errors} errors of Tuplegate")
    if missing and not allow_missing:
        failures += [f"missing: {name} (--allow-missing goes on without it)" for name in missing]
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)
    return 1 if failures else 0


def tell(text: str) -> None:
    print(text, flush=True)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except Wrong as wrong:
        sys.exit(f"FAILED {wrong}")
