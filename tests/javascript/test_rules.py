"""The rules of the JavaScript client are those of the Python client: both are asked the same."""

import json
import random
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest

from tests.javascript.package import HERE, SOURCE
from tuplegate.client.addresses import read_control_url
from tuplegate.client.errors import OutcomeUnknown, SqlError, TuplegateError, make_error
from tuplegate.client.progress import Progress, can_run_again, is_settled
from tuplegate.client.requests import drop_stream_hint
from tuplegate.client.retries import AnswerLost, Course, NotSent, nothing_was_applied
from tuplegate.client.statements import find_keyword, seems_to_read
from tuplegate.protocol.errors import ERRORS

NODE = shutil.which("node")
SQLSTATES = (None, "40001", "40P01", "23505", "25006")
SAID: tuple[dict[str, Any], ...] = (
    {},
    {"transaction_id": "txn_1"},
    {"transaction": {"state": "failed", "expires_at": "2026-11-14T23:57:08.741335Z"}},
    {"transaction": {"state": "aborted", "reason": "lost"}},
    {"transaction_id": "txn_1", "state": "aborted"},
)
ANSWERS: tuple[dict[str, Any], ...] = (
    {"transaction_id": "txn_1", "state": "open", "expires_at": "2026-11-14T23:57:08.741335Z"},
    {"transaction": {"state": "open"}},
    {"transaction": {"state": "failed"}},
    {"transaction": {"state": "aborted", "reason": "limit"}},
    {},
)
STATEMENTS = (
    "select 1",
    "  ; ( SELECT 1)",
    "-- a\n-- b\r select 1",
    "--",
    "/* a **/ /*/ b */ values (1)",
    "/* a /* b */ c */ select 1",
    "/* a",
    "/**/table t",
    "with a as (select 1) select * from a",
    "with a as (INSERT into t values (1) returning n) select * from a",
    "insert into t values (1)",
    "explain delete from t",
    "/*+ STREAM */ select 1",
    " \n/*+ STREAM */select 1",
    "select 1 /*+ STREAM */",
    "",
    "42",
)
URLS = (
    "http://127.0.0.1:8080",
    "http://127.0.0.1:9000",
    "https://db.example",
    "http://localhost:8080",
    "https://10.0.0.1/x",
)
NAMED = (
    None,
    "http://127.0.0.1:8082",
    "http://127.0.0.1:9002/",
    "https://control.example",
    "ftp://x",
    "http://u:p@x",
    "",
)


@dataclass
class Cases:
    """What both are asked, as JSON, and the errors that Python makes of it."""

    errors: list[dict[str, Any]] = field(default_factory=list)
    courses: list[dict[str, Any]] = field(default_factory=list)
    lives: list[list[dict[str, Any]]] = field(default_factory=list)

    def error(self, index: int) -> TuplegateError:
        one = self.errors[index]
        if "kind" in one:
            kind = {"unreachable": NotSent, "answer_lost": AnswerLost}[one["kind"]]
            return kind("said", retryable=one["retryable"])
        made = make_error(one["status"], one["answer"]["error"], None, one["retry_after_s"])
        made.answer = one["answer"]
        return made


def make_cases() -> Cases:
    """From a fixed seed."""
    chance = random.Random(19)
    cases = Cases(
        [{"kind": kind, "retryable": again} for kind, again in product(("unreachable", "answer_lost"), (False, True))]
    )
    for (code, row), sqlstate, said in product(ERRORS.items(), SQLSTATES, SAID):
        for reason in ("lost", "conflict", "revoked") if code == "transaction_aborted" else ("",):
            message = f"txn_1 was rolled back (reason: {reason})" if reason else "said"
            error = {"code": code, "message": message, "sqlstate": sqlstate, "retryable": row.retryable}
            wait = chance.choice([None, None, 0, 1, 30])
            cases.errors.append({"status": row.status, "answer": {"error": error, **said}, "retry_after_s": wait})
    count = len(cases.errors)
    for _ in range(200):
        steps = [[chance.randrange(count), chance.uniform(0, 11_000), chance.random()] for _ in range(8)]
        cases.courses.append({"retries": chance.randrange(6), "steps": steps})
    for _ in range(400):
        life: list[dict[str, Any]] = []
        if chance.random() < 0.8:
            life += [{"do": "next"}, {"do": "answer", "answer": ANSWERS[0]}]
        for _ in range(12):
            verb = chance.choice(["next", "next", "lower", "taken", "answer", "error", "error", "lose"])
            step = {"do": verb, "answer": chance.choice(ANSWERS), "error": chance.randrange(count)}
            life.append(step)
        cases.lives.append(life)
    return cases


@pytest.fixture(scope="module")
def cases() -> Cases:
    return make_cases()


@pytest.fixture(scope="module")
def told(cases: Cases) -> dict[str, Any]:
    """What the JavaScript client says."""
    if NODE is None:
        pytest.skip("there is no Node.js")
    given = {**vars(cases), "statements": STATEMENTS, "urls": list(product(NAMED, URLS))}
    command = [NODE, str(HERE / "rules.mjs"), (SOURCE / "src").as_uri()]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_every_error_is_judged_the_same(cases: Cases, told: dict[str, Any]) -> None:
    """Of every code in the table, with and without SQLSTATE, and with what it may say of its transaction."""
    for index, judged in enumerate(told["judged"]):
        error = cases.error(index)
        lost = isinstance(error, AnswerLost | OutcomeUnknown)
        rules = [isinstance(error, SqlError), lost, nothing_was_applied(error), is_settled(error), can_run_again(error)]
        assert judged == rules, cases.errors[index]


def test_every_pause_is_the_same(cases: Cases, told: dict[str, Any]) -> None:
    """Until the deadline, or the last retry."""
    ends = 0
    for case, pauses in zip(cases.courses, told["courses"], strict=True):
        course = Course(10.0, case["retries"])
        for (index, now, chance), pause_ms in zip(case["steps"], pauses, strict=True):
            pause_s = course.pause_s(cases.error(index), now / 1000, chance)
            ends += pause_s is None
            assert pause_ms == (None if pause_s is None else pytest.approx(pause_s * 1000)), case
    assert 100 < ends < 1500


def test_every_open_transaction_goes_the_same_way(cases: Cases, told: dict[str, Any]) -> None:
    """Its sequence, its state, and whether it may still be running."""
    for steps, seen in zip(cases.lives, told["lives"], strict=True):
        known = Progress()
        for step, shown in zip(steps, seen, strict=True):
            returned = _do(known, step, cases)
            assert shown == [returned, known.id, known.state, known.reason, known.is_running, known.goes_on], steps


def _do(known: Progress, step: dict[str, Any], cases: Cases) -> int | None:
    match step["do"]:
        case "next":
            return known.next_sequence()
        case "lower":
            return known.lower_sequence(cases.error(step["error"]))
        case "taken":
            known.note_taken()
        case "answer":
            known.note_answer(step["answer"])
        case "error":
            known.note_error(cases.error(step["error"]))
        case "lose":
            known.lose()
    return None


def test_statements_and_addresses_are_read_the_same(told: dict[str, Any]) -> None:
    """What seems to read goes without a key; and where the token is sent."""
    assert told["reads"] == [[find_keyword(sql), seems_to_read(sql), drop_stream_hint(sql)] for sql in STATEMENTS]
    assert told["urls"] == [read_control_url({"control_url": named}, url) for named, url in product(NAMED, URLS)]


def test_the_codes_of_the_client_are_its_own() -> None:
    """None is one of the service's; the page has them all."""
    page = (SOURCE / "README.md").read_text("utf-8")
    types = (SOURCE / "types" / "index.d.ts").read_text("utf-8")
    declared = re.search(r"type ClientCode =([^;]+);", types)
    assert declared is not None
    codes = set(re.findall(r'"(\w+)"', declared[1]))
    used = {
        code for path in (SOURCE / "src").glob("*.js") for code in re.findall(r'code: "(\w+)"', path.read_text("utf-8"))
    }
    assert used - set(ERRORS) == codes
    assert not codes & set(ERRORS)
    assert codes | {"outcome_unknown"} == set(
        re.findall(r"^\| `(\w+)` \| ", page.partition("## Errors")[2], re.MULTILINE)
    )
