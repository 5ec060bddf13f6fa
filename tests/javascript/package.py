"""The JavaScript client as `npm pack` makes it, in a folder from which programs use it."""

import json
import os
import re
import shutil
import socket
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.client.faults import CUT, LOSE, PASS, relay
from tests.service import Service

HERE = Path(__file__).parent
SOURCE = HERE.parent.parent / "clients" / "javascript"
PROGRAMS = ("scenarios.mjs", "run.mjs")
RUN_S = 120.0

SCENARIOS = re.findall(r"^export async function (\w+)", (HERE / "scenarios.mjs").read_text("utf-8"), re.MULTILINE)

Lost = dict[int, str] | bytes
"""Answers that are lost: by the number of their request from 0, or of all requests that contain this."""

LOST: dict[str, Lost] = {
    "a_write_whose_answer_is_lost_is_applied_once": {0: LOSE},
    "a_transaction_whose_answer_is_lost_is_applied_once": {0: LOSE},
    "a_read_whose_answer_is_lost_is_read_again": {0: LOSE},
    "a_read_that_turns_out_to_write_is_not_repeated": {0: LOSE},
    "without_a_key_a_lost_write_is_unknown": {0: LOSE},
    "a_write_that_cannot_be_asked_about_gives_its_key": b"insert into",
    "a_transaction_with_an_id_of_its_own_is_asked_for": {0: LOSE},
    "nothing_of_an_open_transaction_runs_twice": {1: LOSE, 3: LOSE, 5: LOSE, 7: LOSE, 9: LOSE},
    "a_commit_whose_answer_never_comes_can_be_asked_about": b"/commit ",
    "a_statement_whose_answer_never_comes_ends_it": b"insert into",
    "a_stream_that_is_cut_off_is_no_whole_result": {0: CUT},
    "a_stream_that_is_lost_before_its_head_is_unknown": {0: LOSE},
}

# Where its answers never come, a call is repeated once.
RETRIES = {name: 1 for name in LOST if "never_comes" in name or "cannot_be_asked" in name}


def make_package(folder: Path) -> None:
    """Pack the client and put it where a program in the folder finds it, as `npm install` would."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("there is no Node.js with npm")
    packed = subprocess.run(
        ["npm", "pack", "--json", "--offline", "--pack-destination", str(folder)],
        cwd=SOURCE,
        capture_output=True,
        text=True,
        timeout=RUN_S,
    )
    assert packed.returncode == 0, packed.stderr
    archive = folder / str(json.loads(packed.stdout)[0]["filename"])
    target = folder / "node_modules" / "@tuplegate" / "client"
    with tarfile.open(archive) as packages:
        packages.extractall(folder, filter="data")
    target.parent.mkdir(parents=True)
    (folder / "package").rename(target)
    manifest = {"type": "module", "dependencies": {"@tuplegate/client": "*"}}
    (folder / "package.json").write_text(json.dumps(manifest))
    for name in PROGRAMS:
        shutil.copy(HERE / name, folder)


def run_scenarios(folder: Path, service: Service, key: str, runtime: Sequence[str | Path]) -> dict[str, str | None]:
    """Run all of them in a runtime of JavaScript, with answers lost as `LOST` says. Return why each failed, or None."""
    with ExitStack() as stack:
        addresses = {name: stack.enter_context(relay(service.url, _losing(lost))).url for name, lost in LOST.items()}
        runs = [
            {"name": name, "through": addresses.get(name, service.url), "retries": RETRIES.get(name, 5)}
            for name in SCENARIOS
        ]
        with socket.create_server(("127.0.0.1", 0)) as taken:
            unused = f"http://127.0.0.1:{taken.getsockname()[1]}"
        given = {"url": service.url, "control": service.control_url, "unused": unused, "key": key, "runs": runs}
        environment = {**os.environ, "TUPLEGATE_SCENARIOS": json.dumps(given)}
        printed = run_program([*runtime, "run.mjs"], folder, environment)
    told: dict[str, str | None] = dict(json.loads(line) for line in printed.splitlines())
    return told


def run_program(command: Sequence[str | Path], folder: Path, environment: dict[str, str] | None = None) -> str:
    """Return what a program prints; it must end without an error."""
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=RUN_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _losing(lost: Lost) -> Callable[[bytes], str]:
    if isinstance(lost, bytes):
        return lambda request: LOSE if lost in request else PASS
    count = iter(range(10**6))
    return lambda _request: lost.get(next(count), PASS)
