"""Bounds the rows that came from the engine and are in no answer yet, over all connections.

A connection holds a little as it likes. One that holds more is read on only while there is room: among all, and in its
database's share. The one that has held much for the longest is always read on, so that it comes to its end and makes
room for the others.
"""

from collections.abc import Callable

LITTLE = 2**20
"""Bytes that any connection may hold."""

_SHARE = 4
"""One database may hold a fourth."""


class Stocks:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._share = bytes_max // _SHARE
        self.used = 0
        self._of_database: dict[str, int] = {}
        self._large: dict[Stock, None] = {}
        """Those that hold more than a little, in the order in which they came to it."""
        self._waiting: dict[Stock, None] = {}

    def open(self, database: str, on_room: Callable[[], None]) -> "Stock":
        return Stock(self, database, on_room)

    def count(self, stock: "Stock", size: int) -> None:
        more = size - stock.size
        stock.size = size
        self.used += more
        self._of_database[stock.database] = self._of_database.get(stock.database, 0) + more
        if size:
            self._large.setdefault(stock)
        else:
            self._large.pop(stock, None)
            self._waiting.pop(stock, None)
            if not self._of_database[stock.database]:
                del self._of_database[stock.database]
        if more < 0:
            self._go_on()

    def has_room(self, stock: "Stock") -> bool:
        if next(iter(self._large), stock) is stock:
            return True
        return self.used <= self._bytes_max and self._of_database[stock.database] <= self._share

    def wait(self, stock: "Stock") -> None:
        self._waiting.setdefault(stock)

    def _go_on(self) -> None:
        for stock in [stock for stock in self._waiting if self.has_room(stock)]:
            del self._waiting[stock]
            stock.on_room()


class Stock:
    """The rows that one connection holds. `on_room` is called when it may be read on; it must not read at once."""

    __slots__ = ("_stocks", "database", "on_room", "size")

    def __init__(self, stocks: Stocks, database: str, on_room: Callable[[], None]) -> None:
        self._stocks = stocks
        self.database = database
        self.on_room = on_room
        self.size = 0

    def may_hold(self, size: int) -> bool:
        """Return whether the connection may be read on. Where it may not, `on_room` is called later."""
        counted = size if size > LITTLE else 0
        if counted != self.size:
            self._stocks.count(self, counted)
        if not counted or self._stocks.has_room(self):
            return True
        self._stocks.wait(self)
        return False
