"""Which groups a server offers for the key that it agrees on with a client."""

import os
import ssl
from datetime import UTC, datetime

import pytest

from tuplegate.http.tls import certificates as tls_module
from tuplegate.http.tls.certificates import TlsContext, TlsFiles
from tuplegate.http.tls.groups import COMMON, CURVES, choose_curve
from tuplegate.http.tls.self_signed import provide

FIELDS = ["ffdhe2048", "ffdhe8192", "secp521r1"]
RETRY = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
ALL = frozenset(CURVES.values())


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return provide(tmp_path_factory.mktemp("tls") / "files", ["localhost"], datetime.now(UTC))


@pytest.fixture(scope="module")
def tls(files: TlsFiles) -> TlsContext:
    return TlsContext(files)


class Client:
    """One that shakes hands in memory. `group` is the only one that it knows, if there is one."""

    def __init__(self, group: str | None = None, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.maximum_version = newest
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if group is not None:
            context.set_ecdh_curve(group)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self.incoming, self.outgoing)
        self.is_done = False

    def go_on(self) -> bytes:
        """Return what it sends next."""
        try:
            self._tls.do_handshake()
            self.is_done = True
        except ssl.SSLWantReadError:
            pass
        return self.outgoing.read()


def agree(tls: TlsContext, client: Client) -> bytes:
    """Return all that the server has sent. Raises SSLError where it refuses the client."""
    sent, said = b"", client.go_on()
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = tls.choose(said).wrap_bio(to_server, to_client, server_side=True)
    while not client.is_done:
        to_server.write(said)
        try:
            server.do_handshake()
        except ssl.SSLWantReadError:
            pass
        answer = to_client.read()
        sent += answer
        client.incoming.write(answer)
        said = client.go_on()
    return sent


@pytest.mark.parametrize("group", CURVES.values())
def test_curves_are_offered(tls: TlsContext, group: str) -> None:
    agree(tls, Client(group))


def test_clients_of_the_older_version_agree_too(tls: TlsContext) -> None:
    """There the certificate's curve is another one than that of the context."""
    agree(tls, Client(newest=ssl.TLSVersion.TLSv1_2))


@pytest.mark.parametrize("group", FIELDS)
def test_what_takes_the_server_long_is_not(tls: TlsContext, group: str) -> None:
    with pytest.raises(ssl.SSLError):
        agree(tls, Client(group))


@pytest.mark.parametrize("group", [None, *CURVES.values()])
def test_no_client_is_asked_for_another_hello(tls: TlsContext, group: str | None) -> None:
    """A round trip more for each connection."""
    assert RETRY not in agree(tls, Client(group))


def test_every_context_has_one_curve(tls: TlsContext) -> None:
    """So it does not matter for safety which one a hello leads to."""
    assert set(tls.contexts) == ALL
    for context in tls.contexts.values():
        names = [cipher["name"] for cipher in context.get_ciphers()]
        assert all(name.startswith(("TLS_", "ECDHE-")) for name in names), "older versions would have finite fields"
    for curve, context in tls.contexts.items():
        for group in {*ALL, *FIELDS} - {curve}:
            server = context.wrap_bio(incoming := ssl.MemoryBIO(), ssl.MemoryBIO(), server_side=True)
            incoming.write(Client(group).go_on())
            with pytest.raises(ssl.SSLError, match=r"(?i)no_suitable|no_shared"):
                server.do_handshake()


def test_a_hello_that_cannot_be_read_gets_the_common_curve() -> None:
    hello = Client("secp384r1").go_on()
    assert choose_curve(hello, ALL) == "secp384r1"
    groups = hello.index(bytes.fromhex("000a000400020018"))
    for end in range(groups + 8):
        assert choose_curve(hello[:end], ALL) == COMMON
    payload = hello[5:]
    in_two = b"".join(b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part for part in (payload[:40], payload[40:]))
    assert choose_curve(in_two, ALL) == COMMON
    for size in (0, 1, 5, 100, 16_000):
        assert choose_curve(bytes(size), ALL) == COMMON
        assert choose_curve(os.urandom(size), ALL) in ALL


@pytest.mark.parametrize(("count", "curve"), [(30, "secp384r1"), (64, COMMON)])
def test_a_hello_is_looked_at_for_a_bounded_time(count: int, curve: str) -> None:
    """One with so many extensions in front of the one that matters."""
    hello = Client("secp384r1").go_on()
    groups = hello.index(bytes.fromhex("000a000400020018"))
    stuffed = hello[5:groups] + bytes(4 * count) + hello[groups:]
    assert choose_curve(hello[:3] + len(stuffed).to_bytes(2, "big") + stuffed, ALL) == curve


def test_the_client_says_what_it_likes_best() -> None:
    hello = Client().go_on()
    assert choose_curve(hello, ALL) == "X25519"
    assert choose_curve(hello, {COMMON}) == COMMON


def test_a_curve_that_openssl_does_not_have_is_not_offered(files: TlsFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_module, "CURVES", {0x1D: "no such curve", 0x17: COMMON})
    tls = TlsContext(files)
    assert set(tls.contexts) == {COMMON}
    agree(tls, Client())
