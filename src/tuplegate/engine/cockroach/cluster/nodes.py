"""The nodes of a cluster: spreads connections over them, and leaves nodes that do not answer or are about to end.

Every host of the engine's URL is a node, and so is every address that its name resolves to. A new connection goes to
the node with the fewest connections; if that one does not answer, to the next. In a worker, `watch` asks every node for
its state. A node that gives no answer while another does is silent: its connections are closed, since their statements
may hang for ever. From a node that drains, or that the cluster has lost, connections move away as they become free.
Both kinds are asked again until they are well, and then get their share of connections back.
"""

import asyncio
import random
import socket
from enum import Enum
from typing import Final, TypeVar

import structlog

from tuplegate.engine.libpq.connections.commands import Command, ConnectionLost
from tuplegate.engine.libpq.connections.connection import Connection
from tuplegate.engine.libpq.connections.logins import Place, list_places
from tuplegate.engine.libpq.connections.server_errors import check
from tuplegate.engine.libpq.values.text_rows import read_text_rows
from tuplegate.engine.port import EngineFailure

_log: Final = structlog.get_logger()
_C = TypeVar("_C", bound=Connection)

LOGIN_S: Final = 3.0
"""How long a login at one of several nodes may take before another node is tried."""
ANSWER_S: Final = 3.0
"""A node that gives no answer for this long, while another does, is silent."""
LOOK_EVERY_S: Final = 0.5
_AVOID_S: Final = 30.0
"""How long a node that gave no connection is avoided, unless it is seen to be well before."""
_LOOK_UP_EVERY_S: Final = 10.0
_MOVED_AT_ONCE: Final = 2
"""The number of connections that a node with too many gives up between two looks."""

_PROBE: Final = Command(
    b"SELECT draining, split_part(expiration, ',', 1)::decimal < extract(epoch FROM clock_timestamp())::decimal"
    b" FROM crdb_internal.gossip_liveness WHERE node_id = crdb_internal.node_id()"
)
"""Asks a node whether it drains, and whether it is cut off. It needs no other node for the answer."""

_REFUSED: Final = ("FATAL:", "ERROR:")
_DRAINS: Final = "not accepting clients"
"""The words of a node that refuses logins while other nodes accept them."""


class Health(Enum):
    WELL = "well"
    LEAVING = "drains or is cut off"
    SILENT = "gives no answer"


class Node:
    """One node, by one address. `connections` are this process's connections to it."""

    def __init__(self, place: Place, address: str) -> None:
        self.place = place
        self.address = address
        self.health = Health.WELL
        self.avoided_until = 0.0
        self.opening = 0
        self.surplus = 0
        self.connections: set[Connection] = set()
        self.watching: Connection | None = None

    @property
    def count(self) -> int:
        return len(self.connections) + self.opening

    def forget_closed(self) -> None:
        self.connections = {connection for connection in self.connections if not connection.closed}

    def close(self, reason: str) -> None:
        for connection in self.connections:
            connection.close(reason)
        self.connections.clear()


class Nodes:
    """The nodes of one cluster, shared by all connections of a process to it. See the module's text."""

    def __init__(self, conninfo: str) -> None:
        self._places = list_places(conninfo)
        self._nodes: list[Node] = []
        self._looked_up_at: float | None = None
        self._is_calm = True
        """Whether all nodes are well and none has too many connections."""

    # -- connecting -------------------------------------------------------------------------------------------------

    async def open(self, kind: type[_C], conninfo: str, timeout_s: float) -> _C:
        """Connect to a node that accepts the login, the least used one first. Raises ConnectionLost."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        nodes = await self._find()
        lost = ConnectionLost("no address of the engine was found")
        for node in self._sort(nodes, loop.time()):
            left_s = until - loop.time()
            if left_s <= 0:
                break
            node.opening += 1
            try:
                limit_s = left_s if len(nodes) == 1 else min(left_s, LOGIN_S)
                connection = await kind.open(f"{conninfo} {node.place.at(node.address)}", limit_s)
            except ConnectionLost as exc:
                lost = exc
                if is_refusal(str(exc)):
                    raise
                node.avoided_until = loop.time() + _AVOID_S
                continue
            finally:
                node.opening -= 1
            node.forget_closed()
            node.connections.add(connection)
            return connection
        raise lost

    async def _find(self) -> list[Node]:
        """Return the nodes. Look their names up again from time to time."""
        now = asyncio.get_running_loop().time()
        if self._looked_up_at is None or now - self._looked_up_at > _LOOK_UP_EVERY_S:
            self._looked_up_at = now
            known = {(node.place, node.address): node for node in self._nodes}
            found = [(place, address) for place in self._places for address in await _look_up(place)]
            if found:
                self._nodes = [known.get(key) or Node(*key) for key in found]
        return self._nodes

    def _sort(self, nodes: list[Node], now: float) -> list[Node]:
        """Return the nodes in the order in which to try them: avoided ones last, then those that are not well."""

        def rank(node: Node) -> tuple[bool, bool, int, float]:
            is_avoided = node.avoided_until > now
            return is_avoided, node.health is not Health.WELL, node.count, random.random()  # noqa: S311 - no secret

        return sorted(nodes, key=rank)

    # -- leaving ----------------------------------------------------------------------------------------------------

    def should_leave(self, connection: Connection) -> bool:
        """Return whether to close a connection that is not in use: its node is not well, or has too many
        connections."""
        if self._is_calm:
            return False
        for node in self._nodes:
            if connection in node.connections:
                if node.health is not Health.WELL:
                    return True
                node.surplus -= 1
                return node.surplus >= 0
        return False

    def is_left(self, connection: Connection) -> bool:
        """Return whether the connection leads to a node that is not well."""
        if self._is_calm:
            return False
        return any(connection in node.connections for node in self._nodes if node.health is not Health.WELL)

    def describe(self) -> dict[str, str]:
        """Return the state of each node that is not well, by the node's place in the engine's URL."""
        found = {}
        for node in self._nodes:
            if node.health is not Health.WELL:
                found[f"node {self._places.index(node.place) + 1}"] = node.health.value
        return found

    # -- watching ---------------------------------------------------------------------------------------------------

    async def watch(self, conninfo: str) -> None:
        """Ask every node for its state, again and again, if there are several."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                nodes = await self._find()
                if len(nodes) > 1:
                    began = loop.time()
                    seen = await asyncio.gather(*(_look_at(node, conninfo) for node in nodes))
                    # A process that stood still itself has heard from no node.
                    if loop.time() - began < 2 * ANSWER_S:
                        self._judge(dict(zip(nodes, seen, strict=True)))
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            for node in self._nodes:
                if node.watching is not None:
                    node.watching.close()

    def _judge(self, seen: dict[Node, Health]) -> None:
        if all(health is not Health.WELL for health in seen.values()):
            return  # there is no better one to go to
        for node, health in seen.items():
            if health is not node.health:
                log = _log.info if health is Health.WELL else _log.warning
                log("a node of the engine is seen in another state", node=str(node.place), state=health.value)
            node.health = health
            node.forget_closed()
            if health is Health.WELL:
                node.avoided_until = 0.0
            elif health is Health.SILENT:
                node.close("its node gives no answer")
        self._find_surplus([node for node in seen if node.health is Health.WELL])
        self._is_calm = all(health is Health.WELL for health in seen.values()) and not any(n.surplus for n in seen)

    def _find_surplus(self, well: list[Node]) -> None:
        share = -(-sum(node.count for node in well) // len(well))
        for node in well:
            # A difference of one is no reason to log in again.
            beyond = node.count - share
            node.surplus = min(beyond, _MOVED_AT_ONCE) if beyond > 1 else 0


async def _look_at(node: Node, conninfo: str) -> Health:
    """Ask one node for its state."""
    watching = node.watching
    try:
        async with asyncio.timeout(ANSWER_S):
            if watching is None or watching.closed:
                made = f"{conninfo} {node.place.at(node.address)}"
                watching = node.watching = await Connection.open(made, ANSWER_S)
            results = await watching.run(_PROBE)
        check(results)
        is_leaving = any("t" in row for row in read_text_rows(results[-1]))
        return Health.LEAVING if is_leaving else Health.WELL
    except (TimeoutError, ConnectionLost) as exc:
        if node.watching is not None:
            node.watching.close()
            node.watching = None
        return Health.WELL if is_refusal(str(exc)) else Health.SILENT
    except EngineFailure:
        return Health.WELL  # it answers, though not that


async def _look_up(place: Place) -> list[str]:
    """Return the addresses of a place; none if its name cannot be resolved just now."""
    if place.address or place.is_socket:
        return [place.address]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(place.host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return list(dict.fromkeys(str(address[4][0]) for address in found))


def is_refusal(message: str) -> bool:
    """Return whether a server refused a login for a reason that holds on every node."""
    return any(word in message for word in _REFUSED) and _DRAINS not in message
