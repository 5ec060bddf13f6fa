"""The certificate of the planes: the operator's, or one of our own making."""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from tuplegate.http.tls import self_signed
from tuplegate.http.tls.certificates import TlsContext, TlsError, TlsFiles
from tuplegate.settings import Settings
from tuplegate.supervisor.serve_error import ServeError


def with_tls(settings: Settings) -> bool:
    """Return whether the planes speak TLS."""
    return bool(settings.tls_cert or settings.tls_key or settings.tls)


def read_certificate(settings: Settings) -> TlsFiles | None:
    """Return the certificate that the settings name, after trying it."""
    if bool(settings.tls_cert) != bool(settings.tls_key):
        raise ServeError("--tls-cert and --tls-key go together")
    if settings.tls_cert and settings.tls:
        raise ServeError("--tls self-signed and --tls-cert exclude each other")
    if not settings.tls_cert:
        return None
    files = TlsFiles(Path(settings.tls_cert).expanduser().absolute(), Path(settings.tls_key).expanduser().absolute())
    try:
        TlsContext(files)
    except TlsError as exc:
        raise ServeError(str(exc)) from exc
    return files


def provide_self_signed(settings: Settings, hosts: Iterable[str]) -> TlsFiles | None:
    """Return a certificate of our own for the hosts, made or renewed if necessary; None if nobody asked for one."""
    if not settings.tls:
        return None
    names = [settings.host, *hosts]
    try:
        files = self_signed.provide(settings.data_dir.absolute() / "tls", names, datetime.now(UTC))
        TlsContext(files)
    except TlsError as exc:
        raise ServeError(str(exc)) from exc
    return files
