"""Checks and derives addresses of the service. Pure."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

DEFAULT_URL = "http://127.0.0.1:8080"
DEFAULT_CONTROL_URL = "http://127.0.0.1:8082"


def check_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is not the address of a service; one looks like {DEFAULT_URL}")
    if parts.username is not None or parts.password is not None:
        raise ValueError("the address of a service holds no user or password; the key is given as api_key")
    return url.rstrip("/")


def check_key(key: str) -> str:
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError("the API key has characters that no key has")
    return key


_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def read_control_url(banner: Mapping[str, Any], url: str) -> str:
    """Return the address of the control plane, as the banner of the data plane at `url` names it.

    The key will be sent there, so it must be as safe: another machine's banner cannot name a loopback address, and both
    addresses use TLS or neither does.
    """
    named = banner.get("control_url")
    try:
        found = check_url(named) if isinstance(named, str) else None
    except ValueError:
        found = None
    if found is None:
        return guess_control_url(url)
    own, other = urlsplit(url), urlsplit(found)
    if other.scheme != own.scheme or (other.hostname in _LOOPBACK and own.hostname not in _LOOPBACK):
        return guess_control_url(url)
    return found


def guess_control_url(url: str) -> str:
    """Return the address of the control plane if the banner names none: the default service has a port for it, any
    other service one address for all planes."""
    return DEFAULT_CONTROL_URL if url == DEFAULT_URL else url
