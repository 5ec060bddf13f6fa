"""Bounds the rows that came from the engine and that no client has taken yet, over all connections.

Each connection may hold a little. One that holds more is read only while there is room: in total, and in its database's
share. Answers that wait to be taken count, too: so the rows of the next answer are not fetched before. The connection
that has held much for the longest is read in any case, so that it finishes and makes room for the others; except while
answers of its database wait, or too many of all databases.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

LITTLE = 2**20
"""The bytes that any connection may hold."""

_SHARE = 4
"""One database may hold a fourth of all bytes."""


class Stocks:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._share = bytes_max // _SHARE
        self.used = 0
        self._of_database: dict[str, int] = {}
        self._large: dict[Stock, None] = {}
        """The stocks that hold more than a little, in the order in which they reached that."""
        self._waiting: dict[Stock, None] = {}
        self._answers: dict[str, int] = {}
        """The bytes of answers that wait to be taken, by database."""

    def open(self, database: str, on_room: Callable[[], None]) -> "Stock":
        return Stock(self, database, on_room)

    def count(self, stock: "Stock", size: int) -> None:
        more = size - stock.size
        stock.size = size
        if size:
            self._large.setdefault(stock)
        else:
            self._large.pop(stock, None)
            self._waiting.pop(stock, None)
        self._add(stock.database, more)

    @contextmanager
    def hold_answer(self, database: str, size: int) -> Iterator[None]:
        """Count an answer that waits to be taken, until the block is left."""
        self._answers[database] = self._answers.get(database, 0) + size
        self._add(database, size)
        try:
            yield
        finally:
            self._answers[database] -= size
            if not self._answers[database]:
                del self._answers[database]
            self._add(database, -size)

    def _add(self, database: str, more: int) -> None:
        self.used += more
        of_database = self._of_database.get(database, 0) + more
        if of_database:
            self._of_database[database] = of_database
        else:
            self._of_database.pop(database, None)
        if more < 0:
            self._go_on()

    def has_room(self, stock: "Stock") -> bool:
        is_first = next(iter(self._large), stock) is stock
        if is_first and stock.database not in self._answers and sum(self._answers.values()) <= self._bytes_max:
            return True
        return self.used <= self._bytes_max and self._of_database[stock.database] <= self._share

    def wait(self, stock: "Stock") -> None:
        self._waiting.setdefault(stock)

    def _go_on(self) -> None:
        for stock in [stock for stock in self._waiting if self.has_room(stock)]:
            del self._waiting[stock]
            stock.on_room()


class Stock:
    """The rows that one connection holds. `on_room` is called when it may be read again; it must not read at once."""

    __slots__ = ("_stocks", "database", "on_room", "size")

    def __init__(self, stocks: Stocks, database: str, on_room: Callable[[], None]) -> None:
        self._stocks = stocks
        self.database = database
        self.on_room = on_room
        self.size = 0

    def may_hold(self, size: int) -> bool:
        """Return whether the connection may be read. If not, `on_room` is called later."""
        counted = size if size > LITTLE else 0
        if counted != self.size:
            self._stocks.count(self, counted)
        if not counted or self._stocks.has_room(self):
            return True
        self._stocks.wait(self)
        return False
