"""Which groups a server offers for the key that it agrees on with a client."""

import ssl
from datetime import UTC, datetime

import pytest

from tuplegate.http.tls import groups
from tuplegate.http.tls.certificates import load
from tuplegate.http.tls.groups import offer_curves
from tuplegate.http.tls.self_signed import provide

CURVES = ["X25519", "prime256v1", "secp384r1"]
FIELDS = ["ffdhe2048", "ffdhe8192", "secp521r1"]


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    return load(provide(tmp_path_factory.mktemp("tls") / "files", ["localhost"], datetime.now(UTC)))[1]


def agree(server_context: ssl.SSLContext, group: str) -> None:
    """Raises SSLError where the server refuses the one group that the client knows."""
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname, client_context.verify_mode = False, ssl.CERT_NONE
    client_context.set_ecdh_curve(group)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    client = client_context.wrap_bio(to_client, to_server)
    agreed = 0
    while agreed < 2:
        agreed = 0
        for side in (client, server):
            try:
                side.do_handshake()
                agreed += 1
            except ssl.SSLWantReadError:
                pass


@pytest.mark.parametrize("group", CURVES)
def test_curves_are_offered(context: ssl.SSLContext, group: str) -> None:
    agree(context, group)


@pytest.mark.parametrize("group", FIELDS)
def test_what_takes_the_server_long_is_not(context: ssl.SSLContext, group: str) -> None:
    with pytest.raises(ssl.SSLError):
        agree(context, group)


def test_there_is_no_finite_field_in_older_versions_either(context: ssl.SSLContext) -> None:
    names = [cipher["name"] for cipher in context.get_ciphers()]
    assert all(name.startswith(("TLS_", "ECDHE-")) for name in names)


def test_where_no_list_can_be_given_there_is_one_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "_LAST", (3, 10))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    offer_curves(context)
    for group in (*FIELDS, "X25519"):
        with pytest.raises(ssl.SSLError):
            agree(context, group)
