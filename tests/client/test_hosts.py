"""The client over TLS, and through the alias."""

import pytest

from tests.service import Service, new_data_dir, remove, start_service
from tuplegate.client import Client, ConnectionFailed


def test_a_certificate_of_its_own_is_trusted_when_it_is_given() -> None:
    """And otherwise refused at once, before the key is sent."""
    data_dir = new_data_dir()
    running = start_service(data_dir, "--tls", "self-signed")
    certificate = str(running.data_dir / "tls" / "certificate.pem")
    with Client(running.url, running.key, control_url=running.control_url, ca_file=certificate) as client:
        assert client.query("select 1").value() == 1
        assert list(client.stream("select 2 as n")) == [{"n": 2}]
        assert client.databases.list()
    with Client(running.url, running.key) as stranger, pytest.raises(ConnectionFailed, match="CERTIFICATE") as caught:
        stranger.query("select 1")
    assert caught.value.hint is not None
    assert "ca_file" in caught.value.hint
    assert running.stop() == 0
    remove(data_dir)


def test_the_alias_serves_the_client_too(service: Service) -> None:
    """Queries, transactions with their keys, and streams."""
    with Client(service.alias_url, service.key, control_url=service.control_url) as client:
        client.query("create table through_alias (n int)")
        client.transaction(["insert into through_alias values (1)", "insert into through_alias values (2)"])
        assert [row["n"] for row in client.stream("select n from through_alias order by n")] == [1, 2]
        client.query("vacuum through_alias")
        client.query("drop table through_alias")
