"""What is said of transactions, and what clients are shown: once said it must stay so. Pure.

`Sayings` holds the service to each definite word on an outcome, whoever was told it. `Shown` holds it to what one
client was shown: what it reads from a replica behind its position has all of that.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.histories import Anomaly, Append, Outcome, Transaction, Values, find_orders

_FINAL: Final = ("committed", "aborted")


@dataclass
class Sayings:
    """The first final word on each id, with who said it; `wrong` has a line for every later word that differs."""

    first: dict[str, tuple[str, str]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def note(self, id: str, state: str, by: str) -> None:
        """Note a word on a transaction. What is not final, as `in_progress`, binds nobody."""
        if state not in _FINAL:
            return
        said, first_by = self.first.setdefault(id, (state, by))
        if said != state:
            self.wrong.append(f"{id} was said to be {said} by {first_by}, and then {state} by {by}")

    def state_of(self, id: str) -> str | None:
        return self.first[id][0] if id in self.first else None


def settle(one: Transaction, state: str) -> Transaction:
    """The same with its outcome; what it has read is not known."""
    if state != "committed":
        return Transaction(one.id, Outcome.FAIL, one.ops, one.began)
    return Transaction(one.id, Outcome.OK, tuple(op for op in one.ops if isinstance(op, Append)), one.began)


@dataclass
class Shown:
    """What one client knows of each list: by reads, and by appends of its own that were acknowledged."""

    values: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))

    def note(self, transaction: Transaction) -> None:
        """Note the answer to a transaction. Only a success has shown something."""
        if transaction.outcome is not Outcome.OK:
            return
        for op in transaction.ops:
            self.values[op.key].update((op.value,) if isinstance(op, Append) else op.values)

    def find_missing(self, lists: Mapping[str, Values]) -> dict[str, list[int]]:
        """Return what the client has been shown before and a later snapshot lacks; and note the snapshot."""
        missing = {}
        for key, values in lists.items():
            if lost := self.values[key].difference(values):
                missing[key] = sorted(lost)
            self.values[key].update(values)
        return missing


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Some lists as one read of a replica, or of the primary in its stead, has shown them at one moment, between its
    request and its answer."""

    lists: Mapping[str, Values]
    by: str
    began: float = 0.0
    ended: float = float("inf")


@dataclass(frozen=True, slots=True)
class Lack:
    """Values that a client was shown, and that a later snapshot does not have."""

    missing: Mapping[str, Sequence[int]]
    by: str

    def __str__(self) -> str:
        return f"a snapshot lacks what was shown before ({self.by}): {dict(self.missing)}"


def check_snapshots(
    history: Sequence[Transaction], final: Mapping[str, Values], snapshots: Iterable[Snapshot]
) -> list[Anomaly]:
    """Everything that no moment of the history can explain: another order, values of the aborted, a part of a
    transaction. Which moment it was, and that it is serializable, is not promised."""
    writers = {(op.key, op.value): t for t in history for op in t.ops if isinstance(op, Append)}
    orders = find_orders(history, final)
    found = []
    for snapshot in snapshots:
        seen = {t.id: t for key, values in snapshot.lists.items() for v in values if (t := writers.get((key, v)))}
        for key, values in snapshot.lists.items():
            if values != orders.get(key, ())[: len(values)]:
                found.append(Anomaly("snapshot-order", (), f"{snapshot.by}: {key}: {values} against {orders.get(key)}"))
        for t in seen.values():
            if t.outcome is Outcome.FAIL:
                found.append(Anomaly("snapshot-G1a", (t.id,), f"{snapshot.by} shows what was aborted"))
            lacks = [
                op for op in t.ops if isinstance(op, Append) and op.value not in snapshot.lists.get(op.key, (op.value,))
            ]
            if lacks:
                found.append(Anomaly("snapshot-part", (t.id,), f"{snapshot.by} shows a part, without {lacks}"))
    return found
