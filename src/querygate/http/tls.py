"""TLS for the server: a certificate with its key, tried out before it serves, and the door that clients come in by.

`TlsDoor` negotiates before there is an HTTP connection. asyncio could do that alone, but would hide the transport below
TLS, which is where the bytes wait that a slow reader does not take.
"""

import asyncio
import hashlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

_SHUTDOWN_S = 5.0
_RAW_WRITE_HIGH = 16 * 1024


class TlsError(Exception):
    """The certificate or its key cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: the certificate, followed by those of its issuers, and its key, which may be in the same file."""

    certificate: Path
    key: Path


class TlsContext:
    """What new connections are served with. `reload` takes up files that have changed."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self.certificate = ""
        self.reload()

    def reload(self) -> None:
        """Raises TlsError and leaves everything as it was if the files cannot be used."""
        certificate, context = load(self._files)
        self.certificate, self.context = certificate, context


def load(files: TlsFiles) -> tuple[str, ssl.SSLContext]:
    """The certificate as PEM, and a context that serves it. Raises TlsError."""
    text = _read(files.certificate, "certificate")
    _read(files.key, "key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(files.certificate, files.key, password=_no_password)
    except _Encrypted:
        raise TlsError(f"the key {files.key} is protected by a password; give one that is not") from None
    except ssl.SSLError as exc:
        if exc.reason == "KEY_VALUES_MISMATCH":
            raise TlsError(f"the key {files.key} is not that of the certificate {files.certificate}") from exc
        raise TlsError(f"{files.certificate} and {files.key} are not a certificate and its key in PEM") from exc
    _try_out(context, text, files.certificate)
    return text, context


def fingerprint(pem: str) -> str:
    """SHA-256 of the first certificate, in the form that browsers and openssl show."""
    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(_first(pem))).hexdigest().upper()
    return ":".join(digest[at : at + 2] for at in range(0, len(digest), 2))


def client_context(pinned: str | None = None) -> ssl.SSLContext:
    """For connections to a server: its certificate is judged as usual, or must be the pinned one, whatever its name."""
    context = ssl.create_default_context(cadata=None if pinned is None else _first(pinned))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if pinned is not None:
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


class _Encrypted(Exception):
    """The key needs a password."""


def _no_password() -> str:
    raise _Encrypted


def _read(file: Path, what: str) -> str:
    try:
        return file.read_text()
    except OSError as exc:
        raise TlsError(f"cannot read the {what} {file}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise TlsError(f"the {what} {file} is not PEM text") from exc


def _first(pem: str) -> str:
    start = pem.index("-----BEGIN CERTIFICATE-----")
    end = "-----END CERTIFICATE-----"
    return pem[start : pem.index(end, start) + len(end)] + "\n"


def _try_out(context: ssl.SSLContext, certificate: str, file: Path) -> None:
    """Shakes hands with itself as a client would that trusts this certificate: it must be valid, now, for a server."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    client = client_context(certificate).wrap_bio(to_client, to_server, server_hostname="localhost")
    try:
        for _ in range(4):
            for side in (client, server):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue
    except ssl.SSLCertVerificationError as exc:
        raise TlsError(f"the certificate {file} would be refused by clients: {exc.verify_message}") from exc
    except ssl.SSLError as exc:
        raise TlsError(f"the certificate {file} cannot be served: {exc.reason}") from exc


class TlsDoor(asyncio.Protocol):
    """A new connection until TLS is agreed on; what the client sends right behind that is handed over."""

    def __init__(
        self,
        tls: TlsContext,
        make_connection: Callable[[asyncio.Transport], asyncio.Protocol],
        doors: "set[TlsDoor]",
        has_room: Callable[[], bool],
        timeout_s: float,
    ) -> None:
        self._tls = tls
        self._make_connection = make_connection
        self._doors = doors
        self._has_room = has_room
        self._timeout_s = timeout_s
        self._early: list[bytes] = []
        self._lost = False
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)
        if not self._has_room():
            self._raw.abort()
            return
        self._raw.pause_reading()
        self._raw.set_write_buffer_limits(high=_RAW_WRITE_HIGH)
        self._doors.add(self)
        self._task = asyncio.get_running_loop().create_task(self._open())

    def data_received(self, data: bytes) -> None:
        self._early.append(data)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            transport = await loop.start_tls(
                self._raw,
                self,
                self._tls.context,
                server_side=True,
                ssl_handshake_timeout=self._timeout_s,
                ssl_shutdown_timeout=_SHUTDOWN_S,
            )
        except OSError:  # of the client's making: no TLS, an old one, or gone; ssl.SSLError is one too
            self._raw.abort()
            return
        finally:
            self._doors.discard(self)
        if transport is None or self._lost:
            self._raw.abort()
            return
        connection = self._make_connection(self._raw)
        connection.connection_made(transport)
        transport.set_protocol(connection)
        for data in self._early:
            connection.data_received(data)
