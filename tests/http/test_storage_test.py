"""`GET /storage/test` finds out whether the engine gives back what it was given."""

import asyncio
from typing import Any

import httpx
import psycopg
import pytest

from tests.inside import engine_of, owner, scratch_schemas, tenant_of
from tests.service import Service, needs_bundled
from tests.waiting import eventually
from tuplegate.data_plane.storage_test import StorageTrial
from tuplegate.engine.port import Access, Target
from tuplegate.protocol.errors import ServiceError


@pytest.mark.parametrize("size", [1, 4096, 16 * 2**20])
def test_a_payload_survives(service: Service, client: httpx.Client, size: int) -> None:
    """From one byte up to the most; every step has its time, and nothing is left."""
    answer = client.get(f"/storage/test?bytes={size}")
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert (body["success"], body["bytes"], body["durable"]) == (True, size, True)
    assert list(body["steps_us"]) == ["write", "commit", "read", "compare", "delete"]
    assert all(microseconds >= 0 for microseconds in body["steps_us"].values())
    assert len(body["sha256"]) == 64
    with owner(service) as inside:
        assert scratch_schemas(inside) == []


def test_the_payload_is_a_mebibyte_and_another_every_time(client: httpx.Client) -> None:
    """Unless told otherwise."""
    bodies = [client.get("/storage/test").json() for _ in range(2)]
    assert [body["bytes"] for body in bodies] == [2**20] * 2
    assert bodies[0]["sha256"] != bodies[1]["sha256"]


@pytest.mark.parametrize("query", ["bytes=0", "bytes=16777217", "bytes=-1", "bytes=1e3", "bytes=", "bytes=1&bytes=1"])
def test_a_bad_size_is_refused(client: httpx.Client, query: str) -> None:
    """By its name."""
    answer = client.get(f"/storage/test?{query}")
    assert answer.status_code == 400
    assert "bytes" in answer.json()["error"]["message"]


@needs_bundled
def test_an_engine_that_can_be_torn_by_a_crash_is_not_durable(service: Service, client: httpx.Client) -> None:
    """The answer says what the engine's settings make of a commit."""
    with owner(service) as inside:
        inside.execute("alter system set full_page_writes = off")
        try:
            reload(inside, "off")
            body = client.get("/storage/test?bytes=1").json()
            assert (body["durable"], body["engine_settings"]["full_page_writes"]) == (False, "off")
        finally:
            inside.execute("alter system reset full_page_writes")
            reload(inside, "on")
    assert client.get("/storage/test?bytes=1").json()["durable"] is True


def reload(inside: "psycopg.Connection[tuple[Any, ...]]", value: str) -> None:
    """Returns when the server's settings are the new ones for connections that are yet to come."""
    loaded = inside.execute("select pg_conf_load_time()").fetchone()
    inside.execute("select pg_reload_conf()")
    info = inside.info

    def is_loaded() -> bool:
        with psycopg.connect(info.dsn, password=info.password) as new:
            row = new.execute("select pg_conf_load_time(), current_setting('full_page_writes')").fetchone()
        return row is not None and loaded is not None and row[0] > loaded[0] and row[1] == value

    eventually(is_loaded)


@pytest.mark.parametrize(
    "damage",
    [
        "update {table} set body = set_byte(body, 77, (get_byte(body, 77) + 1) % 256)",
        "update {table} set body = substr(body, 2)",
        "delete from {table}",
    ],
)
def test_other_bytes_are_an_alarm(service: Service, damage: str) -> None:
    """One flipped byte, one that is missing, or all of them."""

    async def trial() -> None:
        async with (
            engine_of(service) as engine,
            StorageTrial.open(engine, Target(tenant_of(service), Access.WRITE), 4096) as trial,
        ):
            await trial.write()
            await trial.commit()
            with owner(service) as other:
                other.execute(damage.format(table=f"{scratch_schemas(other)[0]}.payload"))
            await trial.read()
            await trial.compare()

    with pytest.raises(ServiceError) as alarm:
        asyncio.run(trial())
    assert (alarm.value.body.code, alarm.value.status) == ("storage_mismatch", 500)
    with owner(service) as inside:
        assert scratch_schemas(inside) == []


def test_what_is_read_comes_from_another_connection(service: Service) -> None:
    """Before the commit it sees nothing."""

    async def trial() -> None:
        async with (
            engine_of(service) as engine,
            StorageTrial.open(engine, Target(tenant_of(service), Access.WRITE), 16) as trial,
        ):
            await trial.write()
            await trial.read()

    with pytest.raises(Exception, match="does not exist"):
        asyncio.run(trial())
