"""An engine as a whole. A plane asks for one of its subjects; only who joins the planes, and adapters, have it all."""

from typing import Protocol

from tuplegate.engine.port.databases import Dumps
from tuplegate.engine.port.queries import Answers, Queries, Snapshots
from tuplegate.engine.port.records import Records
from tuplegate.engine.port.reports import Reports
from tuplegate.engine.port.running_transactions import TransactionOpener, Transactions
from tuplegate.engine.port.sessions import Sessions
from tuplegate.engine.port.wire import Wires


class Orders(Protocol):
    """What an engine is told about its databases, and when the service stops."""

    def pause(self, databases: frozenset[str]) -> None:
        """Suspend these databases and no others: requests for them wait, or are refused as busy."""

    def bound_size(self, database: str, bytes_max: int | None) -> None:
        """Refuse statements that take more room once the database is larger than this; None allows any size."""

    def stop_running(self) -> None:
        """Cancel running statements, but nothing that is being committed."""


class Engine(Queries, Transactions, TransactionOpener, Records, Sessions, Wires, Dumps, Reports, Orders, Protocol):
    """All subjects of the port."""


class OneOfSeveral(Answers, Protocol):
    """What one engine needs to be one of several."""

    @property
    def snapshots(self) -> "EngineSnapshots": ...

    def let_go(self, database: str) -> None:
        """Turn away requests that wait for the database: it has moved to another engine."""


class EngineSnapshots(Snapshots, Protocol):
    """Those of one engine."""

    def asked_of(self, engine: Engine) -> Snapshots:
        """Return reads that check positions like these, but that `engine` answers, without replicas."""


class OpenEngine(OneOfSeveral, Engine, Protocol):
    """One engine of possibly several, as a whole."""
