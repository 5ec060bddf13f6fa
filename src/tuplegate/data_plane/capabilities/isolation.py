"""Races: histories that an isolation level forbids, driven move by move against the engine."""

from tuplegate.data_plane.capabilities.probes import Move, Race, Step, does, gives

_ACCOUNT = ("create table account (id int primary key, balance int)", "insert into account values (1, 100), (2, 100)")
_READ_1 = "select balance from account where id = 1"
_DOCTORS = ("create table doctor (name text primary key, on_call boolean)",
            "insert into doctor values ('ann', true), ('ben', true)")  # fmt: skip
_ON_CALL = "select count(*) from doctor where on_call"
_COMMIT = "commit"


def _history(*moves: tuple[str, Step | str]) -> tuple[Move, ...]:
    return tuple(Move(actor, does(step) if isinstance(step, str) else step) for actor, step in moves)


RACES = (
    Race("read_committed", "isolation", "READ COMMITTED: no dirty read", "read committed", _ACCOUNT, _history(
        ("a", "update account set balance = 50 where id = 1"),
        ("b", gives(_READ_1, (50,))),
        ("a", "rollback"),
        ("b", _COMMIT))),
    Race("repeatable_read", "isolation", "REPEATABLE READ: no row changes under a reader", "repeatable read", _ACCOUNT,
         _history(
        ("a", gives(_READ_1, (100,))),
        ("b", "update account set balance = 50 where id = 1"),
        ("b", _COMMIT),
        ("a", gives(_READ_1, (50,))),
        ("a", _COMMIT))),
    Race("no_phantoms", "isolation", "REPEATABLE READ: no row appears under a reader", "repeatable read", _ACCOUNT,
         _history(
        ("a", gives("select count(*) from account", (2,))),
        ("b", "insert into account values (3, 100)"),
        ("b", _COMMIT),
        ("a", gives("select count(*) from account", (3,))),
        ("a", _COMMIT))),
    Race("no_lost_update", "isolation", "REPEATABLE READ: no lost update", "repeatable read", _ACCOUNT, _history(
        ("a", gives(_READ_1, (100,))),
        ("b", gives(_READ_1, (100,))),
        ("a", "update account set balance = 110 where id = 1"),
        ("a", _COMMIT),
        ("b", "update account set balance = 120 where id = 1"),
        ("b", _COMMIT))),
    Race("serializable", "isolation", "SERIALIZABLE: no write skew", "serializable", _DOCTORS, _history(
        ("a", gives(_ON_CALL, (2,))),
        ("b", gives(_ON_CALL, (2,))),
        ("a", "update doctor set on_call = false where name = 'ann'"),
        ("b", "update doctor set on_call = false where name = 'ben'"),
        ("a", _COMMIT),
        ("b", _COMMIT))),
    Race("serializable_inserts", "isolation", "SERIALIZABLE: no write skew by rows that were not there", "serializable",
         ("create table booking (room int, hour int)",), _history(
        ("a", gives("select count(*) from booking where room = 1 and hour = 9", (0,))),
        ("b", gives("select count(*) from booking where room = 1 and hour = 9", (0,))),
        ("a", "insert into booking values (1, 9)"),
        ("b", "insert into booking values (1, 9)"),
        ("a", _COMMIT),
        ("b", _COMMIT))),
    Race("serializable_lost_update", "isolation", "SERIALIZABLE: no lost update", "serializable", _ACCOUNT, _history(
        ("a", gives(_READ_1, (100,))),
        ("b", gives(_READ_1, (100,))),
        ("a", "update account set balance = 110 where id = 1"),
        ("a", _COMMIT),
        ("b", "update account set balance = 120 where id = 1"),
        ("b", _COMMIT))),
    Race("serializable_phantom", "isolation", "SERIALIZABLE: no row appears under a reader", "serializable", _ACCOUNT,
         _history(
        ("a", gives("select count(*) from account", (2,))),
        ("b", "insert into account values (3, 100)"),
        ("b", _COMMIT),
        ("a", gives("select count(*) from account", (3,))),
        ("a", _COMMIT))),
    # The withdrawal sees neither deposit nor report; the report sees the deposit but not the withdrawal, which charged
    # a fee that is only right if it came before the deposit. No order of the three explains all of that.
    Race("serializable_read_only", "isolation", "SERIALIZABLE: no anomaly that only a reader sees", "serializable",
         ("create table account (id int primary key, balance int)", "insert into account values (1, 0), (2, 0)"),
         _history(
        ("withdrawal", gives("select sum(balance) from account", (0,))),
        ("deposit", "update account set balance = balance + 20 where id = 2"),
        ("deposit", _COMMIT),
        ("report", gives("select balance from account order by id", (0,), (20,))),
        ("report", _COMMIT),
        ("withdrawal", "update account set balance = balance - 11 where id = 1"),
        ("withdrawal", _COMMIT))),
)  # fmt: skip
