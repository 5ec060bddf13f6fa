"""The ways to send a transaction over HTTP, and what their answers mean for the history."""

import asyncio
import itertools
import json
import time
from typing import TYPE_CHECKING, Any

from tests.histories import Append, Outcome, Read, Transaction, Values
from tests.list_append.http_client import Gone
from tests.list_append.sayings import Lack, Snapshot, settle
from tests.list_append.statements import Op, alone, found, found_alone, parsed, rows_of, statements_of
from tests.list_append.wire import by_wire

if TYPE_CHECKING:
    from tests.list_append.client import Client

PAUSE_S = 0.05
_LOST: dict[str, Any] = {"success": False, "error": {"code": "outcome_unknown", "sqlstate": None}}
_FORMS = ("text/event-stream", "application/x-ndjson")
_OVER = ("transaction_aborted", "transaction_expired", "outcome_unknown")


async def send(client: "Client", id: int, ops: list[Op]) -> Transaction | None:
    """Send the operations in one of the ways. Return None where they were a read of a snapshot."""
    shares = client.workload.shares
    ways = {
        by_query: shares.queries,
        by_steps: shares.interactive,
        by_stream: shares.streams,
        by_wire: shares.wire,
        read_snapshot: shares.snapshots,
    }
    left = 1 - sum(ways.values())
    [way] = client.rng.choices([*ways, by_transaction], [*ways.values(), left])
    client.workload.sent[way.__name__] += 1
    return await way(client, id, ops)


# -- whole transactions and single statements -------------------------------------------------------------------------


async def _send(client: "Client", path: str, body: dict[str, Any], header: str) -> tuple[Outcome, dict[str, Any]]:
    """Send a request, and return what its answer says. One with an Idempotency-Key is sent until its end is known.

    A failure is as definite to a repeat as to the first request: nothing was applied, by neither, or will be. Only
    a 503 says nothing of what was sent before, and neither does the 409 of a key that is in use.
    """
    text = json.dumps({**body, "row_mode": "arrays", **client.limit}).encode()
    is_unknown = False
    deadline = time.monotonic() + 2 * client.workload.answer_s
    while time.monotonic() < deadline:
        try:
            status, answer = await client.http.request("POST", path, text, header)
        except Gone:
            status, answer = 503, _LOST
        if answer["success"]:
            return Outcome.OK, answer
        code = answer["error"]["code"]
        is_unknown = is_unknown or code == "outcome_unknown"
        if status == 503:
            await client.turned_away()
        if not is_unknown or (status != 503 and code != "idempotency_in_progress"):
            client.judge(status, answer)
            return Outcome.FAIL, answer
        if not header.startswith("Idempotency-Key"):
            return Outcome.INFO, answer
        await asyncio.sleep(PAUSE_S)
    client.workload.complain(f"the outcome of a request with {header.strip()} cannot be learned: {answer}")
    return Outcome.INFO, answer


async def by_query(client: "Client", id: int, ops: list[Op]) -> Transaction:
    """Send an operation as a single statement, half of the time with an Idempotency-Key."""
    op = ops[0]
    statement = alone(client.table, op, client.rng)
    header = _make_key(client) if client.rng.random() < 0.5 else ""
    began = time.monotonic()
    outcome, answer = await _send(client, "/v1/query", statement, header)
    if outcome is not Outcome.OK:
        return Transaction(id, outcome, (op,), began)
    return client.show(Transaction(id, outcome, found_alone(op, rows_of(answer)), began, time.monotonic()))


async def by_transaction(client: "Client", id: int, ops: list[Op]) -> Transaction:
    rng, workload = client.rng, client.workload
    groups = [statements_of(client.table, op, rng) for op in ops]
    body: dict[str, Any] = {"statements": [s for group in groups for s in group]}
    if not any(isinstance(op, Append) for op in ops) and rng.random() < 0.5:
        body["read_only"] = True
    chosen, header = None, ""
    if rng.random() < workload.shares.chosen_ids:
        chosen = f"txn_{rng.randbytes(12).hex()}"
        header = f"Tuplegate-Transaction-Id: {chosen}\r\n"
        workload.recent.append((chosen, True))
    elif rng.random() < workload.shares.keys:
        header = _make_key(client)
    began = time.monotonic()
    outcome, answer = await _send(client, "/v1/transaction", body, header)
    ended = time.monotonic()
    told = answer.get("transaction_id") or chosen
    if told is not None:
        workload.ids[id] = told
    if outcome is Outcome.INFO:
        return client.doubt(Transaction(id, outcome, tuple(ops), began), told)
    if told is not None:
        # A request with a key may be answered by an earlier one, and its id is that one's: the outcome is the same.
        workload.sayings.note(told, "committed" if outcome is Outcome.OK else "aborted", "the answer itself")
        if chosen is None:
            workload.recent.append((told, False))
    if outcome is Outcome.FAIL:
        return Transaction(id, outcome, tuple(ops), began, ended)
    ends = itertools.accumulate(len(group) for group in groups)
    seen = found(ops, (rows_of(answer["results"][end - 1]) for end in ends))
    return client.show(Transaction(id, outcome, seen, began, ended))


def _make_key(client: "Client") -> str:
    return f"Idempotency-Key: {client.rng.randbytes(12).hex()}\r\n"


# -- transactions that stay open --------------------------------------------------------------------------------------


async def by_steps(client: "Client", id: int, ops: list[Op]) -> Transaction:
    """The statements one by one. A request without an answer is sent again with its number."""
    groups = [statements_of(client.table, op, client.rng) for op in ops]
    began = time.monotonic()
    failed = Transaction(id, Outcome.FAIL, tuple(ops), began)
    try:
        status, answer = await client.http.request("POST", "/v1/transaction/begin", b"{}")
    except Gone:
        status, answer = 503, {}
    if status != 201:
        await client.turned_away()
        return failed
    opened = answer["transaction_id"]
    if _writes(failed):
        client.workload.recent.append((opened, False))
    seen: list[list[Any]] = []
    sequence = 0
    for statement in [s for group in groups for s in group]:
        sequence += 1
        status, answer = await _step(client, f"{opened}/query", {**statement, "row_mode": "arrays"}, sequence)
        if status != 200 or not answer["success"]:
            return await _give_up(client, failed, opened, status, answer)
        seen.append(answer["rows"])
    status, answer = await _step(client, f"{opened}/commit", {}, sequence + 1)
    if status == 200 and answer["success"]:
        _note_opened(client, failed, opened, "committed")
        ends = itertools.accumulate(len(group) for group in groups)
        read = found(ops, (seen[end - 1] for end in ends))
        return client.show(Transaction(id, Outcome.OK, read, began, time.monotonic()))
    if status == 200:
        _note_opened(client, failed, opened, "aborted")  # a commit that fails ends it
    return await _give_up(client, failed, opened, status, answer)


def _note_opened(client: "Client", one: Transaction, opened: str, state: str) -> None:
    """One that has only read is told as aborted when its worker is gone, so no word on it is final."""
    if _writes(one):
        client.workload.sayings.note(opened, state, "the answer to its commit")


def _writes(one: Transaction) -> bool:
    return any(isinstance(op, Append) for op in one.ops)


async def _step(client: "Client", path: str, body: dict[str, Any], sequence: int) -> tuple[int, dict[str, Any]]:
    """Until there is an answer that says what became of it."""
    deadline = time.monotonic() + client.workload.answer_s
    text = json.dumps({**body, "sequence": sequence}).encode()
    while True:
        try:
            status, answer = await client.http.request("POST", f"/v1/transaction/{path}", text)
        except Gone:
            status, answer = 503, _LOST
        again = status == 503 or answer.get("error", {}).get("code") in ("transaction_in_use", "outcome_unknown")
        if not again or time.monotonic() > deadline:
            return status, answer
        await client.turned_away() if status == 503 else await asyncio.sleep(PAUSE_S)


async def _give_up(
    client: "Client", failed: Transaction, opened: str, status: int, answer: dict[str, Any]
) -> Transaction:
    """The same with its outcome, which is settled before."""
    error = answer["error"]
    # The database was let go of, for a copy of it, while a statement ran. A commit has this beside its error.
    is_let_go = error["sqlstate"] == "57014" and answer.get("transaction", answer).get("reason") == "lost"
    if error["code"] in _OVER or error["sqlstate"] == "25P02" or is_let_go:
        client.workload.refusals[error["code"]] += 1
    else:
        client.judge(status, answer)
    deadline = time.monotonic() + client.workload.answer_s
    while time.monotonic() < deadline:
        try:
            status, answer = await client.http.request("POST", f"/v1/transaction/{opened}/abort")
        except Gone:
            status, answer = 503, {}
        if status == 200 and answer["state"] != "in_progress":
            _note_opened(client, failed, opened, answer["state"])
            return settle(failed, answer["state"])
        await client.turned_away()
    client.workload.complain(f"the outcome of {opened} cannot be learned: {status} {answer}")
    return failed


# -- streams and snapshots --------------------------------------------------------------------------------------------


def _read_lists(table: str, keys: list[str]) -> dict[str, Any]:
    """Several lists in one statement."""
    sql = f"select k, v from {table} where k = any($1::int[]) order by k"
    return {"sql": sql, "params": [[int(key) for key in keys]]}


def _lists_of(keys: list[str], rows: list[Any]) -> dict[str, Values]:
    there = {str(key): parsed([[values]]) for key, values in rows}
    return {key: there.get(key, ()) for key in keys}


async def by_stream(client: "Client", id: int, ops: list[Op]) -> Transaction:
    """Send one statement whose rows are streamed: an append, or a read of several lists. Rows count behind `done`."""
    keys = sorted({op.key for op in ops})
    op = ops[0]
    is_append = isinstance(op, Append)
    asked: tuple[Op, ...] = (op,) if is_append else tuple(Read(key) for key in keys)
    statement = alone(client.table, op, client.rng) if is_append else _read_lists(client.table, keys)
    began = time.monotonic()
    lost = Transaction(id, Outcome.INFO if is_append else Outcome.FAIL, asked, began)
    answer = await _stream(client, statement, "")
    if answer is None or (error := answer.get("error", {})).get("code") == "outcome_unknown":
        await client.turned_away()
        return lost
    if error:
        return Transaction(id, Outcome.FAIL, asked, began)
    rows = answer["rows"]
    seen = found_alone(op, rows) if is_append else tuple(Read(k, v) for k, v in _lists_of(keys, rows).items())
    return client.show(Transaction(id, Outcome.OK, seen, began, time.monotonic()))


async def _stream(client: "Client", statement: dict[str, Any], header: str) -> dict[str, Any] | None:
    """Return an answer made of the stream, as if it had not been one; None where it was cut off."""
    body = json.dumps({**statement, "row_mode": "arrays", **client.limit}).encode()
    form = client.rng.choice(_FORMS)
    try:
        status, events = await client.http.stream("/v1/query", body, f"Accept: {form}\r\n{header}")
    except Gone:
        return None
    rows = [data for name, data in events if name == "row"]
    name, last = events[-1] if events else ("nothing", {})
    if name == "done" and last["row_count"] == len(rows):
        return {**last, "rows": rows}
    if name in ("error", "answer") and last.get("rows_sent", 0) == len(rows):
        if last["error"]["code"] != "outcome_unknown":
            client.judge(status, last)
        return last
    client.workload.complain(f"a stream of {len(rows)} rows ends with {name}: {last}")
    return None


async def read_snapshot(client: "Client", _id: int, ops: list[Op]) -> None:
    """Read several lists where a replica may answer. They must have all that the client was shown before."""
    keys = sorted({op.key for op in ops})
    statement = _read_lists(client.table, keys)
    header = "Tuplegate-Consistency: snapshot\r\n"
    behind = client.http.position
    way = client.rng.randrange(3)
    began = time.monotonic()
    if way == 0:
        answer = await _stream(client, statement, header) or _LOST
        rows = answer.get("rows")
    elif way == 1:
        body = {"statements": [statement], "read_only": True}
        _, answer = await _send(client, "/v1/transaction", body, header)
        rows = answer["results"][0]["rows"] if answer["success"] else None
    else:
        _, answer = await _send(client, "/v1/query", statement, header)
        rows = answer.get("rows")
    if not answer["success"] or rows is None:
        return
    by = client.http.served_by
    client.workload.asked[f"by {by}"] += 1
    lists = _lists_of(keys, rows)
    told = f"client {client.number}, way {way}, by the {by} of node {client.http.node} behind {behind}"
    if missing := client.shown.find_missing(lists):
        client.workload.lacks.append(Lack(missing, told))
    client.workload.snapshots.append(Snapshot(lists, told, began, time.monotonic()))
