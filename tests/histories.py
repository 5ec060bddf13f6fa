"""Checks a history of transactions that append to lists and read them, and names every anomaly found. Pure.

A list shows the order of its writes, so the order of all transactions that touched it can be drawn from what was read:
who wrote before whom (ww), who read whose write (wr), who read before whose write (rw, the anti-dependency). A cycle of
those is an anomaly; which one is told by its edges, in the words of Adya: G0 has only ww, G1c has ww and wr, G-single
one rw, G2 more of them. With real-time edges, from what ended to what began later, the same finds what is serializable
but not strictly so. Values must be unique for each key.

The work grows with the length of the history and of what was read, not with its square: 200,000 transactions are
checked as a whole. Of a history full of anomalies only the first of each kind are shown.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice, pairwise

Values = tuple[int, ...]
Graph = Mapping[int, set[int]]


_SHOWN_MAX = 100
"""Cycles of one strongly connected part that are looked for by name; each costs a search through the part."""


class Outcome(Enum):
    OK = "ok"
    FAIL = "fail"
    """Certainly not applied."""
    INFO = "info"
    """Nobody knows."""


@dataclass(frozen=True, slots=True)
class Append:
    key: str
    value: int


@dataclass(frozen=True, slots=True)
class Read:
    """`values` counts only where the transaction is known to have committed."""

    key: str
    values: Values = ()


@dataclass(frozen=True, slots=True)
class Transaction:
    """`began` and `ended` are on one clock, outside of the transaction at both ends."""

    id: int
    outcome: Outcome
    ops: tuple[Append | Read, ...]
    began: float = 0.0
    ended: float = float("inf")


@dataclass(frozen=True, slots=True)
class Anomaly:
    name: str
    transactions: tuple[int, ...]
    detail: str


@dataclass(slots=True)
class Edges:
    """The dependencies between transactions, by kind."""

    ww: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    wr: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    rw: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    real_time: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))


def check(history: Sequence[Transaction], final: Mapping[str, Values], *, real_time: bool = False) -> list[Anomaly]:
    """Everything that is wrong with the history; `final` is what every list held at the end."""
    writers = {(op.key, op.value): t for t in history for op in t.ops if isinstance(op, Append)}
    reads = [(t, op) for t in history if t.outcome is Outcome.OK for op in t.ops if isinstance(op, Read)]
    orders = _orders(reads, writers, final)
    found = [
        *_torn_orders(reads, orders, final),
        *_wrong_values(reads, orders, writers),
        *_lost(history, final),
        *_intermediate_reads(reads, writers),
        *_internal(history),
        *_lost_updates(history),
    ]
    edges = _edges(history, orders, writers)
    found += _cycles(edges)
    if real_time:
        plain = {anomaly.transactions for anomaly in found}
        _add_real_time(edges, history, orders)
        found += [anomaly for anomaly in _cycles(edges) if anomaly.transactions not in plain]
    return found


def find_orders(history: Sequence[Transaction], final: Mapping[str, Values]) -> dict[str, Values]:
    """The order of every list, as far as anybody has seen it."""
    writers = {(op.key, op.value): t for t in history for op in t.ops if isinstance(op, Append)}
    reads = [(t, op) for t in history if t.outcome is Outcome.OK for op in t.ops if isinstance(op, Read)]
    return _orders(reads, writers, final)


def names(anomalies: Iterable[Anomaly]) -> set[str]:
    return {anomaly.name for anomaly in anomalies}


def _orders(
    reads: list[tuple[Transaction, Read]],
    writers: Mapping[tuple[str, int], Transaction],
    final: Mapping[str, Values],
) -> dict[str, Values]:
    """The longest state of every list that anybody has seen."""
    orders: dict[str, Values] = {key: () for key, _ in writers}
    orders.update(final)
    for _, op in reads:
        if len(op.values) > len(orders.get(op.key, ())):
            orders[op.key] = op.values
        else:
            orders.setdefault(op.key, ())
    return orders


# -- values ---------------------------------------------------------------------------------------------------------


def _torn_orders(
    reads: list[tuple[Transaction, Read]], orders: Mapping[str, Values], final: Mapping[str, Values]
) -> Iterable[Anomaly]:
    """Two reads of one list of which neither begins with the other: the list has no order."""
    for t, op in reads:
        if op.values != orders[op.key][: len(op.values)]:
            yield Anomaly("incompatible-order", (t.id,), f"{op.key}: {op.values} against {orders[op.key]}")
    for key, values in final.items():
        if values != orders[key]:
            yield Anomaly("incompatible-order", (), f"{key}: at the end {values} against {orders[key]}")


def _wrong_values(
    reads: list[tuple[Transaction, Read]],
    orders: Mapping[str, Values],
    writers: Mapping[tuple[str, int], Transaction],
) -> Iterable[Anomaly]:
    """Values that were aborted (G1a), that nobody wrote, or that are there twice."""
    seen = [(-1, key, order) for key, order in orders.items()]
    wrong = {key for _, key, order in seen for value in order if not _is_good(writers.get((key, value)))}
    # A read that begins the order of its list has nothing in it that the order does not have.
    seen += [
        (t.id, op.key, op.values) for t, op in reads if op.key in wrong or op.values != orders[op.key][: len(op.values)]
    ]
    for reader, key, values in seen:
        if len(set(values)) != len(values):
            yield Anomaly("duplicate", (reader,), f"{key}: {values}")
        for value in values:
            writer = writers.get((key, value))
            if writer is None:
                yield Anomaly("garbage", (reader,), f"{key}: nobody wrote {value}")
            elif writer.outcome is Outcome.FAIL:
                yield Anomaly("G1a", (writer.id, reader), f"{key}: {value} was aborted")


def _is_good(writer: Transaction | None) -> bool:
    return writer is not None and writer.outcome is not Outcome.FAIL


def _lost(history: Sequence[Transaction], final: Mapping[str, Values]) -> Iterable[Anomaly]:
    """Acknowledged appends that are not there at the end, and appends of which only a part is."""
    held = {key: set(values) for key, values in final.items()}
    for t in history:
        appends = [op for op in t.ops if isinstance(op, Append)]
        there = [op.value in held.get(op.key, ()) for op in appends]
        if t.outcome is Outcome.OK and not all(there):
            yield Anomaly(
                "lost-append", (t.id,), f"{[op for op, is_there in zip(appends, there, strict=True) if not is_there]}"
            )
        elif t.outcome is Outcome.INFO and any(there) and not all(there):
            yield Anomaly("half-applied", (t.id,), f"{appends}: {there}")


def _intermediate_reads(
    reads: list[tuple[Transaction, Read]], writers: Mapping[tuple[str, int], Transaction]
) -> Iterable[Anomaly]:
    """G1b: a list that ends within what another transaction appended to it."""
    for t, op in reads:
        if not op.values:
            continue
        writer = writers.get((op.key, op.values[-1]))
        if writer is None or writer.id == t.id:
            continue
        last = [other.value for other in writer.ops if isinstance(other, Append) and other.key == op.key][-1]
        if last != op.values[-1]:
            yield Anomaly("G1b", (writer.id, t.id), f"{op.key}: {op.values} ends before {last}")


def _internal(history: Sequence[Transaction]) -> Iterable[Anomaly]:
    """A transaction that does not see its own writes, or sees a list change that it did not write."""
    for t in history:
        if t.outcome is not Outcome.OK:
            continue
        known: dict[str, Values] = {}
        own: dict[str, Values] = defaultdict(tuple)
        for op in t.ops:
            if isinstance(op, Append):
                own[op.key] += (op.value,)
                if op.key in known:
                    known[op.key] += (op.value,)
            elif op.key in known:
                if op.values != known[op.key]:
                    yield Anomaly("internal", (t.id,), f"{op.key}: {op.values}, not {known[op.key]}")
            else:
                known[op.key] = op.values
                if op.values[len(op.values) - len(own[op.key]) :] != own[op.key]:
                    yield Anomaly("internal", (t.id,), f"{op.key}: {op.values} without its own {own[op.key]}")


def _external_reads(t: Transaction) -> dict[str, Values]:
    """What the transaction found of each list when it looked first, its own appends left out."""
    found: dict[str, Values] = {}
    own: dict[str, set[int]] = defaultdict(set)
    for op in t.ops:
        if isinstance(op, Append):
            own[op.key].add(op.value)
        elif op.key not in found:
            found[op.key] = tuple(value for value in op.values if value not in own[op.key])
    return found


def _lost_updates(history: Sequence[Transaction]) -> Iterable[Anomaly]:
    """Two committed transactions that read the same version of a list and both appended to it."""
    first: dict[tuple[str, Values], int] = {}
    for t in history:
        if t.outcome is not Outcome.OK:
            continue
        appended = {op.key for op in t.ops if isinstance(op, Append)}
        for key, values in _external_reads(t).items():
            if key in appended:
                other = first.setdefault((key, values), t.id)
                if other != t.id:
                    yield Anomaly("lost-update", (other, t.id), f"{key}: both read {values}")


# -- dependencies ---------------------------------------------------------------------------------------------------


def _edges(
    history: Sequence[Transaction], orders: Mapping[str, Values], writers: Mapping[tuple[str, int], Transaction]
) -> Edges:
    edges = Edges()
    for key, order in orders.items():
        chain = [writers[key, value].id for value in order if (key, value) in writers]
        for earlier, later in pairwise(chain):
            _link(edges.ww, earlier, later)
    for t in history:
        if t.outcome is not Outcome.OK:
            continue
        for key, values in _external_reads(t).items():
            order = orders[key]
            if values and (writer := writers.get((key, values[-1]))) is not None:
                _link(edges.wr, writer.id, t.id)
            # Where it goes on with appends of its own, whoever comes behind them comes behind it by ww.
            rest = islice(order, len(values), None)
            following = next((value for value in rest if (key, value) in writers), None)
            if following is not None:
                _link(edges.rw, t.id, writers[key, following].id)
    return edges


def _link(edges: dict[int, set[int]], earlier: int, later: int) -> None:
    if earlier != later:
        edges[earlier].add(later)


def _add_real_time(edges: Edges, history: Sequence[Transaction], orders: Mapping[str, Values]) -> None:
    """From every transaction that had ended to every one that began after; what follows from others is left out."""
    there = {(key, value) for key, order in orders.items() for value in order}
    applied = [
        t
        for t in history
        if t.outcome is Outcome.OK or any((op.key, op.value) in there for op in t.ops if isinstance(op, Append))
    ]
    events = [(t.began, 1, t) for t in applied]
    events += [(t.ended, 0, t) for t in applied if t.outcome is Outcome.OK]
    frontier: set[int] = set()
    before: dict[int, set[int]] = {}
    for _, begins, t in sorted(events, key=lambda event: (event[0], -event[1])):
        if begins:
            before[t.id] = set(frontier)
            for earlier in frontier:
                edges.real_time[earlier].add(t.id)
        else:
            frontier -= before[t.id]
            frontier.add(t.id)


# -- cycles ---------------------------------------------------------------------------------------------------------


def _cycles(edges: Edges) -> list[Anomaly]:
    """One anomaly for every strongly connected part and every anti-dependency that closes a cycle."""
    found = []
    timed = bool(edges.real_time)
    base = _union(edges.ww, edges.real_time)
    for part in _components(base):
        found.append(Anomaly("G0-real-time" if timed else "G0", tuple(sorted(part)), _shown(edges, part)))
    read = _union(base, edges.wr)
    for part in _components(read):
        if any(b in part for a in part for b in edges.wr.get(a, ())):
            found.append(Anomaly("G1c-real-time" if timed else "G1c", tuple(sorted(part)), _shown(edges, part)))
    whole = _union(read, edges.rw)
    for part in _components(whole):
        closing = ((a, b) for a in sorted(part) for b in sorted(edges.rw.get(a, set()) & part))
        for a, b in islice(closing, _SHOWN_MAX):
            path = _path(read, b, a, part)
            name = "G-single" if path is not None else "G2"
            path = path or _path(whole, b, a, part) or []
            found.append(Anomaly(f"{name}-real-time" if timed else name, (a, *path[:-1]), _shown(edges, {a, *path})))
    return found


def _union(*graphs: Graph) -> dict[int, set[int]]:
    union: dict[int, set[int]] = defaultdict(set)
    for graph in graphs:
        for node, following in graph.items():
            union[node] |= following
    return union


def _shown(edges: Edges, part: Iterable[int]) -> str:
    nodes = set(part)
    kinds = {"ww": edges.ww, "wr": edges.wr, "rw": edges.rw, "real-time": edges.real_time}
    return ", ".join(f"T{a} -{kind}-> T{b}" for kind, graph in kinds.items() for a in sorted(nodes)
                     for b in sorted(graph.get(a, set()) & nodes))  # fmt: skip


def _path(graph: Graph, start: int, end: int, within: set[int]) -> list[int] | None:
    """The shortest way, `start` and `end` included."""
    came_from: dict[int, int] = {start: start}
    waiting = deque([start])
    while waiting:
        node = waiting.popleft()
        if node == end:
            path = [node]
            while path[-1] != start:
                path.append(came_from[path[-1]])
            return path[::-1]
        for following in graph.get(node, set()) & within:
            if following not in came_from:
                came_from[following] = node
                waiting.append(following)
    return None


def _components(graph: Graph) -> list[set[int]]:
    """Strongly connected parts of more than one node (Tarjan's algorithm, without recursion)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found: list[set[int]] = []
    for root in list(graph):
        if root in index:
            continue
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        work = [(root, iter(graph.get(root, ())))]
        while work:
            node, following = work[-1]
            for other in following:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter(graph.get(other, ()))))
                    break
                if other in on_stack:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    part: set[int] = set()
                    while node not in part:
                        part.add(stack.pop())
                    on_stack -= part
                    if len(part) > 1:
                        found.append(part)
    return found
