"""node-postgres and postgres.js, unmodified, through a tunnel: each as a program in tests/clients/javascript."""

from typing import Any

from tests.extended.conftest import Program

MOMENT = "2026-11-14T23:57:08.500Z"
BIG = "9007199254740993"


def check_scenario(told: Any) -> None:
    """Check what a client with the interface of node-postgres tells, after `scenario.mjs`."""
    assert told["back"] == {
        "i": 1, "big": BIG, "f": 1.5, "n": "1.50", "b": True, "nothing": None, "at": MOMENT, "isDate": True,
        "j": {"a": [1, None]}, "texts": ["a", 'b"c', None], "grid": [[1, 2], [3, 4]], "bytes": [0, 255],
        "s": "it's \\ é😀",
    }  # fmt: skip
    assert (told["names"][:2], told["command"]) == (["i", "big"], "SELECT")
    failures = told["failures"]
    assert (failures["syntax"]["code"], failures["syntax"]["position"]) == ("42601", "1")
    assert (failures["column"]["code"], failures["column"]["position"]) == ("42703", "8")
    assert (failures["unique"]["code"], failures["unique"]["severity"]) == ("23505", "ERROR")
    assert failures["unique"]["detail"] == "Key (id)=(1) already exists."
    transaction = {"level": "serializable", "before": 1, "committed": 2, "rolledBack": 2}
    assert (told["transaction"], told["prepared"]) == (transaction, ["ada", None])
    assert told["many"] == {"length": 10_000, "last": {"n": 10_000, "name": "row 10000"}, "sum": 50_005_000}
    assert told["cancelled"] == {"code": "57014", "after": [{"one": 1}]}


def test_node_postgres(run: Program) -> None:
    """Types both ways, errors with code and place, transactions, prepared statements, ten thousand rows, a cancel."""
    check_scenario(run("node_postgres"))


def test_postgres_js(run: Program) -> None:
    """The same, with a cursor."""
    told = run("postgres_js")
    assert told["back"] == {
        "i": 1, "big": BIG, "f": 1.5, "n": "1.50", "b": True, "nothing": None, "at": MOMENT, "j": {"a": [1, None]},
        "texts": ["a", 'b"c'], "bytes": [0, 255], "s": "it's \\ é😀",
    }  # fmt: skip
    failures = told["failures"]
    assert (failures["syntax"]["code"], failures["syntax"]["position"]) == ("42601", "1")
    assert (failures["column"]["code"], failures["column"]["position"]) == ("42703", "8")
    assert (failures["unique"]["code"], failures["unique"]["detail"]) == ("23505", "Key (id)=(1) already exists.")
    assert (told["committed"], told["rolledBack"]) == ([{"level": "serializable"}], "changed my mind")
    assert (told["count"], told["many"], told["chunks"]) == (2, 10_000, 10)
    assert (told["cancelled"], told["after"]) == ("57014", {"one": 1})
