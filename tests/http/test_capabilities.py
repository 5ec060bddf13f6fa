"""`GET /capabilities` says what the engine can do because it has done it, and leaves nothing behind."""

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import psycopg
import pytest

from tests.inside import engine_of, owner, scratch_schemas, tenant_of
from tests.needs import needs
from tests.service import ENGINE, Service, Sql, new_data_dir, newer_than, remove, start_service
from tests.waiting import eventually
from tuplegate.data_plane.capabilities.isolation import RACES
from tuplegate.data_plane.capabilities.matrix import PROBES
from tuplegate.data_plane.capabilities.probes import AnyProbe, Probed, does, fails, gives, probe
from tuplegate.data_plane.capabilities.runner import Report, run_probe
from tuplegate.engine.postgres.preparation.weaknesses import SHARED
from tuplegate.settings import Settings

NOT_IN_THE_BUNDLED_ENGINE = {"xml"}
NOT_IN_EVERY_ENGINE = {
    "json_constructors": 16,
    "json_table": 17,
    "merge_returning": 17,
    "uuid_v7": 18,
    "generated_virtual": 18,
    "returning_old_new": 18,
}
"""The release that brought it."""
_AT_ONCE = 18
"""Probes that a worker runs, and lets wait."""


def get(client: httpx.Client, path: str) -> dict[str, Any]:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    assert body["success"] is True, body
    return body


def run(service: Service, *probes: AnyProbe) -> list[Report]:
    """On the running engine, through an adapter of the test's own."""

    async def one_after_the_other() -> list[Report]:
        async with engine_of(service) as engine:
            probed = Probed(engine, engine, engine)
            return [await run_probe(probed, tenant_of(service), probe) for probe in probes]

    return asyncio.run(one_after_the_other())


@needs("postgresql")
def test_the_matrix_of_the_engine(client: httpx.Client) -> None:
    """About a hundred probes in groups; all hold but those that its build leaves out, or that came with a later one."""
    body = get(client, "/capabilities")
    assert body["engine"].items() <= client.get("/health").json()["engine"].items()
    assert [weakness["name"] for weakness in body["weaknesses"]] == [each.name for each in SHARED if ENGINE]
    assert len(body["probes"]) >= 100
    assert all(set(probe) == {"name", "group", "title", "supported"} for probe in body["probes"])
    missing = {probe["name"] for probe in body["probes"] if not probe["supported"]}
    if not ENGINE:
        asked = client.post(
            "/v1/query",
            json={
                "sql": "select trusted from pg_available_extension_versions where name = 'vector'",
                "row_mode": "arrays",
            },
        )
        vectors = {name for name in PROBES if name.startswith("vector_")}
        assert missing == NOT_IN_THE_BUNDLED_ENGINE | (set() if asked.json()["rows"] == [[True]] else vectors)
        return
    newer = {name for name, major in NOT_IN_EVERY_ENGINE.items() if not newer_than(major - 1)}
    of_extensions = {name for name, probe in PROBES.items() if getattr(probe, "extension", None)}
    assert newer <= missing <= newer | of_extensions | NOT_IN_THE_BUNDLED_ENGINE


def test_names_and_titles_are_unique() -> None:
    """A name that is used twice would hide a probe."""
    assert max(Counter((probe.group, probe.title) for probe in PROBES.values()).values()) == 1
    assert all(name == probe.name for name, probe in PROBES.items())


@needs("predicate_locks")
def test_the_limits_in_force_are_those_of_the_settings(client: httpx.Client) -> None:
    """With their names and units, and how long a transaction may safely live."""
    limits = get(client, "/capabilities")["limits"]
    settings = Settings()
    for name in (
        "statement_timeout_ms", "transaction_timeout_ms", "transaction_statements_max", "body_bytes_max",
        "answer_bytes_max", "header_timeout_s", "body_timeout_s", "connections_per_database", "queue_max",
        "running_max", "session_lifetime_s",
    ):  # fmt: skip
        assert limits[name] == getattr(settings, name)
    assert limits["tiers"]["free"]["requests_per_minute"] == 200
    assert not any(name.endswith("port") for name in limits)
    assert limits["serializable"]["slots"] > 1000
    assert limits["serializable"]["guarded"] is True
    assert limits["serializable"]["safe_seconds"] is None or limits["serializable"]["safe_seconds"] > 0


def test_a_read_key_gets_the_same_matrix(client: httpx.Client, read_sql: Sql) -> None:
    """The matrix is about the engine, not about the key."""
    assert get(read_sql.client, "/capabilities")["probes"] == get(client, "/capabilities")["probes"]
    assert get(read_sql.client, "/capabilities/upsert")["supported"] is True


def test_one_probe_shows_what_it_did(client: httpx.Client) -> None:
    """Its statements with rows, error and time, in order."""
    body = get(client, "/capabilities/check")
    assert (body["name"], body["group"], body["title"], body["supported"]) == ("check", "constraints", "CHECK", True)
    made, refused = body["statements"]
    assert (made["rows"], made["error"], made["as_expected"]) == ([], None, True)
    assert refused["sql"] == "insert into t values (0)"
    assert (refused["rows"], refused["error"]["sqlstate"], refused["as_expected"]) == (None, "23514", True)
    assert body["timings"]["exec_us"] >= made["exec_us"] + refused["exec_us"] > 0


def test_a_race_shows_who_made_which_move(client: httpx.Client) -> None:
    """And which of them the engine refused."""
    body = get(client, "/capabilities/serializable")
    assert body["supported"] is True
    moves = [step for step in body["statements"] if "transaction" in step]
    assert {move["transaction"] for move in moves} == {"a", "b"}
    assert [move["error"]["sqlstate"] for move in moves if move["error"]] == ["40001"]


@pytest.mark.parametrize(
    ("name", "meant"), [("serialisable", "serializable"), ("upserts", "upsert"), ("JSON_TABLE", "json_table")]
)
def test_an_unknown_probe_names_the_nearest(client: httpx.Client, name: str, meant: str) -> None:
    """As a hint beside the 404."""
    answer = client.get(f"/capabilities/{name}")
    assert answer.status_code == 404
    assert meant in answer.json()["error"]["hint"]


def test_a_name_that_is_near_to_none_points_to_the_list(client: httpx.Client) -> None:
    """Whatever it is made of."""
    for name in ("qqqqqqqqqqqq", "%F0%9F%90%98", "a'b"):
        answer = client.get(f"/capabilities/{name}")
        assert answer.status_code == 404
        assert "GET /capabilities" in answer.json()["error"]["hint"]


def test_a_parameter_is_refused(client: httpx.Client) -> None:
    """On both routes."""
    assert client.get("/capabilities?fresh=1").status_code == 400
    assert client.get("/capabilities/upsert?fresh=1").status_code == 400


# -- verdicts ---------------------------------------------------------------------------------------------------------


@needs("postgresql")
def test_an_isolation_level_that_lets_the_history_happen_is_found_out(service: Service) -> None:
    """Every history of SERIALIZABLE happens at a level that does not forbid it: then the verdict is no."""
    serializable = [race for race in RACES if race.isolation == "serializable"]
    weak = {"serializable_phantom": "read committed", "serializable_lost_update": "read committed"}
    weakened = [replace(race, isolation=weak.get(race.name, "repeatable read")) for race in serializable]
    repeatable = [replace(race, isolation="read committed") for race in RACES if race.isolation == "repeatable read"]
    reports = run(service, *weakened, *repeatable)
    assert len(reports) == 8
    assert [report.supported for report in reports] == [False] * 8
    assert all(report.observations[-1].error is None for report in reports), "nothing failed: the history happened"


def test_a_level_that_the_engine_does_not_know_is_not_supported(service: Service) -> None:
    """A history that did not happen for another reason proves nothing."""
    known = next(race for race in RACES if race.name == "serializable")
    unknown = replace(known, setup=("create table doctor (wrong int)",))
    [report] = run(service, unknown)
    assert report.supported is False


def test_a_probe_that_gives_something_else_is_not_supported(service: Service) -> None:
    """Other rows, no failure where one must be, another failure, or one that was not expected."""
    reports = run(
        service,
        probe("rows", "test", "other rows", gives("select 1", (2,))),
        probe("none", "test", "no failure", fails("select 1", "22012")),
        probe("other", "test", "another failure", fails("select 1 / 0", "23505")),
        probe("failure", "test", "a failure", does("select 1 / 0"), does("select 1")),
        probe("extension", "test", "no such extension", does("select 1"), extension="nothing_of_that_name"),
        probe("right", "test", "right", fails("select 1 / 0", "22012"), gives("select 1", (1,))),
    )
    assert [report.supported for report in reports] == [False, False, False, False, False, True]
    assert len(reports[3].observations) == 1, "nothing is run after what went wrong"


def test_a_race_in_which_one_waits_for_the_other_goes_on(service: Service) -> None:
    """An engine that blocks instead of refusing gets its turn: the write waits here until the first one commits."""
    known = next(race for race in RACES if race.name == "serializable_lost_update")
    read_a, read_b, write_a, commit_a, write_b, commit_b = known.history
    waiting = replace(known, history=(read_a, read_b, write_a, write_b, commit_a, commit_b))
    [report] = run(service, waiting)
    assert report.supported is True
    assert [one.sqlstate for one in report.observations if one.sqlstate] == ["40001"]


# -- leaving nothing behind -------------------------------------------------------------------------------------------


def everything(connection: "psycopg.Connection[tuple[Any, ...]]") -> list[tuple[Any, ...]]:
    """What a database holds beyond what the engine came with."""
    return connection.execute(
        "select 'schema', nspname from pg_namespace where nspname !~ '^pg_' union all"
        " select 'relation', relname from pg_class where oid >= 16384 and relpersistence <> 't' union all"
        " select 'function', proname from pg_proc where oid >= 16384 union all"
        " select 'type', typname from pg_type where oid >= 16384 and typname !~ '^pg_toast' union all"
        " select 'extension', extname from pg_extension union all"
        " select 'large object', oid::text from pg_largeobject_metadata union all"
        " select 'prepared', gid from pg_prepared_xacts order by 1, 2"
    ).fetchall()


def test_nothing_is_left_behind(service: Service, client: httpx.Client) -> None:
    """After every probe, by itself: no schema, type, function, extension, large object or prepared transaction."""
    with owner(service) as inside:
        before = everything(inside)
        for name in PROBES:
            get(client, f"/capabilities/{name}")
        assert everything(inside) == before


@needs("extensions_listed")
def test_an_extension_that_is_there_already_is_used_and_stays(service: Service, sql: Sql) -> None:
    """In whatever schema it is, however that is called."""
    sql('create schema "Odd Name"')
    try:
        sql('create extension pg_trgm schema "Odd Name"')
        body = get(sql.client, "/capabilities/trigram_similarity")
        assert body["supported"] is True
        assert '"Odd Name".similarity' in body["statements"][1]["sql"]
        assert sql.value("select count(*) from pg_extension where extname = 'pg_trgm'") == 1
    finally:
        sql('drop schema "Odd Name" cascade')


@needs("function_sql", "merge")
def test_objects_of_the_tenant_do_not_change_a_verdict(sql: Sql) -> None:
    """A probe sees its own scratch schema and the engine's, nothing in `public`."""
    sql("create table public.t (x int)")
    sql("create function public.twice(int) returns int language sql return 0")
    try:
        for name in ("check", "function_sql", "merge", "serializable"):
            assert get(sql.client, f"/capabilities/{name}")["supported"] is True
    finally:
        sql("drop table public.t")
        sql("drop function public.twice")


@needs("two_phase_commit", "index_concurrently")
def test_many_at_once_do_not_disturb_each_other(service: Service) -> None:
    """Also where they need the same extension, or race."""
    names = [
        "serializable",
        "trigram_similarity",
        "two_phase_commit",
        "index_concurrently",
        "trigram_index",
        "no_phantoms",
    ] * 2

    def ask(name: str) -> bool:
        with service.client() as client:
            return bool(get(client, f"/capabilities/{name}")["supported"])

    with ThreadPoolExecutor(len(names)) as threads:
        assert all(threads.map(ask, names))
    with owner(service) as inside:
        assert scratch_schemas(inside) == []


@needs("activity")
def test_first_asks_at_once_run_the_matrix_once() -> None:
    """All get the same answer; the engine made as many scratch schemas as one run makes. A setting shows in the limits;
    and it works with a single connection, which a race would wait for itself on."""
    data_dir = new_data_dir()
    service = start_service(data_dir, "--connections-per-database", "1", "--statement-timeout-ms", "12345")

    def ask(_: int) -> Any:
        with service.client() as client:
            return get(client, "/capabilities")

    try:
        with ThreadPoolExecutor(6) as threads:
            answers = list(threads.map(ask, range(6)))
        assert all(answer["probes"] == answers[0]["probes"] for answer in answers)
        assert answers[0]["limits"]["statement_timeout_ms"] == 12345
        verdicts = {probe["name"]: probe["supported"] for probe in answers[0]["probes"]}
        assert verdicts["serializable_read_only"] is True
        with owner(service) as inside:
            made = inside.execute("select n_tup_ins from pg_stat_sys_tables where relname = 'pg_namespace'").fetchone()
        assert made is not None
        assert len(PROBES) / 2 < made[0] < len(PROBES) * 1.5, "every run makes about one schema for every probe"
    finally:
        assert service.stop() == 0
        remove(data_dir)


@needs("extensions_listed")
def test_probes_that_pile_up_are_turned_away(service: Service) -> None:
    """So many run and wait; whoever comes after is told to come later, and the others are served in the end."""
    asked = _AT_ONCE + 6

    def ask(_: int) -> int:
        with service.client() as client:
            return client.get("/capabilities/trigram_similarity").status_code

    with owner(service) as other, ThreadPoolExecutor(asked) as threads:
        with other.transaction(force_rollback=True):
            other.execute("create extension pg_trgm")  # the probe waits for the end of this
            answers = [threads.submit(ask, number) for number in range(asked)]
            eventually(lambda: sum(answer.done() for answer in answers) == asked - _AT_ONCE)
            assert {answer.result() for answer in answers if answer.done()} == {503}
        assert Counter(answer.result() for answer in answers) == {503: asked - _AT_ONCE, 200: _AT_ONCE}
