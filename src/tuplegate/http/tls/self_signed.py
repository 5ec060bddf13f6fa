"""Makes a certificate for an installation that has none.

It is made once and kept. It is made again a month before it expires, or when it is missing or unreadable. Clients
either trust the file or compare the fingerprint. `cryptography` is imported only here, and only when it is needed.
"""

import contextlib
import ipaddress
import os
import socket
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from tuplegate.http.tls.certificates import TlsError, TlsFiles, load

if TYPE_CHECKING:
    from cryptography import x509

_VALID = timedelta(days=825)
_RENEW_BEFORE = timedelta(days=30)
_CLOCK_SKEW = timedelta(hours=1)


def provide(directory: Path, names: Iterable[str], now: datetime) -> TlsFiles:
    """Return the files of a certificate that is valid for at least a month, for these names and those of this
    machine."""
    files = TlsFiles(directory / "certificate.pem", directory / "key.pem")
    try:
        if _read_expiry(files) - now < _RENEW_BEFORE or not _is_usable(files):
            _make(files, names, now)
    except OSError as exc:
        raise TlsError(f"cannot keep a certificate in {directory}: {exc.strerror}") from exc
    return files


def _read_expiry(files: TlsFiles) -> datetime:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(files.certificate.read_bytes()).not_valid_after_utc
    except (FileNotFoundError, ValueError):
        return datetime.min.replace(tzinfo=UTC)


def _is_usable(files: TlsFiles) -> bool:
    """Return whether key and certificate fit: after a crash between writing the two they do not."""
    try:
        load(files)
    except TlsError:
        return False
    return True


def _make(files: TlsFiles, names: Iterable[str], now: datetime) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tuplegate")])
    known = dict.fromkeys([*names, "localhost", "127.0.0.1", "::1", socket.gethostname()])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in known]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    files.key.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write(files.key, private, 0o600)
    _write(files.certificate, certificate.public_bytes(serialization.Encoding.PEM), 0o644)


def _general_name(name: str) -> "x509.GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write(file: Path, data: bytes, mode: int) -> None:
    """Write the file atomically, and never through a link that somebody else has put there."""
    made = file.with_suffix(".new")
    with contextlib.suppress(FileNotFoundError):
        made.unlink()
    descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(data)
        opened.flush()
        os.fsync(descriptor)
    made.rename(file)
