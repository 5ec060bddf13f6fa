"""`GET /metrics`: who may read it, what it counts, and that nobody can make it grow without bound."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import psycopg
import pytest

from tests.control import TIERS, Control, Organization, error_of, new_organization
from tests.metrics import CONTENT_TYPE, Page, fallen, scrape
from tests.needs import Abilities, needs
from tests.service import Service, Sql, running_service
from tests.waiting import eventually
from tuplegate import __version__
from tuplegate.metrics.page import DATABASES_SHOWN
from tuplegate.metrics.table import METRICS
from tuplegate.protocol.errors import ERRORS

QUERY = {"plane": "data", "method": "POST", "route": "/v1/query"}
UNKNOWN_PATHS = 1000


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """One of the module's own: other tests would be counted too."""
    with running_service(*TIERS, "--metrics-address", "127.0.0.1:0") as running:
        yield running


@pytest.fixture(scope="module")
def abilities(service: Service) -> Abilities:
    return Abilities(service)


@pytest.fixture(scope="module")
def metrics_url(service: Service) -> str:
    return dict(line.split(": ", 1) for line in service.output)["metrics"]


# -- who may read it ------------------------------------------------------------------------------------------------


def test_an_operator_reads_it(service: Service) -> None:
    page = scrape(service)
    [labels] = page.series("info")
    assert labels["version"] == __version__
    assert labels["engine"] == httpx.get(f"{service.url}/health").json()["engine"]["kind"]
    assert page.value("engine_up") == 1


def test_nobody_else_does(service: Service, organization: Organization) -> None:
    """An organization's admin is no operator, and without a token there is nothing to see."""
    error_of(organization.control.ask("GET", "/metrics"), 403, "forbidden")
    error_of(httpx.get(f"{service.control_url}/metrics"), 401, "unauthenticated")
    error_of(httpx.get(f"{service.url}/metrics", headers={"Authorization": f"Bearer {service.key}"}), 404, "not_found")


def test_the_address_of_its_own_needs_no_token(metrics_url: str) -> None:
    """It has that one route, and only GET and HEAD."""
    answer = httpx.get(f"{metrics_url}/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == CONTENT_TYPE
    assert Page(answer.text).value("engine_up") == 1
    head = httpx.head(f"{metrics_url}/metrics")
    assert (head.status_code, head.content) == (200, b"")
    error_of(httpx.post(f"{metrics_url}/metrics"), 405, "method_not_allowed")
    for path in ("/", "/health", "/v1/databases", "/v1/query"):
        error_of(httpx.get(f"{metrics_url}{path}"), 404, "not_found")


def test_the_alias_leads_to_the_control_plane(service: Service) -> None:
    answer = httpx.get(f"{service.alias_url}/metrics")
    assert (answer.status_code, answer.headers["location"]) == (307, f"{service.control_url}/metrics")


# -- what it counts -------------------------------------------------------------------------------------------------


def test_requests_are_counted_by_route_and_status(service: Service, sql: Sql) -> None:
    before = scrape(service)
    for _ in range(7):
        sql("select 1")
    sql.fails("select 1/0")
    assert sql.answer("selec").status_code == 400
    assert sql.client.get("/v1/transaction/txn_unknown-one").status_code == 404
    after = scrape(service)
    assert (
        after.value("requests_total", **QUERY, status="2xx") - before.value("requests_total", **QUERY, status="2xx")
        == 8
    )
    assert (
        after.value("requests_total", **QUERY, status="4xx") - before.value("requests_total", **QUERY, status="4xx")
        == 1
    )
    template = {"plane": "data", "method": "GET", "route": "/v1/transaction/{id}", "status": "4xx"}
    assert after.value("requests_total", **template) - before.value("requests_total", **template) == 1
    grown = after.value("request_seconds_count", **QUERY) - before.value("request_seconds_count", **QUERY)
    assert grown == 9
    assert after.value("request_seconds_sum", **QUERY) > before.value("request_seconds_sum", **QUERY)
    for code in ("sql_error", "parse_error"):
        name = {"plane": "data", "code": code}
        assert after.value("errors_total", **name) - before.value("errors_total", **name) == 1
    grown = after.value("engine_seconds_count", kind="query") - before.value("engine_seconds_count", kind="query")
    assert grown == 9
    assert not fallen(before, after)


def test_a_scrape_counts_itself_the_next_time(service: Service) -> None:
    route = {"plane": "control", "method": "GET", "route": "/metrics", "status": "2xx"}
    before = scrape(service).value("requests_total", **route)
    assert scrape(service).value("requests_total", **route) == before + 1


def test_the_alias_counts_what_it_does(service: Service) -> None:
    before = scrape(service)
    with service.alias.client() as client:
        for _ in range(3):
            Sql(client)("select 1")
        client.get("/")
        client.get("/v1/databases")
    after = scrape(service)
    for route, status, count in (("forwarded", "2xx", 3), ("answered", "2xx", 1), ("redirected", "3xx", 1)):
        labels = {"plane": "alias", "method": "other", "route": route, "status": status}
        assert after.value("requests_total", **labels) - before.value("requests_total", **labels) == count


def test_conflicts_attempts_and_retries(service: Service, sql: Sql) -> None:
    """Transactions that count up one row meet; every attempt, conflict and retry is on the page as in the answers."""
    sql("create table counter (n int)")
    sql("insert into counter values (0)")
    before = scrape(service)
    statements = [{"sql": "select n from counter"}, {"sql": "update counter set n = n + 1"}]

    def count_up(_: int) -> int:
        answer = sql.client.post("/v1/transaction", json={"statements": statements})
        assert answer.json()["success"], answer.text
        attempts: int = answer.json()["attempts"]
        return attempts

    with ThreadPoolExecutor(8) as pool:
        attempts = sum(pool.map(count_up, range(40)))
    after = scrape(service)
    kind = {"kind": "transaction"}
    assert sql.value("select n from counter") == 40
    assert after.value("attempts_total", **kind) - before.value("attempts_total", **kind) == attempts
    assert after.value("retries_total", **kind) - before.value("retries_total", **kind) == attempts - 40
    assert after.value("conflicts_total", **kind) - before.value("conflicts_total", **kind) == attempts - 40
    assert after.value("engine_seconds_count", **kind) - before.value("engine_seconds_count", **kind) == attempts


@needs("two_phase_commit")
def test_what_recovery_commits_is_counted(service: Service, sql: Sql) -> None:
    """A transaction that was prepared and left behind: the page says when it was found."""
    before = scrape(service).value("in_doubt_recovered_total")
    sql("create table left_behind (a int)")
    with psycopg.connect(service.conninfo("tuplegate")) as metadata:
        row = metadata.execute("select id from installation").fetchone()
    assert row is not None
    database = str(sql.value("select current_database()"))
    with psycopg.connect(service.conninfo(database), autocommit=True) as connection:
        connection.execute(f"set session authorization {database}_w".encode())
        connection.execute("begin isolation level read committed")
        connection.execute("insert into left_behind values (1)")
        connection.execute(f"prepare transaction 'tuplegate_{row[0]}_metrics'".encode())
    eventually(lambda: scrape(service).value("in_doubt_recovered_total") == before + 1, 30)
    assert sql.value("select a from left_behind") == 1


def test_streams(service: Service, client: httpx.Client) -> None:
    """An open one is seen while it is read, its rows when it has ended."""
    before = scrape(service)
    body = json.dumps({"sql": "/*+ STREAM */ select n, repeat('x', 1000) from generate_series(1, 100000) n"})
    with client.stream("POST", "/v1/query", content=body, headers={"Content-Type": "application/json"}) as answer:
        lines = answer.iter_lines()
        next(lines)
        during = scrape(service)
        assert during.value("streams_open") == 1
        assert during.value("streams_total") - before.value("streams_total") == 1
        assert during.value("engine_connections", state="open") > during.value("engine_connections", state="idle")
        for _ in lines:
            pass
    eventually(lambda: scrape(service).value("streams_open") == 0)
    after = scrape(service)
    assert after.value("stream_rows_total") - before.value("stream_rows_total") == 100_000
    assert after.value("attempts_total", kind="stream") - before.value("attempts_total", kind="stream") == 1


def test_a_client_that_leaves_has_no_status(service: Service, client: httpx.Client) -> None:
    left = {**QUERY, "status": "none"}
    before = scrape(service).value("requests_total", **left)
    with pytest.raises(httpx.ReadTimeout):
        client.post("/v1/query", json={"sql": "select pg_sleep(20)"}, timeout=0.5)
    eventually(lambda: scrape(service).value("requests_total", **left) == before + 1)


def test_quota_refusals(service: Service) -> None:
    limited = new_organization(service, "tiny")
    before = scrape(service)
    while limited.control.ask("GET", "/v1/organization").status_code != 429:
        pass
    assert scrape(service).value("quota_refusals_total") - before.value("quota_refusals_total") == 1


@needs("lock_table")
def test_pool_and_lanes(service: Service, sql: Sql) -> None:
    """Statements that run have a connection and a place in a lane; what is more than fits waits, and is seen to."""
    sql("create table locked (a int)")
    running, size = 32, 16
    requests = running + 8
    database = str(sql.value("select current_database()"))
    limits = httpx.Limits(max_connections=requests)
    with (
        psycopg.connect(service.conninfo(database)) as holder,
        httpx.Client(base_url=service.url, headers=sql.client.headers, timeout=60, limits=limits) as many,
        ThreadPoolExecutor(requests) as pool,
    ):
        holder.execute("lock table locked")
        try:
            waiting = [pool.submit(Sql(many).answer, "select * from locked") for _ in range(requests)]
            with httpx.Client() as asking:
                eventually(lambda: scrape(service, asking).value("requests_running", plane="data") == requests, 25)
                eventually(lambda: scrape(service, asking).value("engine_connections_waiting") == running - size, 25)
                page = scrape(service, asking)
            assert page.value("lane_requests", state="running") == running
            assert page.value("lane_requests", state="waiting") == requests - running
            assert page.value("engine_connections", state="open") >= size
        finally:
            holder.rollback()
        assert {answer.result().status_code for answer in waiting} == {200}
    page = scrape(service)
    assert page.value("lane_requests", state="waiting") == page.value("lane_requests", state="running") == 0
    assert page.value("engine_connections_waiting") == 0


def test_usage_by_database(service: Service) -> None:
    """By the ids that the control plane shows; a database named in a header counts for itself."""
    made = new_organization(service)
    second = made.control.post("/v1/databases", {"name": "second"})
    [first] = [item for item in made.control.all("/v1/databases") if item["id"] != second["id"]]
    for _ in range(3):
        made.control.sql()("select * from generate_series(1, 10)")
    made.control.sql(database="second").fails("select 1/0")
    page = scrape(service)
    of_first = {"organization": made.id, "database": first["id"]}
    of_second = {"organization": made.id, "database": second["id"]}
    assert page.value("database_rows_total", **of_first) == 30
    assert page.value("database_errors_total", **of_first) == 0
    assert (page.value("database_requests_total", **of_second), page.value("database_errors_total", **of_second)) == (
        1,
        1,
    )
    assert page.value("database_bytes_total", **of_first) > 0


def test_what_is_on_record_still_counts(service: Service) -> None:
    """Usage is put on record every few seconds, and taken off the counts then; the page does not go down."""
    made = new_organization(service)
    made.control.sql()("select 1")
    labels = {"organization": made.id}
    before = scrape(service).total("database_requests_total", **labels)
    eventually(lambda: bool(made.control.get("/v1/usage")["items"]))
    assert scrape(service).total("database_requests_total", **labels) > before


def test_processes_and_the_guard(service: Service, abilities: Abilities) -> None:
    page = scrape(service)
    assert page.value("worker_starts_total") == 1
    assert page.value("worker_resident_bytes", worker="0") > 10 * 2**20
    assert page.value("worker_open_fds", worker="0") > 5
    assert page.value("worker_cpu_seconds_total") > 0
    assert page.value("worker_start_time_seconds", worker="0") > 1.7e9
    if abilities.can("predicate_locks"):
        assert page.value("serializable_slots") > 0
        assert page.value("serializable_guarded") == 1
        assert page.value("serializable_safe_seconds") > 0


def test_every_metric_is_in_the_table(service: Service, abilities: Abilities) -> None:
    """And the types are those of the table; a counter's name ends as the format wants it."""
    page = scrape(service)
    known = {metric.full_name.removesuffix("_total"): metric for metric in METRICS.values()}
    for name, family in page.families.items():
        assert family.type == known[name].kind.value
        assert family.documentation == known[name].help
    missing = known.keys() - page.families.keys()
    expected = {"tuplegate_replica_lag_seconds", "tuplegate_replica_usable"}
    if not abilities.can("two_phase_commit"):
        expected |= {"tuplegate_in_doubt_settled", "tuplegate_snapshot_reads"}
    assert missing == expected, "it has no replicas"


# -- bounds ---------------------------------------------------------------------------------------------------------


def test_unknown_paths_and_methods_make_no_series(service: Service, client: httpx.Client) -> None:
    """A thousand paths that nobody knows are one series; so are methods, and names in paths that are known."""
    client.get("/nope")
    client.request("BREW", "/nope")
    client.get("/v1/transaction/none")
    before = scrape(service)
    other = {"plane": "data", "method": "other", "route": "other", "status": "4xx"}
    for number in range(UNKNOWN_PATHS):
        client.get(f'/nope-{number}"\\')
    for number in range(20):
        client.request(f"BREW{number}", "/v1/query")
        client.get(f"/v1/transaction/none-{number}")
        client.get(f"/capabilities/none-{number}")
    after = scrape(service)
    assert after.value("requests_total", **other) - before.value("requests_total", **other) >= UNKNOWN_PATHS
    routes = {(labels["method"], labels["route"]) for labels in after.series("requests_total")}
    assert not any("nope" in route or "none-" in route or "BREW" in method for method, route in routes)
    # /capabilities/{name} was not asked for before: 1 series of requests, one histogram.
    assert len(after) - len(before) < 25
    assert {labels["code"] for labels in after.series("errors_total")} <= ERRORS.keys()


@needs("postgresql")  # elsewhere it takes minutes to make so many databases
def test_many_databases_are_bounded(service: Service, operator: Control) -> None:
    """With more databases than are shown, the rest is one series, and the sum is still that of all requests."""
    organizations = DATABASES_SHOWN + 5
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: new_organization(service), range(organizations)))
    before = scrape(service)
    for one in made:
        one.control.get("/v1/organization")
    after = scrape(service)
    assert len(after.series("database_requests_total")) == DATABASES_SHOWN + 1
    assert after.value("database_requests_total", organization="other", database="other") > 0
    # And the scrape before, which is an operator's request like any other.
    assert after.total("database_requests_total") - before.total("database_requests_total") == organizations + 1
