"""`doctor`: check that a service's certificate is trusted, has the right name, and does not expire soon."""

import socket
import ssl
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

_DAYS_MIN = 14
_TIMEOUT_S = 5
_SELF_SIGNED = (
    "Trust it with --ca-file, TUPLEGATE_CA_FILE or `tuplegate profile set NAME --ca-file FILE`. The certificate that a"
    " service has made itself is tls/certificate.pem in its data directory."
)


@dataclass(frozen=True)
class Finding:
    """The result of a check: ok, warning or failed. `advice` says what to do."""

    check: str
    result: str
    found: str
    advice: str = ""


def is_usable(ca_file: str) -> bool:
    """Return whether the file can be read and holds certificates."""
    try:
        ssl.create_default_context(cafile=ca_file)
    except OSError:
        return False
    return True


def check_certificate(check: str, url: str, ca_file: str | None) -> Finding:
    """Check the certificate with the same trust that the other commands use."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 443
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as exc:
        return Finding(check, "failed", f"{ca_file}: {exc.strerror or exc}", "Name a file of certificates, as PEM.")
    try:
        with (
            socket.create_connection((host, port), timeout=_TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            certificate = secure.getpeercert() or {}
            version = secure.version()
    except ssl.SSLCertVerificationError as exc:
        return Finding(check, "failed", f"{host}:{port}: {exc.verify_message}", _advise(exc.verify_code))
    except ssl.SSLError as exc:
        said = f"{host}:{port} does not speak TLS as it should: {exc.reason or exc}"
        return Finding(check, "failed", said, "Is this the address of the service, and is it https there?")
    except OSError as exc:
        return Finding(check, "failed", f"{host}:{port}: {exc}", "Start the service, or correct the address.")
    days = (ssl.cert_time_to_seconds(str(certificate["notAfter"])) - time.time()) / 86400
    said = f"{version}; the certificate is valid for {days:.0f} days"
    if days < _DAYS_MIN:
        return Finding(check, "warning", said, "Renew it, and send the service SIGHUP.")
    return Finding(check, "ok", said)


# OpenSSL's codes for the reasons to reject a certificate.
_EXPIRED, _NOT_YET, _WRONG_NAME, _WRONG_ADDRESS = 10, 9, 62, 64


def _advise(code: int) -> str:
    if code == _EXPIRED:
        return "Renew it, and send the service SIGHUP."
    if code == _NOT_YET:
        return "It is not valid yet: look at the clocks of both machines."
    if code in (_WRONG_NAME, _WRONG_ADDRESS):
        return "Use a name that the certificate is for, or get one for this name."
    return _SELF_SIGNED
