"""Writes the commands for the statements of a block, with the questions and types that their parameters need."""

from collections.abc import Sequence

from psycopg.pq.abc import PGresult

from tuplegate.engine import port
from tuplegate.engine.cockroach.query import rules
from tuplegate.engine.cockroach.query.described import check_described, make_commands
from tuplegate.engine.cockroach.query.run import NodeRun, write_values
from tuplegate.engine.libpq.statements.parameters import needs_describing
from tuplegate.engine.run.steps import Does, Step, list_commands


class Statements:
    """Writes the statements of a run, for its runner. `describe`: ask for the types of parameters."""

    def __init__(self, run: NodeRun, statements: Sequence[port.Statement], *, describe: bool) -> None:
        self._run = run
        self._statements = statements
        self._describe = describe

    def must_ask(self, statement: int) -> bool:
        one = self._statements[statement]
        return bool(one.params) and (self._describe or needs_describing(one))

    async def write(self, statement: int) -> list[Step]:
        one, run = self._statements[statement], self._run
        try:
            values = await write_values(run, one, describe=self._describe and bool(one.params))
        except port.StatementFailed as failure:
            failure.statement = statement
            raise
        types = run.pool.state.untold.of_each(one.sql, values)
        *before, last = make_commands(one, values, rules.chunk_rows(one, run.bounds), types)
        asked = [Step(Does.ASK, command, statement=statement) for command in before]
        return [*asked, Step(Does.RUN, last, statement=statement)]

    def write_own(self, step: Step) -> list[Step]:
        return [step]

    def check(self, steps: Sequence[Step], results: Sequence[PGresult]) -> None:
        check_described(list_commands(steps), results, [step.statement for step in steps])
