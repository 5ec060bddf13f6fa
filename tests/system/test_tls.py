"""HTTPS served by the service itself: certificates given and made, and that TLS takes nothing away from HTTP."""

import contextlib
import http.client
import os
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.http.test_bad_input import JSON_TYPE, TEXT_TYPE, answers_in, ask, connect, head, post, read_all, talk
from tests.http.test_streaming import ENDLESS, Watch
from tests.servers import needs_linux
from tests.service import Service, Sql, new_data_dir, remove, start_service
from tests.streams import SSE, Stream, tell
from tests.system.test_service import RUN_S, Start, clear, run, start
from tests.waiting import eventually
from tuplegate.http.tls.certificates import fingerprint
from tuplegate.http.tls.self_signed import provide

__all__ = ["start"]  # a fixture

DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def secure() -> Iterator[Service]:
    """A service with a certificate of its own making, and little patience."""
    data_dir = new_data_dir()
    flags = ("--tls", "self-signed", "--reader-timeout-s", "2", "--header-timeout-s", "2")
    running = start_service(data_dir, *flags)
    yield running
    assert running.stop() == 0
    assert "Traceback" not in running.log
    remove(data_dir)


@pytest.fixture
def watch(secure: Service) -> Iterator[Watch]:
    opened = Watch(secure)
    opened.until(lambda: opened.busy == 0)
    yield opened
    opened.connection.close()


def output_of(service: Service) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in service.output)


def shown_certificate(url: str) -> str:
    address = urlsplit(url)
    return ssl.get_server_certificate((address.hostname or "", address.port or 443))


def make_certificate(
    directory: Path, name: str, *, begins: timedelta = -DAY, ends: timedelta = 90 * DAY, password: bytes | None = None
) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and its key, as an authority would issue them."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins)
        .not_valid_after(now + ends)
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    protection = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    files = directory / f"{name}.pem", directory / f"{name}.key"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection))
    return files


# -- the certificate of the service's own making ------------------------------------------------------------------


def test_a_self_signed_certificate(start: Start) -> None:
    """It is made once, its key for nobody else's eyes; the printed fingerprint is what clients see on all planes."""
    first = start("--tls", "self-signed")
    names = [line.split(": ")[0] for line in first.output]
    assert names == ["data", "alias", "control", "console", "fingerprint", "key", "try"]
    told = output_of(first)["fingerprint"]
    for url in (first.url, first.alias_url, first.control_url):
        assert url.startswith("https://")
        assert fingerprint(shown_certificate(url)) == told
    key = first.data_dir / "tls" / "key.pem"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    if shutil.which("curl"):
        pasted = subprocess.run(
            output_of(first)["try"],
            shell=True,
            capture_output=True,
            text=True,
            timeout=RUN_S,
            env={**os.environ, "no_proxy": "*"},
        )
        assert '"success":true' in pasted.stdout, pasted
    assert first.stop() == 0
    assert key.read_text() not in first.log
    second = start("--tls", "self-signed", "--host", "0.0.0.0")
    assert output_of(second)["fingerprint"] == told
    assert second.url.startswith("https://0.0.0.0:")


def test_a_certificate_is_renewed_in_time(tmp_path: Path) -> None:
    """Kept until a month before its end; a file that is damaged or does not fit is replaced too."""
    now = datetime.now(UTC)
    files = provide(tmp_path / "tls", ["example.org"], now)
    first = files.certificate.read_text()
    assert provide(tmp_path / "tls", ["example.org"], now + 700 * DAY) == files
    assert files.certificate.read_text() == first
    provide(tmp_path / "tls", ["example.org"], now + 800 * DAY)
    second = files.certificate.read_text()
    assert second != first
    for damage in (
        lambda: files.certificate.write_text("x"),
        files.key.unlink,
        lambda: files.certificate.write_text(first),
    ):
        damage()
        provide(tmp_path / "tls", ["example.org"], now)
        assert ssl.create_default_context(cafile=str(files.certificate))
        assert stat.S_IMODE(files.key.stat().st_mode) == 0o600
        assert files.certificate.read_text() not in (first, second, "x")


def test_the_certificate_names_the_addresses(secure: Service) -> None:
    """A client that trusts it connects by address and by name, and by no other name."""
    address = urlsplit(secure.url)
    for name in ("127.0.0.1", "localhost"):
        with socket.create_connection((address.hostname or "", address.port or 0), RUN_S) as sock:
            secure.trust.wrap_socket(sock, server_hostname=name).close()
    with (
        socket.create_connection((address.hostname or "", address.port or 0), RUN_S) as sock,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        secure.trust.wrap_socket(sock, server_hostname="example.org")


# -- certificates that are given ----------------------------------------------------------------------------------


def test_a_given_certificate_and_its_renewal(start: Start, tmp_path: Path) -> None:
    """It is served, on the alias's hop too; SIGHUP takes up a renewed one, and a bad one changes nothing."""
    certificate, key = make_certificate(tmp_path, "given")
    service = start("--tls-cert", str(certificate), "--tls-key", str(key))
    assert [line.split(": ")[0] for line in service.output] == ["data", "alias", "control", "console", "key", "try"]
    assert shown_certificate(service.url) == certificate.read_text()
    renewed, renewed_key = make_certificate(tmp_path, "renewed")
    renewed.rename(certificate)
    service.process.send_signal(signal.SIGHUP)
    eventually(lambda: "the certificate was not taken up" in service.log)
    assert shown_certificate(service.url) != certificate.read_text()
    renewed_key.rename(key)
    service.process.send_signal(signal.SIGHUP)
    eventually(lambda: shown_certificate(service.url) == certificate.read_text())
    context = ssl.create_default_context(cafile=str(certificate))
    context.check_hostname = False
    port = urlsplit(service.alias_url).port or 0
    with socket.create_connection(("127.0.0.1", port), RUN_S) as sock, context.wrap_socket(sock) as through:
        through.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        (health,) = answers_in(read_all(through))
    assert health.json["checks"] == {"data_plane": "ok"}


def test_certificates_that_cannot_be_used(tmp_path: Path) -> None:
    """Each ends the start with a message that names the file and what is wrong with it."""
    good, good_key = make_certificate(tmp_path, "good")
    other, other_key = make_certificate(tmp_path, "other")
    expired, expired_key = make_certificate(tmp_path, "expired", begins=-9 * DAY, ends=-DAY)
    early, early_key = make_certificate(tmp_path, "early", begins=DAY)
    locked, locked_key = make_certificate(tmp_path, "locked", password=b"secret")
    garbage = tmp_path / "garbage.pem"
    garbage.write_bytes(b"\xff\xfe not a certificate")
    missing = tmp_path / "missing.pem"
    cases: list[tuple[list[str | Path], list[str | Path]]] = [
        (["--tls-cert", good, "--tls-key", other_key], [good, other_key, "is not that of"]),
        (["--tls-cert", expired, "--tls-key", expired_key], [expired, "expired"]),
        (["--tls-cert", early, "--tls-key", early_key], [early, "not yet valid"]),
        (["--tls-cert", locked, "--tls-key", locked_key], [locked_key, "password"]),
        (["--tls-cert", missing, "--tls-key", good_key], [missing, "No such file"]),
        (["--tls-cert", good, "--tls-key", missing], [missing, "No such file"]),
        (["--tls-cert", garbage, "--tls-key", good_key], [garbage, "PEM"]),
        (["--tls-cert", good_key, "--tls-key", good_key], [good_key, "PEM"]),
        (["--tls-cert", good], ["--tls-key"]),
        (["--tls-key", good_key], ["--tls-cert"]),
        (["--tls-cert", other, "--tls-key", other_key, "--tls", "self-signed"], ["exclude"]),
        (["--tls", "letsencrypt"], ["self-signed"]),
        (["--host", "0.0.0.0"], ["--tls-cert", "--tls self-signed", "--behind-proxy"]),
    ]
    data_dir = new_data_dir()
    try:
        for flags, words in cases:
            clear(run("serve", "--data-dir", str(data_dir), *map(str, flags)), *map(str, words))
        assert not data_dir.exists()
    finally:
        remove(data_dir)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--data-url", "example.org"], ["--data-url", "example.org"]),
        (["--control-url", "https://example.org/path"], ["--control-url"]),
        (["--alias-url", "https://user@example.org"], ["--alias-url"]),
        (["--data-url", "http://[::1"], ["--data-url"]),
        (["--data-url", "http://example.org:99999"], ["--data-url"]),
        (["--planes", "alias"], ["--data-url", "--control-url"]),
        (["--alias-url", "http://a.example", "--data-url", "http://a.example"], ["itself"]),
    ],
)
def test_addresses_that_cannot_be_used(flags: list[str], words: list[str]) -> None:
    """They end the start with the name of the setting."""
    data_dir = new_data_dir()
    try:
        clear(run("serve", "--data-dir", str(data_dir), *flags), *words)
        assert not data_dir.exists()
    finally:
        remove(data_dir)


# -- HTTP over it -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plane", ["url", "alias_url", "control_url"])
def test_every_answer_tells_to_stay_with_tls(secure: Service, plane: str) -> None:
    """Once, on every plane."""
    secure_client = secure.client()
    with secure_client as client:
        for path in ("/health", "/nowhere"):
            answer = client.get(getattr(secure, plane) + path)
            assert answer.headers.get_list("strict-transport-security") == ["max-age=31536000"]


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_old_versions_are_refused(secure: Service) -> None:
    """TLS 1.2 is the oldest spoken."""
    address = urlsplit(secure.url)
    for newest, works in ((ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True)):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        context.maximum_version = newest
        with socket.create_connection((address.hostname or "", address.port or 0), RUN_S) as sock:
            if works:
                context.wrap_socket(sock).close()
            else:
                with pytest.raises(OSError, match=r"(?i)protocol|alert|reset|eof"):
                    context.wrap_socket(sock)


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x00" * 100, b"\x16\x03\x01\x02\x00\x01", b""]
)
def test_what_is_no_tls_is_closed(secure: Service, data: bytes) -> None:
    """Also one that stops in the midst of its first words; the service goes on."""
    address = urlsplit(secure.url)
    with socket.create_connection((address.hostname or "", address.port or 0), RUN_S) as sock:
        sock.sendall(data)
        assert b"HTTP" not in read_all(sock)
    with secure.client() as client:
        assert Sql(client).value("select 7") == 7


def test_pipelined_requests_and_large_ones(secure: Service) -> None:
    """In one write, answered in order; a body and an answer of several megabytes arrive whole."""
    requests = [post(secure, f"select {n} as n".encode(), kind=TEXT_TYPE, close=n == 9) for n in range(10)]
    assert [answer.json["rows"][0]["n"] for answer in talk(secure, b"".join(requests))] == list(range(10))
    with secure.client() as client:
        text = "x" * 5_000_000
        assert Sql(client).value("select $1::text", [text]) == text


@pytest.mark.parametrize("through_alias", [False, True])
def test_a_body_over_the_limit_gets_its_answer(secure: Service, through_alias: bool) -> None:
    """The answer is there to be read although most of the body was not."""
    service = secure.alias if through_alias else secure
    answer = ask(service, head(service, JSON_TYPE, "Content-Length: 50000000") + b"x" * 12_000_000)
    assert answer.status == 413


@pytest.mark.parametrize("through_alias", [False, True])
def test_rows_come_while_the_statement_runs(secure: Service, watch: Watch, through_alias: bool) -> None:
    """Nothing holds them back; leaving ends the statement within a second."""
    statement = "select g, case when g > 1 then pg_sleep(60) end from generate_series(1, 5) g"
    with Stream(secure.alias if through_alias else secure, statement) as stream:
        events = stream.events()
        assert [next(events).kind for _ in range(2)] == ["columns", "row"]
        watch.until(lambda: watch.count("wait_event = 'PgSleep'") == 1)
    watch.until(lambda: watch.busy == 0)


@pytest.mark.parametrize("through_alias", [False, True])
def test_a_whole_stream(secure: Service, through_alias: bool) -> None:
    """Every row, in order, and the end."""
    told = tell(
        secure.alias if through_alias else secure, "select g from generate_series(1, 20000) g", row_mode="arrays"
    )
    assert told.rows == [[g] for g in range(1, 20001)]
    assert told.end == "done"


@pytest.mark.parametrize("polite", [True, False])
@pytest.mark.parametrize("accept", [SSE, "application/json"])
def test_a_client_that_leaves_ends_its_statement(secure: Service, watch: Watch, accept: str, polite: bool) -> None:
    """Within a second, whether or not it said goodbye."""
    stream = Stream(secure, "select pg_sleep(60)", accept=accept)
    watch.until(lambda: watch.count("wait_event = 'PgSleep'") == 1)
    sock = stream.connection.sock
    if polite:
        assert isinstance(sock, ssl.SSLSocket)
        with contextlib.suppress(OSError):
            sock.unwrap()
    else:
        socket.socket(fileno=sock.detach()).close()
    watch.until(lambda: watch.busy == 0)
    stream.close()


def test_a_slow_reader_slows_the_engine(secure: Service, watch: Watch) -> None:
    """The engine rests while the reader does, and works on when it reads on, in time."""
    with Stream(secure, ENDLESS, receive_buffer=65536) as stream:
        events = stream.events()
        next(events)
        watch.settle("state = 'idle in transaction'")
        assert len({next(events).data["g"] for _ in range(3000)}) == 3000
    watch.until(lambda: watch.busy == 0)


@needs_linux
@pytest.mark.parametrize("through_alias", [False, True])
@pytest.mark.parametrize(
    ("accept", "statement"), [(SSE, ENDLESS), ("application/json", "select repeat('x', 50000000)")]
)
def test_a_reader_that_takes_nothing_is_cut_off(
    secure: Service, watch: Watch, accept: str, statement: str, through_alias: bool
) -> None:
    """For streams, and for answers that were written in one piece."""
    service = secure.alias if through_alias else secure
    with Stream(service, statement, accept=accept, receive_buffer=4096) as stream:
        assert stream.answer.status == 200
        port = stream.connection.sock.getsockname()[1]
        eventually(lambda: f":{port:04X}" not in established_with(service))
        watch.until(lambda: watch.busy == 0, 5)
        with pytest.raises((OSError, http.client.IncompleteRead)):
            stream.answer.read()


def established_with(service: Service) -> str:
    """The far ends of the connections that the service's port has open, in the kernel's own words."""
    port = f":{urlsplit(service.url).port:04X}"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return " ".join(words[2] for words in lines if words[1].endswith(port) and words[3] == "01")


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_reader_that_takes_its_time_gets_everything(service: Service, secure: Service, scheme: str) -> None:
    """Longer than the service lingers, in small sips: the last answer of a connection is not cut while it is taken."""
    running = secure if scheme == "https" else service
    request = post(running, b"select repeat('x', 8000000) as x", kind=TEXT_TYPE)
    received = bytearray()
    with connect(running) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        sock.sendall(request)
        pause = iter(range(30))
        with contextlib.suppress(ConnectionResetError):
            while part := sock.recv(1 << 18):
                received += part
                if next(pause, None) is not None:
                    # Not for luck: the reader is slow on purpose, for longer than the service waits after an answer.
                    time.sleep(0.15)
    (answer,) = answers_in(bytes(received))
    assert len(answer.json["rows"][0]["x"]) == 8_000_000
