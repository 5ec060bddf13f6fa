"""Reads of commits whose wait for a standby an operator has cancelled, and that a failover then took back. Pure.

PostgreSQL shows such a commit to everybody at once, though no standby has it: docs/operations.md, "A cluster". A read
is put right, and then judged like all others, only where all of this holds:

- it ran while waits were cancelled on a leader that was then killed;
- it shows what is there in the end, and behind that nothing but appends that are not;
- of each of these nobody was ever told anything but that its outcome is unknown. So none of them is of a transaction in
  two phases, whose outcome can always be learned, and which is shown only when a standby has it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from tests.histories import Append, Outcome, Read, Transaction, Values
from tests.list_append.sayings import Lack, Snapshot

from failover.timeline import Span


@dataclass(frozen=True, slots=True)
class CutWaits:
    """When waits were cancelled, until the leader was killed, and how many of them."""

    span: Span
    cancelled: int


@dataclass
class TakenBack:
    """Puts reads right. `shown` are the appends that were left out of them, with the numbers of their transactions."""

    history: Sequence[Transaction]
    final: Mapping[str, Values]
    cuts: Sequence[CutWaits]
    shown: dict[tuple[str, int], int] = field(default_factory=dict)
    reads: int = 0

    def __post_init__(self) -> None:
        ends = max((cut.span.ended for cut in self.cuts), default=0.0)
        self._unknown = {
            (op.key, op.value): t.id
            for t in self.history
            if t.outcome is Outcome.INFO and t.began < ends
            for op in t.ops
            if isinstance(op, Append) and op.value not in self.final.get(op.key, ())
        }

    @property
    def excess(self) -> str | None:
        """Return a complaint where more transactions were taken back than waits were cancelled."""
        writers, cancelled = len(set(self.shown.values())), sum(cut.cancelled for cut in self.cuts)
        if writers <= cancelled:
            return None
        return f"{writers} transactions were shown and taken back, and {cancelled} waits were cancelled"

    def right_history(self) -> list[Transaction]:
        return [self._right(t) if t.outcome is Outcome.OK else t for t in self.history]

    def right_snapshots(self, snapshots: Iterable[Snapshot]) -> list[Snapshot]:
        return [
            replace(snapshot, lists={k: self._cut(k, v) for k, v in snapshot.lists.items()})
            if self._is_within(snapshot.began, snapshot.ended)
            else snapshot
            for snapshot in snapshots
        ]

    def right_lacks(self, lacks: Iterable[Lack]) -> list[Lack]:
        """Call it last: a snapshot may lack what reads before it were wrong to show."""
        left = []
        for lack in lacks:
            missing = {
                k: rest for k, vs in lack.missing.items() if (rest := [v for v in vs if (k, v) not in self.shown])
            }
            left += [replace(lack, missing=missing)] if missing else []
        return left

    def _right(self, one: Transaction) -> Transaction:
        if not self._is_within(one.began, one.ended):
            return one
        ops = tuple(Read(op.key, self._cut(op.key, op.values)) if isinstance(op, Read) else op for op in one.ops)
        return replace(one, ops=ops)

    def _is_within(self, began: float, ended: float) -> bool:
        return any(began < cut.span.ended and ended > cut.span.began for cut in self.cuts)

    def _cut(self, key: str, values: Values) -> Values:
        """Return the list without the appends that were taken back; as it is where it shows anything else."""
        pairs = zip(values, self.final.get(key, ()), strict=False)
        there = tuple(value for value, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        more = {(key, value): self._unknown.get((key, value)) for value in values[len(there) :]}
        taken = {append: writer for append, writer in more.items() if writer is not None}
        if not more or len(taken) < len(more):
            return values
        self.shown |= taken
        self.reads += 1
        return there
