"""The control plane and open transactions over two service processes with two workers each, on one engine: they agree
on everything."""

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
import pytest

from tests.control import WINDOW_S, Control, Organization, at_once, disagreements, in_one_window, new_organization
from tests.external import ExternalServer
from tests.http.test_open_transactions import Open, rows
from tests.service import Service, Sql, new_data_dir, remove, remove_installation, start_service
from tests.system.test_definitions_across import CASES, OFTEN, REMEMBER, find_seen
from tests.waiting import eventually
from tests.workers import Caller, connect

LIMIT = 200


@pytest.fixture(scope="module")
def server() -> Iterator[ExternalServer]:
    running = ExternalServer(max_connections="200", max_prepared_transactions="200")
    yield running
    running.remove()


@pytest.fixture(scope="module")
def pair(server: ExternalServer) -> Iterator[list[Service]]:
    env = {"TUPLEGATE_ENGINE": server.url("across"), "TUPLEGATE_ENGINE_CONNECTIONS_MAX": "60"}
    with ThreadPoolExecutor(2) as pool:
        started = [pool.submit(start_service, new_data_dir(), "--workers", "2", env=env) for _ in range(2)]
        services = [each.result() for each in started]
    [key] = [service.key for service in services if service.key]
    for service in services:
        service.key = key
    yield services
    for service in services:
        assert service.stop() == 0
        remove(service.data_dir)
    remove_installation(server.url("across"))


def fresh(service: Service, token: str) -> int:
    """The status of a query over a new connection, which any worker may have taken."""
    with service.client(token) as client:
        return Sql(client).answer("select 1").status_code


def test_a_quota_is_exact_over_all_of_them(server: ExternalServer, pair: list[Service]) -> None:
    """As many as the limit are let through in a window, not one more and not one less."""

    def now() -> float:
        return float(str(server.execute("select extract(epoch from clock_timestamp())::float8")[0][0]))

    def flood(organization: Organization, place: int) -> Counter[int]:
        seen: Counter[int] = Counter()
        with pair[place % 2].client(organization.key) as client:
            for _ in range(25):
                answer = client.post("/query", content="select 1", headers={"Content-Type": "text/plain"})
                seen[answer.status_code] += 1
        return seen

    def floods() -> Counter[int]:
        organization = new_organization(pair[0], "free")
        seen = sum(at_once([partial(flood, organization, place) for place in range(12)]), Counter())
        # Permits that a worker held and did not use are given back; whoever asks on gets them, and nobody more.
        ends = now() // WINDOW_S * WINDOW_S + WINDOW_S
        with pair[0].client(organization.key) as client:
            refused_for = 0
            while refused_for < 20 or (seen[200] < LIMIT and now() < ends):
                status = client.post("/query", content="select 1", headers={"Content-Type": "text/plain"}).status_code
                refused_for = 0 if status == 200 else refused_for + 1
                seen[status] += 1
                time.sleep(0.05)
        return seen

    seen = in_one_window(now, floods)
    assert set(seen) == {200, 429}
    assert seen[200] == LIMIT


def test_of_two_who_make_the_same_name_one_wins(pair: list[Service]) -> None:
    """Through different processes, so that nothing but the catalog decides; databases and organizations."""
    askers = [Control(service, service.key) for service in pair]
    for number in range(6):
        for path in ("/v1/databases", "/v1/organizations"):

            def create(asker: Control, path: str = path, name: str = f"raced-{number}") -> httpx.Response:
                return asker.ask("POST", path, {"name": name})

            answers = at_once([lambda asker=asker, create=create: create(asker) for asker in askers])  # type: ignore[misc]
            assert sorted(answer.status_code for answer in answers) == [201, 409], [a.text for a in answers]
    assert disagreements(pair[0]).none


def test_of_two_who_move_the_default_both_are_heard(pair: list[Service]) -> None:
    """There is exactly one default at every moment."""
    key = new_organization(pair[0]).key
    askers = [Control(service, key) for service in pair]
    for name in ("one", "two"):
        askers[0].post("/v1/databases", {"name": name})
    for _ in range(15):
        at_once(
            [
                lambda: askers[0].patch("/v1/databases/one", {"default": True}),
                lambda: askers[1].patch("/v1/databases/two", {"default": True}),
            ]
        )
        assert len([item for item in askers[0].all("/v1/databases") if item["default"]]) == 1


def test_a_database_is_not_deleted_while_it_becomes_the_default(pair: list[Service]) -> None:
    """One of the two is refused, and there is a default that works."""
    key = new_organization(pair[0]).key
    first, second = (Control(service, key) for service in pair)
    for number in range(3):
        name = f"torn-{number}"
        first.post("/v1/databases", {"name": name})
        changed, deleted = at_once(
            [
                lambda name=name: first.ask("PATCH", f"/v1/databases/{name}", {"default": True}),  # type: ignore[misc]
                lambda name=name: second.ask("DELETE", f"/v1/databases/{name}"),  # type: ignore[misc]
            ]
        )
        statuses = sorted([changed.status_code, deleted.status_code])
        assert statuses in ([200, 404], [200, 409]), (changed.text, deleted.text)
        assert [item["state"] for item in first.all("/v1/databases") if item["default"]] == ["active"]


def test_what_is_revoked_through_one_is_refused_by_all(pair: list[Service]) -> None:
    """A key, a session and the key of a deleted database, within five seconds, by every worker."""
    control = Control(pair[0], pair[0].key)
    control.post("/v1/databases", {"name": "short-lived"})
    revoked = control.post("/v1/keys", {"name": "k", "scopes": ["read"]})
    bound = control.post("/v1/keys", {"name": "b", "scopes": ["read"], "database": "short-lived"})
    session = control.post("/v1/session")["token"]
    tokens = [revoked["key"], bound["key"], session]
    clients = [(token, service.client(token)) for token in tokens for service in pair for _ in range(4)]
    try:
        for _, client in clients:  # every worker remembers them now
            assert Sql(client).value("select 1") == 1
        control.delete("/v1/databases/short-lived")
        control.delete(f"/v1/keys/{revoked['id']}")
        Control(pair[0], session).delete("/v1/session")
        eventually(lambda: all(Sql(client).answer("select 1").status_code == 401 for _, client in clients))
    finally:
        for _, client in clients:
            client.close()
    assert {fresh(service, token) for service in pair for token in tokens} == {401}


def test_a_source_that_another_process_uses_is_copied(pair: list[Service]) -> None:
    """Whoever holds connections to it lets go of them, asks again, and loses nothing."""
    control = Control(pair[0], pair[0].key)
    control.post("/v1/databases", {"name": "shared"})
    control.sql(database="shared")("create table writes (client int, n int, primary key (client, n))")
    done: list[bool] = []

    def write(place: int) -> int:
        sql = Control(pair[place % 2], pair[0].key).sql(database="shared")
        n = 0
        while not done:
            assert sql("insert into writes values ($1, $2)", [place, n])["affected_rows"] == 1
            n += 1
        return n

    def copy() -> int:
        try:
            observer = Control(pair[1], pair[0].key).sql(database="shared")
            eventually(lambda: observer.value("select count(distinct client) from writes") == 4, 30)
            control.post("/v1/databases", {"name": "shared-copy", "clone_of": "shared"})
        finally:
            done.append(True)
        return 0

    written = at_once([*(lambda place=place: write(place) for place in range(4)), copy])[:4]
    counts = "select client, count(*), max(n) + 1 from writes group by client order by client"
    assert control.sql(database="shared").rows(counts, row_mode="arrays") == [[i, n, n] for i, n in enumerate(written)]
    for client, here, last in control.sql(database="shared-copy").rows(counts, row_mode="arrays"):
        assert 0 < here == last <= written[client]


def test_an_open_transaction_is_found_on_the_other_machine(pair: list[Service]) -> None:
    here, there = pair
    with here.client() as one, there.client() as other:
        one.post("/v1/query", json={"sql": "create table held (id int)"})
        opened = Open(one, statement="insert into held values (1)")
        for _ in range(6):  # over new connections, which either worker may take
            with there.client() as opened.client:
                assert opened.query("insert into held values (2)")["affected_rows"] == 1
                assert opened.state["state"] == "open"
        opened.client = other
        assert opened.commit()["success"]
        assert rows(one, "select count(*) from held") == [7]


def test_a_commit_that_is_sent_to_both_machines_at_once(pair: list[Service]) -> None:
    """It is carried out once, and whoever asks is told the same; so it is where one of the two aborts it."""
    with pair[0].client() as one, pair[1].client() as other:
        one.post("/v1/query", json={"sql": "create table twice (id int)"})
        for number in range(20):
            opened = Open(one if number % 2 else other, statement=f"insert into twice values ({number})")
            second = "abort" if number >= 10 else "commit"
            path = f"/v1/transaction/{opened.id}/"
            answers = at_once([partial(one.post, path + "commit"), partial(other.post, path + second)])
            states = {client.get(f"/v1/transaction/{opened.id}").json()["state"] for client in (one, other)}
            committed = rows(one, f"select 1 from twice where id = {number}")
            assert states == {"committed" if committed else "aborted"}, [answer.text for answer in answers]
            assert committed in ([], [1])
            assert committed or second == "abort", [answer.text for answer in answers]
            assert (
                (answers[0].status_code, answers[0].json()["success"]) == (200, True)
                or not committed
                or (answers[0].json()["error"]["code"] == "transaction_in_use")
            ), answers[0].text


def test_with_its_machine_an_open_transaction_is_lost(server: ExternalServer, pair: list[Service]) -> None:
    env = {"TUPLEGATE_ENGINE": server.url("across"), "TUPLEGATE_ENGINE_CONNECTIONS_MAX": "30"}
    third = start_service(new_data_dir(), env=env)
    third.key = pair[0].key
    with third.client() as client, pair[0].client() as other:
        other.post("/v1/query", json={"sql": "create table gone (id int)"})
        opened = Open(client, statement="insert into gone values (1)")
        opened.client = other
        assert opened.state["state"] == "open"
        third.process.kill()
        third.process.wait()
        eventually(lambda: opened.state.get("state") == "aborted")
        assert opened.state["reason"] == "lost"
        assert rows(other, "select count(*) from gone") == [0]
    remove(third.data_dir)


def test_a_change_of_definitions_is_seen_at_once(pair: list[Service]) -> None:
    """They share no memory, so nothing is kept of what the other one could change."""
    for case in CASES:
        token = new_organization(pair[0]).control.token
        here, there = [Caller(service, connect(service), token) for service in pair]
        try:
            assert find_seen(here, there, case) == case.seen, case.name
        finally:
            here.close()
            there.close()


def test_code_leaves_no_value_on_a_connection(pair: list[Service]) -> None:
    """Also where another process has just stored it."""
    token = new_organization(pair[0]).control.token
    here, there = [Caller(service, connect(service), token) for service in pair]
    for _ in range(OFTEN):
        here.sql("select 1")
    there.sql(REMEMBER)
    here.sql("select remember()")
    for _ in range(OFTEN):
        [row] = here.sql("select current_setting('app.seen', true) as seen")
        assert row["seen"] in (None, "")
    here.close()
    there.close()
