"""A client of the workload, which sends one transaction after the other; and one that asks for the outcomes of all."""

import asyncio
import itertools
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.histories import Transaction
from tests.list_append.http_client import Gone, HttpClient
from tests.list_append.sayings import Shown, settle
from tests.list_append.statements import GENERATION, random_ops
from tests.list_append.ways import PAUSE_S, send
from tests.list_append.wire import WireClient

if TYPE_CHECKING:
    from tests.list_append.workload import ListAppend

_MOVE_S = 0.2
_MOVED = 0.03
"""The share of transactions before which a client takes another node by itself."""
_ASK_S = 0.03
_ABORTED = 0.03
"""The share of questions about a client's own id that abort it instead."""
_REFUSALS = ("conflict", "timeout", "engine_unavailable", "busy", "shutting_down", "transaction_aborted")
"""Codes that say that nothing was applied."""


class Client:
    """`shown` is what it knows of the lists, by answers that have told a position."""

    def __init__(self, workload: "ListAppend", number: int) -> None:
        self.workload = workload
        self.number = number
        self.table = workload.table
        self.rng = random.Random(f"{workload.seed}-{number}")
        self.http = HttpClient(workload.nodes, number, workload.answer_s)
        self.wire = WireClient(workload.wire_ports)
        self.shown = Shown()
        self.limit = {} if workload.timeout_ms is None else {"timeout_ms": workload.timeout_ms}
        self._in_doubt: list[tuple[Transaction, str]] = []

    @property
    def told(self) -> list[str]:
        return list(self.http.told.values())

    async def run(self) -> None:
        workload = self.workload
        numbers = itertools.count(self.number + 1, workload.clients)
        for id in range(self.number, workload.transactions, workload.clients):
            if workload.stopping.is_set():
                break
            await workload.rested()
            workload.at_work[self] = id, time.monotonic()
            if workload.others and self.rng.random() < _MOVED:
                self.http.move_on()  # else all would gather at one node
            ops = random_ops(self.rng, numbers, id // GENERATION)
            done = await send(self, id, ops)
            if done is None:
                workload.counts["snapshot"] += 1
                continue
            workload.counts[done.outcome.value] += 1
            workload.history.append(done)
        for one, chosen in self._in_doubt:
            workload.at_work[self] = one.id, time.monotonic()
            workload.history.remove(one)
            workload.history.append(await self._learned(one, chosen))
        self.http.close()
        await self.wire.close()
        workload.at_work.pop(self, None)

    def judge(self, status: int, answer: dict[str, Any]) -> None:
        """Note a refusal, or complain about an answer that is none."""
        error = answer["error"]
        self.workload.refusals[error["code"]] += 1
        # Two that insert the same key without having looked for it first: the engine may say so in these words.
        is_stopped = error["code"] == "transaction_id_used" and self.workload.askers  # it was aborted before it came
        if error["code"] not in _REFUSALS and error["sqlstate"] != "23505" and not is_stopped:
            self.workload.complain(f"{status}: {answer}")

    def doubt(self, one: Transaction, id: str | None) -> Transaction:
        """Ask for its outcome in the end, where it has an id."""
        if id is not None:
            self._in_doubt.append((one, id))
        return one

    def show(self, done: Transaction) -> Transaction:
        """Note what its answer has shown: later snapshots must have it, too."""
        self.shown.note(done)
        return done

    async def turned_away(self) -> None:
        """Takes another node, or waits where there is none: else a whole history could be made of refusals."""
        if self.workload.others:
            self.http.move_on()
            await asyncio.sleep(_MOVE_S)
        else:
            await asyncio.sleep(PAUSE_S)  # its database alone may be away
            await self._healthy()

    async def _healthy(self) -> None:
        """Waits for the service and its engine."""
        deadline = time.monotonic() + self.workload.answer_s
        while time.monotonic() < deadline:
            try:
                if (await self.http.request("GET", "/health"))[0] == 200:
                    return
            except Gone:
                pass
            await asyncio.sleep(PAUSE_S)

    async def _learned(self, one: Transaction, chosen: str) -> Transaction:
        """The same with the outcome that the service tells; what was read is not told."""
        ask: Callable[[], Any] = lambda: self.http.request("GET", f"/v1/transaction/{chosen}")  # noqa: E731
        deadline = time.monotonic() + self.workload.answer_s
        while time.monotonic() < deadline:
            try:
                status, answer = await ask()
            except Gone:
                status, answer = 503, {}
            if status == 404:
                # It never began. What carries the id may still be on its way, so it is stopped.
                ask = lambda: self.http.request("POST", f"/v1/transaction/{chosen}/abort")  # noqa: E731
            elif status == 200 and answer["state"] != "in_progress":
                self.workload.sayings.note(chosen, answer["state"], "the last answer")
                self.workload.counts["learned"] += 1
                self.workload.counts["info"] -= 1
                return settle(one, answer["state"])
            elif self.workload.may_forget and answer.get("error", {}).get("code") == "outcome_unknown":
                return one
            elif status == 503 and self.workload.others:
                self.http.move_on()
            await asyncio.sleep(PAUSE_S)
        self.workload.complain(f"the outcome of {chosen} cannot be learned: {status} {answer}")
        return one


class Asker:
    """Asks for outcomes for as long as others work, of what runs and of what is over, at any node."""

    def __init__(self, workload: "ListAppend", number: int) -> None:
        self._workload = workload
        self._rng = random.Random(f"{workload.seed}-asker-{number}")
        self._http = HttpClient(workload.nodes, number, workload.answer_s)

    async def run(self) -> None:
        try:
            while True:
                await asyncio.sleep(_ASK_S)
                await self._workload.rested()
                if self._workload.recent:
                    await self._ask(*self._rng.choice(self._workload.recent))
                if self._rng.random() < 0.5:
                    self._http.move_on()
        finally:
            self._http.close()

    async def _ask(self, id: str, chosen: bool) -> None:
        is_abort = chosen and self._rng.random() < _ABORTED
        method, path = ("POST", f"/v1/transaction/{id}/abort") if is_abort else ("GET", f"/v1/transaction/{id}")
        try:
            status, answer = await self._http.request(method, path)
        except Gone:
            return
        said = answer["state"] if status == 200 else answer["error"]["code"]
        self._workload.asked[said] += 1
        if status == 200:
            self._workload.sayings.note(id, said, f"{method} at node {self._http.node}")
        elif status not in (404, 503):
            self._workload.complain(f"{method} {path}: {status} {answer}")
