"""Where a browser finds a plane: by which names, and by none that a request makes up."""

import pytest

from tuplegate.http.origins import find_seen, parse_origin


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
