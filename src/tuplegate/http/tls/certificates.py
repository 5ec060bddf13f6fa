"""Certificates: loads and tries the service's own, and decides how those of others are verified."""

import asyncio
import hashlib
import signal
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from tuplegate.http.tls.groups import CIPHERS, COMMON, CURVES, choose_curve

_log: Final = structlog.get_logger()


class TlsError(Exception):
    """The certificate or its key cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: the certificate, followed by those of its issuers, and its key, which may be in the same file."""

    certificate: Path
    key: Path


class TlsContext:
    """Holds the contexts for new connections. `reload` takes up files that have changed."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self.certificate = ""
        self.reload()

    def reload(self) -> None:
        """Load the files again. Raises TlsError, and changes nothing then."""
        certificate, contexts = load(self._files)
        self.certificate, self.contexts = certificate, contexts

    def choose(self, records: bytes) -> ssl.SSLContext:
        """Return the context for a client, by the record that begins its hello."""
        return self.contexts[choose_curve(records, self.contexts)]


def load(files: TlsFiles) -> tuple[str, dict[str, ssl.SSLContext]]:
    """Return the certificate as PEM, and the contexts that serve it, by the curve of each. Raises TlsError."""
    text = _read(files.certificate, "certificate")
    _read(files.key, "key")
    contexts = {COMMON: _make_context(files, text, COMMON)}
    for curve in CURVES.values():
        try:
            contexts[curve] = contexts.get(curve) or _make_context(files, text, curve)
        except (TlsError, ValueError):  # not for the certificate: the common curve serves it
            _log.warning("the OpenSSL of this Python does not have a curve", curve=curve)
    return text, contexts


def _make_context(files: TlsFiles, certificate: str, curve: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_ciphers(CIPHERS)
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.set_ecdh_curve(curve)
        context.load_cert_chain(files.certificate, files.key, password=_no_password)
    except _Encrypted:
        raise TlsError(f"the key {files.key} is protected by a password; give one that is not") from None
    except ssl.SSLError as exc:
        if exc.reason == "KEY_VALUES_MISMATCH":
            raise TlsError(f"the key {files.key} is not that of the certificate {files.certificate}") from exc
        raise TlsError(f"{files.certificate} and {files.key} are not a certificate and its key in PEM") from exc
    _try_out(context, certificate, files.certificate)
    return context


def fingerprint(pem: str) -> str:
    """Return the SHA-256 of the first certificate, in the form that browsers and openssl show."""
    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(_first(pem))).hexdigest().upper()
    return ":".join(digest[at : at + 2] for at in range(0, len(digest), 2))


def client_context(pinned: str | None = None) -> ssl.SSLContext:
    """Return a context for connections to a server. Its certificate is verified as usual, or must be the pinned one,
    with any name."""
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
    """Shake hands with itself as a client that trusts this certificate: it must be valid now, for a server."""
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


def load_reloadable(files: TlsFiles) -> TlsContext:
    """Load the certificate to serve with, and reload it at SIGHUP."""
    tls = TlsContext(files)

    def reload() -> None:
        try:
            tls.reload()
        except TlsError as exc:
            _log.error("the certificate was not taken up", reason=str(exc))
        else:
            _log.info("the certificate was taken up")

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
    return tls
