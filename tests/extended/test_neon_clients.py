"""Neon's driver, and what is built on it, unmodified: each as a program in tests/clients/javascript."""

import json

from tests.extended.conftest import Program
from tests.extended.test_javascript_drivers import BIG, MOMENT, check_scenario


def test_the_driver(run: Program) -> None:
    """Types both ways, all its options, errors with code and place, transactions, and ten thousand rows."""
    told = run("driver")
    assert told["back"] == {
        "i": 1, "big": BIG, "f": 1.5, "n": "1.50", "b": True, "nothing": None, "at": MOMENT, "isDate": True,
        "j": {"a": [1, None]}, "texts": ["a", 'b"c', None], "grid": [[1, 2], [3, 4]], "bytes": [0, 255],
        "s": "it's \\ é😀",
    }  # fmt: skip
    assert told["full"] == {"rows": [[1, 2]], "command": "SELECT", "rowCount": 1, "names": ["a", "a"]}
    assert told["plain"] == [{"n": "<7>"}]
    failures = told["failures"]
    assert all(failure["name"] == "NeonDbError" for failure in failures.values())
    assert (failures["syntax"]["code"], failures["syntax"]["position"]) == ("42601", "1")
    assert (failures["column"]["code"], failures["column"]["position"]) == ("42703", "8")
    assert (failures["unique"]["code"], failures["unique"]["severity"]) == ("23505", "ERROR")
    assert failures["unique"]["constraint"] == f"{failures['unique']['table']}_pkey"
    assert failures["unique"]["detail"] == "Key (id)=(1) already exists."
    assert (failures["key"]["code"], failures["key"]["severity"]) == ("28P01", "FATAL")
    assert failures["database"]["code"] == "3D000"
    assert told["committed"] == [[{"id": 2}], [{"level": "serializable"}]]
    assert told["rolledBack"]["code"] == "23505"
    assert told["readOnly"]["code"] == "25006"
    assert (told["none"], told["count"]) == ([], 2)
    assert told["many"] == {"length": 10_000, "last": {"n": 10_000, "name": "row 10000"}, "sum": 50_005_000}
    assert (told["byToken"], told["pooled"]) == ([{"one": 1}], [{"n": 7}])


DRIZZLES_ROW = {
    "id": 1, "name": "ada", "big": f"{BIG}n", "price": "1.50", "at": MOMENT, "data": {"a": [1, None], "s": "x"},
    "tags": ["a", 'b"c'], "done": True,
}  # fmt: skip


def test_drizzle(run: Program) -> None:
    """Its own types, a batch that commits and one that does not."""
    told = run("drizzle")
    assert told["inserted"] == told["found"] == DRIZZLES_ROW
    assert told["updated"] == {"done": False}
    assert told["batch"] == [[{"id": 2}], [{"id": 1}, {"id": 2}]]
    assert told["rolledBack"] == "23505"
    assert "No transactions support" in told["interactive"]
    assert (told["raw"], told["many"]) == ({"rows": [{"count": 2}], "rowCount": 1}, 10_000)


def test_kysely(run: Program) -> None:
    """Rows, counts, errors; and what it asks the catalogs."""
    told = run("kysely")
    assert told["inserted"] == {
        "id": 1, "name": "ada", "big": BIG, "price": "1.50", "at": None, "data": {"a": [1, None]}, "tags": ["a", 'b"c'],
        "done": None,
    }  # fmt: skip
    assert told["found"] == [{"id": 1, "name": "ada", "tags": ["a", 'b"c']}]
    assert (told["updated"], told["many"], told["tables"]) == ("1n", 10_000, [8])
    assert told["unique"]["code"] == "23505"
    assert told["unknown"] == {"code": "42703", "position": "8"}
    assert "ransaction" in told["interactive"]


def test_prisma_s_adapter(run: Program) -> None:
    """The values of all its types, and the driver's errors, which this adapter passes on."""
    told = run("prisma")
    assert told["inserted"] == 1
    assert told["found"]["columnNames"] == ["id", "name", "big", "price", "at", "data", "done"]
    [[id, name, big, price, at, data, done]] = told["found"]["rows"]
    assert (id, name, big, price, done) == (1, "ada", BIG, "1.50", True)
    assert at.startswith("2026-11-14T23:57:08.5")
    assert json.loads(data) == {"a": [1, None]}
    assert (told["unique"], told["missing"]) == ("23505", "42P01")
    assert "HTTP" in told["interactive"]
    assert told["many"] == 10_000


# -- over a WebSocket -------------------------------------------------------------------------------------------------


def test_the_drivers_pool(run: Program) -> None:
    """Types both ways, errors with code and place, transactions that stay open, ten thousand rows, a cancel."""
    told = run("neon_websocket")
    check_scenario(told)
    assert (told["key"], told["database"]) == ("28P01", "3D000")


def test_drizzle_over_a_websocket(run: Program) -> None:
    """With transactions that stay open, one in another."""
    told = run("drizzle_websocket")
    assert told["inserted"] == told["found"] == DRIZZLES_ROW
    assert [error["code"] for error in told["codes"]] == ["23505", "42703"]
    assert told["codes"][1]["position"] == "8"
    assert told["committed"] == {"count": 2, "inner": "23505"}
    assert (told["rolledBack"], told["count"], told["many"]) == ("TransactionRollbackError", 2, 10_000)


def test_kysely_over_a_websocket(run: Program) -> None:
    told = run("kysely_websocket")
    assert told["inserted"] == {
        "id": 1, "name": "ada", "big": BIG, "price": "1.50", "at": None, "data": {"a": [1, None]}, "tags": ["a", 'b"c'],
        "done": None,
    }  # fmt: skip
    assert (told["rolledBack"], told["ids"], told["many"]) == ("23502", [1, 2], 10_000)


def test_prisma_s_adapter_over_a_websocket(run: Program) -> None:
    """With transactions that stay open; its errors are its own, made from the engine's."""
    told = run("prisma_websocket")
    assert told["inserted"] == 1
    [[id, name, big, price, at, data, done]] = told["found"]["rows"]
    assert (id, name, big, price, done) == (1, "ada", BIG, "1.50", True)
    assert at.startswith("2026-11-14T23:57:08.5")
    assert json.loads(data) == {"a": [1, None]}
    unique, missing = told["failures"]
    assert (unique["kind"], unique["originalCode"]) == ("UniqueConstraintViolation", "23505")
    assert (missing["kind"], missing["originalCode"]) == ("TableDoesNotExist", "42P01")
    assert (told["transaction"], told["many"]) == ({"before": 1, "after": 2}, 10_000)
