"""Where the service is. Pure."""

from urllib.parse import urlsplit

DEFAULT_URL = "http://127.0.0.1:8080"
DEFAULT_CONTROL_URL = "http://127.0.0.1:8082"


def checked_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is not the address of a service; one looks like {DEFAULT_URL}")
    if parts.username is not None or parts.password is not None:
        raise ValueError("the address of a service holds no user or password; the key is given as api_key")
    return url.rstrip("/")


def control_url_beside(url: str) -> str:
    """Where the control plane is, if nobody says: of the default service its own port, else one address for all."""
    return DEFAULT_CONTROL_URL if url == DEFAULT_URL else url
