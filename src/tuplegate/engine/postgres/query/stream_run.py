"""The run behind a stream of PostgreSQL's."""

from tuplegate.engine import port
from tuplegate.engine.postgres.pools.pool import Pool
from tuplegate.engine.postgres.rules.statements import may_write
from tuplegate.engine.run import stream_run
from tuplegate.engine.sql.facts import read_facts


class StreamRun(stream_run.StreamRun[Pool]):
    def __init__(self, pool: Pool, target: port.Target, statement: port.Statement, bounds: port.Bounds) -> None:
        super().__init__(pool, target, statement, bounds)
        self.facts = read_facts(statement.sql, statement.keyword)

    @property
    def writes(self) -> bool:
        if self.statement.only_reads or self.facts.works_in_steps:
            return False
        return may_write(self.target, self.facts, self.pool)

    @property
    def must_commit(self) -> bool:
        return self.target.may_write and not self.statement.only_reads and self.facts.may_write

    @property
    def may_grow(self) -> bool:
        return self.access is port.Access.WRITE

    @property
    def keywords(self) -> list[str]:
        return [self.statement.keyword]
