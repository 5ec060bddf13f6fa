"""A connection for the service's own use, to a node that may not reach the others."""

from tuplegate.engine import port
from tuplegate.engine.cockroach.failures import is_node_failure, refine
from tuplegate.engine.cockroach.pool import Pool
from tuplegate.engine.cockroach.query.run import UNREACHED
from tuplegate.engine.run import session


class SessionRun(session.SessionRun[Pool]):
    def explain_failure(self, failure: port.StatementFailed) -> port.EngineFailure:
        refined = refine(failure)
        if is_node_failure(refined) and not self.was_cancelled(refined):
            return port.EngineUnavailable(UNREACHED)
        return super().explain_failure(refined)
