"""A workload of short random transactions through HTTP that append to lists and read them, and its history.

Ten keys are hot at a time. A key is given up for a new one after some hundred appends, so that lists stay short however
long the workload is. Everything that a client sends follows from the seed and the client's number, whatever the others
do; only how the clients interleave does not.

Of several nodes of a service a client uses one, and the next one when that does not answer or refuses.
"""

import asyncio
import itertools
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.histories import Append, Outcome, Read, Transaction, Values
from tests.service import Service, Sql

KEYS = 10
GENERATION = 800
"""Transactions of all clients after which the keys are new ones."""

_ANSWER_S = 120.0
_PAUSE_S = 0.05
_MOVE_S = 0.2
_REFUSALS = ("conflict", "timeout", "engine_unavailable", "busy", "shutting_down")
"""Codes that say that nothing was applied."""

Op = Append | Read
Statement = dict[str, Any]


class _Numbers(dict[str, int]):
    """Texts of numbers as numbers, each of which is there once: long histories hold the same ones over and over."""

    def __missing__(self, text: str) -> int:
        self[text] = number = int(text)
        return number


_number = _Numbers()


def create_table(sql: Sql, table: str) -> None:
    """A key, the same once more without an index, and the values as text. Beside it is a table for `once`."""
    sql(f"create table {table} (k int primary key, name text, v text)")
    sql(f"create table {table}_once (value int primary key)")


def statements_of(table: str, op: Op, rng: random.Random) -> list[Statement]:
    """An operation in one of the ways to write it. The last statement of a read gives the list."""
    key = int(op.key)
    if isinstance(op, Read):
        if rng.random() < 0.5:
            return [{"sql": f"select v from {table} where k = $1", "params": [key]}]
        return [{"sql": f"select v from {table} where name = $1", "params": [f"n{key}"]}]
    if rng.random() < 0.5:
        return [upsert_of(table, op)]
    row = [key, f"n{key}", str(op.value)]
    absent = f"not exists (select 1 from {table} where k = $1)"
    return [
        {"sql": f"update {table} set v = v || ',' || $2 where k = $1", "params": [key, str(op.value)]},
        {"sql": f"insert into {table} select $1::int, $2::text, $3::text where {absent}", "params": row},
    ]


def upsert_of(table: str, op: Append) -> Statement:
    """An append as one statement."""
    upsert = f"insert into {table} values ($1, $2, $3) on conflict (k) do update set v = {table}.v || ',' || $3"
    return {"sql": upsert, "params": [int(op.key), f"n{op.key}", str(op.value)]}


def once(table: str, op: Append) -> Statement:
    """An append as one statement that fails when it is run a second time: 23505. It returns the list."""
    upsert = upsert_of(table, op)
    upsert["sql"] = f"with once as (insert into {table}_once values ($4)) {upsert['sql']} returning v"
    upsert["params"].append(op.value)
    return upsert


def parsed(rows: list[Any]) -> Values:
    return tuple(map(_number.__getitem__, rows[0][0].split(","))) if rows else ()


def found(ops: Sequence[Op], rows: Iterable[list[Any]]) -> tuple[Op, ...]:
    """The operations with what the reads among them gave."""
    return tuple(Read(op.key, parsed(row)) if isinstance(op, Read) else op for op, row in zip(ops, rows, strict=True))


def random_ops(rng: random.Random, numbers: "itertools.count[int]", generation: int = 0) -> list[Op]:
    ops: list[Op] = []
    for _ in range(rng.randint(1, 4)):
        key = str(generation * KEYS + rng.randrange(KEYS))
        ops.append(Read(key) if rng.random() < 0.5 else Append(key, next(numbers)))
    return ops


def final_lists(sql: Sql, table: str) -> dict[str, Values]:
    rows = sql.rows(f"select k, v from {table}", row_mode="arrays")
    return {str(key): parsed([[values]]) for key, values in rows}


def save_history(history: Iterable[Transaction], path: Path) -> None:
    """Writes a line of JSON for every transaction."""
    with path.open("w") as file:
        for one in history:
            ops = [{"op": type(op).__name__, **asdict(op)} for op in one.ops]
            row = {"id": one.id, "outcome": one.outcome.value, "began": one.began, "ended": one.ended, "ops": ops}
            file.write(json.dumps(row) + "\n")


class Gone(Exception):
    """The connection ended, or nothing came, before there was an answer."""


class _HttpClient:
    """One kept connection that posts JSON. Small, since it shares two cores with what it drives."""

    def __init__(self, nodes: Sequence[Service], first: int, answer_s: float) -> None:
        self._nodes = nodes
        self._at = first
        self._answer_s = answer_s
        self.told: dict[bool, str] = {}
        """The last request, and what it was answered; under True the last look at the service's health."""
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    @property
    def _service(self) -> Service:
        return self._nodes[self._at % len(self._nodes)]

    def move_on(self) -> None:
        """Takes the next node from now on."""
        self.close()
        self._at += 1

    async def request(self, method: str, path: str, body: bytes = b"", more: str = "") -> tuple[int, dict[str, Any]]:
        about = path == "/health"
        self.told[about] = f"{method} {path}: no answer yet"
        try:
            async with asyncio.timeout(self._answer_s):
                status, answer = await self._request(method, path, body, more)
        except (OSError, EOFError, TimeoutError) as exc:
            self.told[about] = f"{method} {path}: {exc!r}"
            self.close()
            raise Gone from exc
        said = answer.get("error", {}).get("code") or answer.get("state") or ""
        self.told[about] = f"{method} {path}: {status} {said}".rstrip()
        return status, answer

    async def _request(self, method: str, path: str, body: bytes, more: str) -> tuple[int, dict[str, Any]]:
        if self._streams is None:
            address = urlsplit(self._service.url)
            self._streams = await asyncio.open_connection(address.hostname, address.port, limit=1 << 22)
        reader, writer = self._streams
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self._service.key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n{more}\r\n"
        )
        writer.write(head.encode() + body)
        start = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(start.split(b"content-length: ", 1)[1].split(b"\r\n", 1)[0])
        answer = json.loads(await reader.readexactly(length))
        if b"connection: close" in start:
            self.close()
        return int(start.split(b" ", 2)[1]), answer

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


@dataclass
class ListAppend:
    """See the module's text. `run` in a thread of its own lets others do harm meanwhile."""

    service: Service
    table: str
    seed: int
    transactions: int
    clients: int = 12
    chosen_ids: float = 0.0
    """The share of transactions that carry an id of the client's choice, so that their outcome can be asked for."""
    others: tuple[Service, ...] = ()
    """Further nodes of the same service."""
    queries: float = 0.0
    """The share that is sent as a single statement: reads, appends, and appends with an Idempotency-Key."""
    timeout_ms: int | None = None
    """The time limit of every request; the service's own without it."""
    answer_s: float = _ANSWER_S
    """A client waits no longer for an answer, or to learn an outcome afterwards."""
    interactive: float = 0.0
    """The share that is sent statement by statement, as a transaction that stays open meanwhile."""
    history: list[Transaction] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    """How often which code said that nothing was applied."""
    wrong: list[str] = field(default_factory=list)
    """Answers that no fault can excuse."""
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set it to have no more begun; what is in doubt is still asked for."""
    at_work: "dict[_Client, tuple[int, float]]" = field(default_factory=dict)
    """The clients that are at work, each with the transaction that it is at, and since when."""

    @property
    def done(self) -> int:
        return self.counts.total()

    @property
    def nodes(self) -> tuple[Service, ...]:
        return (self.service, *self.others)

    def run(self) -> None:
        asyncio.run(self._all())

    def describe_waiting(self, seconds: float) -> list[str]:
        """Return a line for every client that has been at one transaction for longer than that."""
        now = time.monotonic()
        return [
            f"client {client.number} is at transaction {id} for {now - since:.0f} s; {'; '.join(client.told)}"
            for client, (id, since) in list(self.at_work.items())
            if now - since > seconds
        ]

    async def _all(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(self.clients):
                group.create_task(_Client(self, number).run())


class _Client:
    def __init__(self, workload: ListAppend, number: int) -> None:
        self._workload = workload
        self.number = number
        self._rng = random.Random(f"{workload.seed}-{number}")
        self._http = _HttpClient(workload.nodes, number, workload.answer_s)
        self._in_doubt: list[tuple[Transaction, str]] = []
        self._limit = {} if workload.timeout_ms is None else {"timeout_ms": workload.timeout_ms}

    @property
    def told(self) -> list[str]:
        return list(self._http.told.values())

    async def run(self) -> None:
        workload = self._workload
        numbers = itertools.count(self.number + 1, workload.clients)
        for id in range(self.number, workload.transactions, workload.clients):
            if workload.stopping.is_set():
                break
            workload.at_work[self] = id, time.monotonic()
            ops = random_ops(self._rng, numbers, id // GENERATION)
            done = await self._choose(id, ops)
            workload.counts[done.outcome.value] += 1
            workload.history.append(done)
        for one, chosen in self._in_doubt:
            workload.at_work[self] = one.id, time.monotonic()
            workload.history.remove(one)
            workload.history.append(await self._learned(one, chosen))
        self._http.close()
        workload.at_work.pop(self, None)

    def _choose(self, id: int, ops: list[Op]) -> Coroutine[Any, Any, Transaction]:
        workload, rng = self._workload, self._rng
        if workload.queries and rng.random() < workload.queries:
            return self._query(id, ops[0])
        if workload.interactive and rng.random() < workload.interactive:
            return self._interactive(id, ops)
        return self._transaction(id, ops)

    async def _interactive(self, id: int, ops: list[Op]) -> Transaction:
        """The statements one by one. A request without an answer is sent again with its number."""
        groups = [statements_of(self._workload.table, op, self._rng) for op in ops]
        began = time.monotonic()
        failed = Transaction(id, Outcome.FAIL, tuple(ops), began)
        try:
            status, answer = await self._http.request("POST", "/v1/transaction/begin", b"{}")
        except Gone:
            status, answer = 503, {}
        if status != 201:
            await self._turned_away()
            return failed
        opened = answer["transaction_id"]
        seen: list[list[Any]] = []
        sequence = 0
        for statement in [s for group in groups for s in group]:
            sequence += 1
            status, answer = await self._send(f"{opened}/query", {**statement, "row_mode": "arrays"}, sequence)
            if status != 200 or not answer["success"]:
                return await self._given_up(failed, opened, status, answer)
            seen.append(answer["rows"])
        status, answer = await self._send(f"{opened}/commit", {}, sequence + 1)
        if status == 200 and answer["success"]:
            ends = itertools.accumulate(len(group) for group in groups)
            read = found(ops, (seen[end - 1] for end in ends))
            return Transaction(id, Outcome.OK, read, began, time.monotonic())
        return await self._given_up(failed, opened, status, answer)

    async def _send(self, path: str, body: dict[str, Any], sequence: int) -> tuple[int, dict[str, Any]]:
        """Until there is an answer that says what became of it."""
        deadline = time.monotonic() + self._workload.answer_s
        text = json.dumps({**body, "sequence": sequence}).encode()
        while True:
            try:
                status, answer = await self._http.request("POST", f"/v1/transaction/{path}", text)
            except Gone:
                status, answer = 503, {"success": False, "error": {"code": "outcome_unknown"}}
            again = status == 503 or answer.get("error", {}).get("code") in ("transaction_in_use", "outcome_unknown")
            if not again or time.monotonic() > deadline:
                return status, answer
            await self._turned_away() if status == 503 else await asyncio.sleep(_PAUSE_S)

    async def _given_up(self, failed: Transaction, opened: str, status: int, answer: dict[str, Any]) -> Transaction:
        """The same with its outcome, which is settled before."""
        error = answer["error"]
        self._workload.refusals[error["code"]] += 1
        told = (*_REFUSALS, "transaction_aborted", "transaction_expired", "outcome_unknown")
        if error["code"] not in told and error["sqlstate"] not in ("23505", "25P02"):
            self._workload.wrong.append(f"{status}: {answer}")
        deadline = time.monotonic() + self._workload.answer_s
        while time.monotonic() < deadline:
            try:
                status, answer = await self._http.request("POST", f"/v1/transaction/{opened}/abort")
            except Gone:
                status, answer = 503, {}
            if status == 200 and answer["state"] != "in_progress":
                if answer["state"] == "aborted":
                    return failed
                ops = tuple(op for op in failed.ops if isinstance(op, Append))
                return Transaction(failed.id, Outcome.OK, ops, failed.began)
            await self._turned_away()
        self._workload.wrong.append(f"the outcome of {opened} cannot be learned: {status} {answer}")
        return failed

    async def _transaction(self, id: int, ops: list[Op]) -> Transaction:
        rng, workload = self._rng, self._workload
        groups = [statements_of(workload.table, op, rng) for op in ops]
        statements = [s for group in groups for s in group]
        body: dict[str, Any] = {"statements": statements, "row_mode": "arrays", **self._limit}
        if not any(isinstance(op, Append) for op in ops) and rng.random() < 0.5:
            body["read_only"] = True
        chosen = f"txn_{rng.randbytes(12).hex()}" if rng.random() < workload.chosen_ids else None
        header = "" if chosen is None else f"Tuplegate-Transaction-Id: {chosen}\r\n"
        began = time.monotonic()
        try:
            status, answer = await self._http.request("POST", "/v1/transaction", json.dumps(body).encode(), header)
        except Gone:
            await self._turned_away()
            return self._unknown(Transaction(id, Outcome.INFO, tuple(ops), began), chosen)
        ended = time.monotonic()
        if answer["success"]:
            ends = itertools.accumulate(len(group) for group in groups)
            seen = found(ops, (answer["results"][end - 1]["rows"] for end in ends))
            return Transaction(id, Outcome.OK, seen, began, ended)
        if answer["error"]["code"] == "outcome_unknown":
            told = answer.get("transaction_id") if workload.others else None
            return self._unknown(Transaction(id, Outcome.INFO, tuple(ops), began), chosen or told)
        self._judge(status, answer)
        if status == 503:
            await self._turned_away()
        return Transaction(id, Outcome.FAIL, tuple(ops), began, ended)

    async def _query(self, id: int, op: Op) -> Transaction:
        """An operation as a single statement. One with an Idempotency-Key is sent until its end is known.

        A failure is as definite to a repeat as to the first request: nothing was applied, by neither, or will be. Only
        a 503 says nothing of what was sent before, and neither does the 409 of a key that is in use.
        """
        table, rng = self._workload.table, self._rng
        statement = statements_of(table, op, rng)[0] if isinstance(op, Read) else once(table, op)
        body = json.dumps({**statement, "row_mode": "arrays", **self._limit}).encode()
        header = f"Idempotency-Key: {rng.randbytes(12).hex()}\r\n" if rng.random() < 0.5 else ""
        is_unknown = False
        began = time.monotonic()
        deadline = began + 2 * self._workload.answer_s
        while time.monotonic() < deadline:
            try:
                status, answer = await self._http.request("POST", "/v1/query", body, header)
            except Gone:
                status, answer = 503, {"success": False, "error": {"code": "outcome_unknown"}}
            if answer["success"]:
                read = Read(op.key, parsed(answer["rows"]))
                ops: tuple[Op, ...] = (read,) if isinstance(op, Read) else (op, read)
                return Transaction(id, Outcome.OK, ops, began, time.monotonic())
            code = answer["error"]["code"]
            is_unknown = is_unknown or code == "outcome_unknown"
            if status == 503:
                await self._turned_away()
            if not is_unknown or (status != 503 and code != "idempotency_in_progress"):
                self._judge(status, answer)
                return Transaction(id, Outcome.FAIL, (op,), began)
            if not header:
                return Transaction(id, Outcome.INFO, (op,), began)
            await asyncio.sleep(_PAUSE_S)
        self._workload.wrong.append(f"the outcome of a request with {header.strip()} cannot be learned: {answer}")
        return Transaction(id, Outcome.INFO, (op,), began)

    def _judge(self, status: int, answer: dict[str, Any]) -> None:
        self._workload.refusals[answer["error"]["code"]] += 1
        # Two that insert the same key without having looked for it first: the engine may say so in these words.
        if answer["error"]["code"] not in _REFUSALS and answer["error"]["sqlstate"] != "23505":
            self._workload.wrong.append(f"{status}: {answer}")

    async def _turned_away(self) -> None:
        """Takes another node, or waits where there is none: else a whole history could be made of refusals."""
        if self._workload.others:
            self._http.move_on()
            await asyncio.sleep(_MOVE_S)
        else:
            await self._healthy()

    async def _healthy(self) -> None:
        """Waits for the service and its engine."""
        deadline = time.monotonic() + self._workload.answer_s
        while time.monotonic() < deadline:
            try:
                if (await self._http.request("GET", "/health"))[0] == 200:
                    return
            except Gone:
                pass
            await asyncio.sleep(_PAUSE_S)

    def _unknown(self, one: Transaction, chosen: str | None) -> Transaction:
        if chosen is not None:
            self._in_doubt.append((one, chosen))
        return one

    async def _learned(self, one: Transaction, chosen: str) -> Transaction:
        """The same with the outcome that the service tells; what was read is not told."""
        ask: Callable[[], Any] = lambda: self._http.request("GET", f"/v1/transaction/{chosen}")  # noqa: E731
        deadline = time.monotonic() + self._workload.answer_s
        while time.monotonic() < deadline:
            try:
                status, answer = await ask()
            except Gone:
                status, answer = 503, {}
            if status == 404:
                # It never began. What carries the id may still be on its way, so it is stopped.
                ask = lambda: self._http.request("POST", f"/v1/transaction/{chosen}/abort")  # noqa: E731
            elif status == 200 and answer["state"] != "in_progress":
                self._workload.counts["learned"] += 1
                self._workload.counts["info"] -= 1
                committed = answer["state"] == "committed"
                ops = tuple(op for op in one.ops if isinstance(op, Append)) if committed else one.ops
                return Transaction(one.id, Outcome.OK if committed else Outcome.FAIL, ops, one.began)
            elif status == 503 and self._workload.others:
                self._http.move_on()
            await asyncio.sleep(_PAUSE_S)
        self._workload.wrong.append(f"the outcome of {chosen} cannot be learned: {status} {answer}")
        return one
