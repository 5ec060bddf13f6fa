"""Where a browser finds a plane: by which names, and by none that a request makes up."""

import pytest

from tuplegate.http.origins import PageOrigins, find_seen, parse_origin


@pytest.mark.parametrize(
    ("own", "host", "seen"),
    [
        ("http://127.0.0.1:8080", "127.0.0.1:8082", "http://127.0.0.1:8080"),
        ("http://127.0.0.1:8080", "localhost:8082", "http://localhost:8080"),
        ("http://[::1]:8080", "localhost:8082", "http://localhost:8080"),
        ("http://127.0.0.1:8080", "[::1]:8082", "http://127.0.0.1:8080"),
        ("http://127.0.0.1:8080", "LOCALHOST:8082", "http://localhost:8080"),
        ("http://127.0.0.1:8080", "evil.example:8082", "http://127.0.0.1:8080"),
        ("http://127.0.0.1:8080", "", "http://127.0.0.1:8080"),
        ("https://data.example", "localhost:8082", "https://data.example"),
        ("http://192.0.2.7:8080", "localhost:8082", "http://192.0.2.7:8080"),
        ("https://0.0.0.0:8080", "box.example:8082", "https://box.example:8080"),
        ("https://0.0.0.0:443", "box.example:8082", "https://box.example"),
        ("http://[::]:8080", "[2001:db8::1]:8082", "http://[2001:db8::1]:8080"),
        ("http://0.0.0.0:8080", "", None),
        ("http://0.0.0.0:8080", "user@box.example", None),
        ("http://0.0.0.0:8080", "box.example/console", None),
        ("http://0.0.0.0:8080", "box.example'; script-src *", None),
        ("http://0.0.0.0:8080", "box.example:99999", None),
        ("http://0.0.0.0:8080", "böx.example", None),
    ],
)
def test_a_plane_is_seen_by_its_own_name_or_by_one_of_this_machine(own: str, host: str, seen: str | None) -> None:
    """Only what is bound to all addresses, and so has no name, takes that of the request."""
    found = find_seen(parse_origin(own), host.encode("latin-1"))
    assert (None if found is None else str(found)) == seen


def test_a_request_without_a_host_names_nothing() -> None:
    """As HTTP/1.0 allows it."""
    assert find_seen(parse_origin("http://0.0.0.0:8080"), None) is None
    assert str(find_seen(parse_origin("http://127.0.0.1:8080"), None)) == "http://127.0.0.1:8080"


@pytest.mark.parametrize(
    ("own", "origin", "host", "allowed"),
    [
        ("https://db.example", "https://db.example", "db.example", True),
        ("https://db.example", "https://db.example", "another.example", True),
        ("https://db.example", "https://db.example:8443", "db.example:8443", False),
        ("https://db.example", "https://evil.example", "evil.example", False),
        ("http://127.0.0.1:8080", "http://localhost:8080", "localhost:8080", True),
        ("http://127.0.0.1:8080", "http://evil.example:8080", "evil.example:8080", False),
        ("http://0.0.0.0:8080", "http://192.0.2.7:8080", "192.0.2.7:8080", True),
        ("http://0.0.0.0:8080", "http://localhost:8080", "localhost:8080", True),
        ("http://[::]:8080", "http://[2001:db8::7]:8080", "[2001:db8::7]:8080", True),
        ("http://0.0.0.0:8080", "http://192.0.2.8:8080", "192.0.2.7:8080", False),
        ("http://0.0.0.0:8080", "http://192.0.2.7:9090", "192.0.2.7:9090", False),
        ("http://0.0.0.0:8080", "http://evil.example:8080", "evil.example:8080", False),
        ("http://0.0.0.0:8080", "null", "0.0.0.0:8080", False),
    ],
)
def test_pages_that_may_open_a_websocket(own: str, origin: str, host: str, allowed: bool) -> None:
    """The service's own, by addresses that it knows itself: the `Host` of a request proves nothing where it is a
    name."""
    assert PageOrigins([parse_origin(own)]).allow(origin.encode(), host.encode()) is allowed


def test_pages_that_are_listed_may_open_a_websocket() -> None:
    own = [parse_origin("https://db.example")]
    assert PageOrigins(own, frozenset({"https://app.example"})).allow(b"https://app.example", b"db.example")
    assert PageOrigins(own, frozenset({"*"})).allow(b"https://any.example", b"db.example")
    assert not PageOrigins(own).allow(b"https://app.example", b"db.example")
