"""The run behind a stream of CockroachDB's."""

from tuplegate.engine import port
from tuplegate.engine.cockroach.pools.pool import Pool
from tuplegate.engine.cockroach.query import rules
from tuplegate.engine.run import stream_run
from tuplegate.engine.run.ends import Why


class StreamRun(stream_run.StreamRun[Pool]):
    def __init__(self, pool: Pool, target: port.Target, statement: port.Statement, bounds: port.Bounds) -> None:
        super().__init__(pool, target, statement, bounds)
        self.kind = rules.find_kind(statement)

    @property
    def in_block(self) -> bool:
        """Return whether the stream runs in a block of its own, which is committed after its last row."""
        writes = self.target.may_write and rules.may_write(self.statement, self.pool.state)
        return writes and not self.is_inside

    @property
    def is_indefinite(self) -> bool:
        """Return whether the statement may have been applied although it was cancelled, or its connection lost."""
        return self.kind is rules.Kind.DEFINES and self.target.may_write and not self.is_inside

    def check_ended(self) -> None:
        """Raise if the stream was ended, or its time is over: an answer may arrive before the timer fires."""
        if self.ended is None and self.elapsed_us >= self.bounds.timeout_ms * 1000:
            self.end(Why.TIME)
        super().check_ended()
