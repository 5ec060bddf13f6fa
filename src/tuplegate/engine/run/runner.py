"""Drives a script on a connection: sends as many steps as possible in one write, and collects their results.

If the parameters of a step depend on types that the engine must be asked for, the step waits for the answers to all
earlier steps: it may need the objects that they have made.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from psycopg import pq
from psycopg.pq.abc import PGresult

from tuplegate.direct_future import DirectFuture
from tuplegate.engine import port
from tuplegate.engine.libpq.connections.commands import Command, ConnectionLost
from tuplegate.engine.libpq.connections.server_errors import check, find_error, is_panic, to_failure
from tuplegate.engine.libpq.pools.pool import Member
from tuplegate.engine.libpq.statements.rows import RowCollector
from tuplegate.engine.run.steps import Does, Meaning, Step, find_meaning, list_commands

_NOTICES_MAX: Final = 100
_ERROR: Final = int(pq.ExecStatus.FATAL_ERROR)
_EMPTY: Final = int(pq.ExecStatus.EMPTY_QUERY)

Answers = dict[Does, PGresult]
"""The last answer of each kind of step."""


class Writer(Protocol):
    """Writes the commands of steps, as an engine wants them."""

    def must_ask(self, statement: int) -> bool:
        """Return whether the engine must be asked something before the statement can be written."""

    async def write(self, statement: int) -> list[Step]:
        """Return the steps that run the statement with that number; one of them is the run itself."""

    def write_own(self, step: Step) -> list[Step]:
        """Return the steps that carry out a step of the service's own, whose text is always the same."""

    def check(self, steps: Sequence[Step], results: Sequence[PGresult]) -> None:
        """Raise a failure that takes precedence over any in the results."""


class Runner:
    """Drives scripts on one connection. `rows` are those of the running statements, by their numbers.

    `failed` is the step that has failed, and `risk` the meaning of that failure, or of a loss. `sent` counts writes.
    """

    def __init__(self, member: Member) -> None:
        self.member = member
        self.rows: list[RowCollector] = []
        self.notices: list[port.Notice] = []
        self.reset: DirectFuture[list[PGresult]] | None = None
        self.failed: Step | None = None
        self.risk = Meaning.HARMLESS
        self.sent = 0
        self._closing: dict[int, PGresult] = {}

    def expect(self, rows: list[RowCollector]) -> None:
        """Collect the rows of these statements from now on, and forget earlier ones."""
        self.rows, self._closing = rows, {}

    async def run(self, script: Iterable[Step], writer: Writer) -> Answers:
        """Carry out the steps. Raises the first failure, with the number of its statement, and ConnectionLost.

        The writer is not stored: it usually has a runner, and both would outlive their use.
        """
        waiting: list[Step] = []
        answers: Answers = {}
        self.failed, self.risk = None, Meaning.HARMLESS
        for step in script:
            if step.is_own:
                waiting += writer.write_own(step)
            elif step.command is not None:
                waiting.append(step)
            else:
                assert step.statement is not None, "a step without a command runs a statement"
                if writer.must_ask(step.statement):
                    await self._send(waiting, answers, writer)
                    waiting = []
                waiting += await writer.write(step.statement)
        await self._send(waiting, answers, writer)
        return answers

    async def _send(self, steps: list[Step], answers: Answers, writer: Writer) -> None:
        if not steps:
            return

        def take(chunk: PGresult, number: int) -> None:
            step = steps[number]
            if step.statement is not None:
                self.rows[step.statement].take(chunk)

        member = self.member
        self.failed, self.risk = None, find_meaning(steps)
        self.sent += 1
        answer = member.send(list_commands(steps), take)
        member.flush()
        try:
            results = await answer
        except ConnectionLost as lost:
            self.risk = self._find_risk(steps, list(lost.results))
            raise
        if self.reset is not None:
            check(self.reset.result())
            self.reset = None  # it has been seen to be good
        self.notices = (self.notices + member.take_notices())[:_NOTICES_MAX]
        writer.check(steps, results)
        for step, result in zip(steps, results, strict=False):
            if result.status == _ERROR:
                self.failed, self.risk = step, step.failed
                raise self._read_failure(step, result, self.notices)
            answers[step.does] = result
            if step.does is Does.RUN and step.statement is not None:
                self._see_through(step.statement, step.command, result)
        check(results)

    def _see_through(self, statement: int, command: Command | None, result: PGresult) -> None:
        if result.status == _EMPTY:
            empty = port.EmptyStatement("there is no SQL statement in the text", sqlstate=None)
            empty.statement = statement
            raise empty
        self._closing[statement] = result
        if result.nfields and command is not None and not command.chunk_rows:
            self.rows[statement].take(result)

    @staticmethod
    def _find_risk(steps: list[Step], results: list[PGresult]) -> Meaning:
        """Return the meaning of a loss after these results. A failure in which the server broke down is not the
        statement's own: it may have come from writing the log."""
        error = find_error(results)
        if error is None or is_panic(error):
            return find_meaning(steps)
        return find_meaning(steps, min(results.index(error), len(steps) - 1))

    @staticmethod
    def _read_failure(step: Step, result: PGresult, notices: list[port.Notice]) -> Exception:
        failure = to_failure(result)
        if isinstance(failure, port.StatementFailed):
            failure.statement, failure.notices = step.statement, notices
            failure.never_ran = failure.never_ran or step.does is Does.PREPARE
        return failure

    async def results(self) -> list[port.Result]:
        """Return the results of the statements; ask for types of columns that are not known yet."""
        each = enumerate(self.rows)
        return [rows.finish(self._closing[n]) or await rows.learn(self.member, self._closing[n]) for n, rows in each]


def check_tag(answers: Answers, does: Does, tag: bytes) -> None:
    """Raise if the engine has rolled back instead of committing or preparing."""
    if answers[does].command_status != tag:
        raise port.StatementFailed("the engine rolled the transaction back", sqlstate="40000")
