"""Rows in memory that are in no answer yet: who is read on, and who waits."""

from tuplegate.engine.libpq.connections.unread_rows import LITTLE, Stock, Stocks


class Reader:
    """A connection as far as its stock is concerned."""

    def __init__(self, stocks: Stocks, database: str) -> None:
        self.reads = True
        self.stock: Stock = stocks.open(database, self.go_on)

    def go_on(self) -> None:
        self.reads = True

    def holds(self, size: int) -> bool:
        self.reads = self.stock.may_hold(size)
        return self.reads


def test_little_is_not_counted() -> None:
    stocks = Stocks(LITTLE)
    readers = [Reader(stocks, "one") for _ in range(100)]
    assert all(reader.holds(LITTLE) for reader in readers)
    assert stocks.used == 0


def test_who_came_first_goes_on_and_its_end_lets_the_next_go_on() -> None:
    stocks = Stocks(40 * LITTLE)
    first, second, third = (Reader(stocks, "one") for _ in range(3))
    assert first.holds(8 * LITTLE)
    assert second.holds(2 * LITTLE)  # a fourth is ten
    assert not second.holds(4 * LITTLE)
    assert not third.holds(2 * LITTLE)
    assert first.holds(100 * LITTLE)  # or nobody would ever end
    first.holds(0)
    assert second.reads
    assert third.reads
    assert stocks.used == 6 * LITTLE


def test_a_database_has_a_fourth_and_the_others_do_not_notice() -> None:
    stocks = Stocks(40 * LITTLE)
    first, greedy, other = Reader(stocks, "one"), Reader(stocks, "one"), Reader(stocks, "two")
    first.holds(2 * LITTLE)
    assert not greedy.holds(9 * LITTLE)
    assert other.holds(10 * LITTLE)
    assert not other.holds(11 * LITTLE)
    assert other.holds(LITTLE)


def test_all_together_have_a_bound() -> None:
    stocks = Stocks(40 * LITTLE)
    readers = [Reader(stocks, str(number)) for number in range(6)]
    assert [reader.holds(9 * LITTLE) for reader in readers] == [True] * 4 + [False] * 2
    readers[1].holds(0)  # 45 are left
    assert [reader.reads for reader in readers[4:]] == [False, False]
    readers[2].holds(0)
    assert [reader.reads for reader in readers[4:]] == [True, True]
    for reader in readers:
        reader.holds(0)
    assert stocks.used == 0


def test_an_answer_that_waits_to_be_taken_counts() -> None:
    """The rows of the next one of its database are not fetched before; those of others are."""
    stocks = Stocks(40 * LITTLE)
    first, other = Reader(stocks, "one"), Reader(stocks, "two")
    with stocks.hold_answer("one", 9 * LITTLE):
        assert not first.holds(2 * LITTLE)
        assert other.holds(9 * LITTLE)
        with stocks.hold_answer("one", 9 * LITTLE):
            assert [first.reads] == [False]
        assert [first.reads] == [False]
    assert [first.reads] == [True]
    assert first.holds(100 * LITTLE)
    for reader in (first, other):
        reader.holds(0)
    assert stocks.used == 0


def test_answers_of_many_databases_have_a_bound_too() -> None:
    """Though none of them waits for its own."""
    stocks = Stocks(8 * LITTLE)
    with stocks.hold_answer("one", 5 * LITTLE), stocks.hold_answer("two", 4 * LITTLE):
        reader = Reader(stocks, "three")
        assert not reader.holds(2 * LITTLE)
    assert reader.reads
