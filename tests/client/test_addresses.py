"""Where the client finds the control plane: as it is told, or as the service says of itself."""

from typing import Any

import pytest

from tests.service import Service
from tuplegate.client import AsyncClient, Client
from tuplegate.client.addresses import read_control_url


@pytest.fixture(autouse=True)
def without_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TUPLEGATE_URL", "TUPLEGATE_CONTROL_URL", "TUPLEGATE_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("plane", ["url", "alias_url"])
def test_one_address_is_enough(service: Service, plane: str) -> None:
    """The service is asked for the other when it is needed, and once."""
    with Client(getattr(service, plane), service.key) as client:
        assert client.query("select 1").value() == 1
        assert client.control_url is None
        assert client.organization().id
        assert [database.name for database in client.databases.list()][:1]
        assert client.control_url == client.find_control_url() == service.control_url


async def _organization(service: Service) -> str:
    async with AsyncClient(service.url, service.key) as client:
        return (await client.organization()).id


def test_one_address_is_enough_for_the_asynchronous_client(service: Service, database: Client) -> None:
    """They are made of one source."""
    import asyncio

    assert asyncio.run(_organization(service)) == database.organization().id


@pytest.mark.parametrize(
    ("url", "banner", "found"),
    [
        ("https://a.example", {"control_url": "https://b.example"}, "https://b.example"),
        ("http://127.0.0.1:9", {"control_url": "http://127.0.0.1:7/"}, "http://127.0.0.1:7"),
        ("http://127.0.0.1:8080", {}, "http://127.0.0.1:8082"),
        ("https://a.example", {}, "https://a.example"),
        ("https://a.example", {"control_url": None}, "https://a.example"),
        ("https://a.example", {"control_url": 5}, "https://a.example"),
        ("https://a.example", {"control_url": "b.example"}, "https://a.example"),
        ("https://a.example", {"control_url": "http://b.example"}, "https://a.example"),
        ("http://a.example", {"control_url": "https://b.example"}, "http://a.example"),
        ("https://a.example", {"control_url": "https://127.0.0.1:8082"}, "https://a.example"),
        ("https://a.example", {"control_url": "https://user:secret@b.example"}, "https://a.example"),
    ],
)
def test_the_key_goes_to_no_less_safe_a_place(url: str, banner: dict[str, Any], found: str) -> None:
    """Not without TLS from a service that has it, and not to a port of this machine from a service elsewhere."""
    assert read_control_url(banner, url) == found


@pytest.mark.parametrize("params", [5, "five", {"a": 1}])
def test_parameters_that_are_no_list_are_refused_with_the_right_form(database: Client, params: Any) -> None:
    """Before anything is sent."""
    with pytest.raises(TypeError, match=r"given as \[value\]"):
        database.query("select $1::text", params)
