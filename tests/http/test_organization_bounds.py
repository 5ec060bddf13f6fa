"""Bounds of an organization as a whole: the disk of all its databases together, and their number."""

import pytest

from tests.control import Control, Organization, new_organization
from tests.needs import needs
from tests.service import Service, Sql
from tests.waiting import eventually

MB = 2**20
MEASURED_S = 120.0
"""What was measured is known by then, on a busy machine too."""


@pytest.fixture
def bounded(service: Service) -> Organization:
    made = new_organization(service)
    made.control.post("/v1/databases", {"name": "second"})
    return made


def measure(organization: Organization) -> int:
    return sum(item["size_bytes"] for item in organization.control.all("/v1/databases"))


def bound(operator: Control, organization: Organization, **limits: int | None) -> None:
    operator.patch(f"/v1/organizations/{organization.id}", {"limits": limits})


def is_refused(sql: Sql) -> bool:
    body = sql.answer("insert into filled values ('x')").json()
    return not body["success"] and body["error"]["sqlstate"] == "53100"


@needs("postgresql")
def test_the_databases_of_an_organization_share_its_disk(operator: Control, bounded: Organization) -> None:
    """What one takes the others lack; reading and removing go on, and new databases and copies are refused."""
    main, second = bounded.control.sql(), bounded.control.sql(database="second")
    for sql in (main, second):
        sql("create table filled (t text)")
    second("insert into filled select md5(g::text) from generate_series(1, 200000) g")
    most = measure(bounded) - 4 * MB
    bound(operator, bounded, organization_bytes_max=most)
    assert bounded.control.get("/v1/organization")["limits"]["organization_bytes"] == most
    eventually(lambda: is_refused(main) and is_refused(second), MEASURED_S)
    assert main.value("select count(*) from filled") >= 0
    for body in ({"name": "third"}, {"name": "third", "clone_of": "main"}):
        error = bounded.control.refused(409, "organization_full", "POST", "/v1/databases", body)
        assert "organization_bytes_max" in error["hint"]
    second("truncate filled")
    eventually(lambda: not is_refused(main), MEASURED_S)


@needs("postgresql")
def test_a_copy_counts_before_it_is_made(operator: Control, bounded: Organization) -> None:
    """An organization whose room is enough for an empty database is told that it is not for a copy."""
    room = measure(bounded) + 2 * MB
    bound(operator, bounded, organization_bytes_max=room)
    bounded.control.refused(409, "organization_full", "POST", "/v1/databases", {"name": "c", "clone_of": "second"})
    bound(operator, bounded, organization_bytes_max=None)
    assert bounded.control.get("/v1/organization")["limits"]["organization_bytes"] is None


def test_the_number_of_databases_is_set_per_organization(operator: Control, bounded: Organization) -> None:
    bound(operator, bounded, databases_per_organization=2)
    assert bounded.control.get("/v1/organization")["limits"]["databases"] == 2
    bounded.control.refused(409, "too_many_databases", "POST", "/v1/databases", {"name": "third"})
    bound(operator, bounded, databases_per_organization=3)
    bounded.control.post("/v1/databases", {"name": "third"})
