"""Pages of other origins: which of them a browser lets use the service, and the headers of answers to anybody."""

from collections.abc import Iterator

import httpx
import pytest

from tests.http.test_bad_input import ask, head
from tests.metrics import scrape
from tests.service import Service, new_data_dir, remove, start_service
from tests.streams import SSE
from tests.system.test_service import clear, run

PAGE = "https://app.example"
EXPOSED = {"x-request-id", "retry-after", "ratelimit", "ratelimit-policy", "idempotency-replayed", "tuplegate-position"}
EXPOSED |= {"tuplegate-served-by", "tuplegate-replayed", "neon-batch-isolation-level", "neon-batch-read-only"}
EXPOSED |= {"neon-batch-deferrable"}


@pytest.fixture(scope="module")
def open_service() -> Iterator[Service]:
    """A service that allows two pages besides its console's."""
    data_dir = new_data_dir()
    running = start_service(
        data_dir, "--cors-origins", f"{PAGE}, http://other.example:8443", "--log-level", "debug", "--log-format", "json"
    )
    yield running
    assert running.stop() == 0
    remove(data_dir)


def cors_of(answer: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control-")}


def post(url: str, key: str, origin: str | None, body: dict[str, str] | None = None, **headers: str) -> httpx.Response:
    given = {"Authorization": f"Bearer {key}", **({} if origin is None else {"Origin": origin}), **headers}
    return httpx.post(f"{url}/v1/query", json=body or {"sql": "select 1"}, headers=given, trust_env=False, verify=False)


def preflight(url: str, path: str, origin: str) -> httpx.Response:
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    return httpx.options(url + path, headers=headers, trust_env=False)


def test_the_console_is_allowed_by_default(service: Service) -> None:
    """Its origin is the control plane's address; what a page must see of an answer is exposed to it."""
    answer = post(service.url, service.key, service.control_url)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == service.control_url
    assert set(answer.headers["access-control-expose-headers"].split(", ")) == EXPOSED
    assert answer.headers["vary"] == "origin"
    assert "access-control-allow-credentials" not in answer.headers


def refusals(service: Service, plane: str) -> float:
    return scrape(service).value("cors_refusals_total", plane=plane)


def test_a_refused_page_is_counted_and_named_in_the_log(open_service: Service) -> None:
    """At the level debug. Pages that are allowed, a plane's own page, and programs are none."""
    url, key = open_service.url, open_service.key
    before = {plane: refusals(open_service, plane) for plane in ("data", "control")}
    for origin in (PAGE, open_service.control_url, url, None):
        post(url, key, origin)
    assert refusals(open_service, "data") == before["data"]
    post(url, key, "https://stranger.example")
    preflight(url, "/v1/query", "https://stranger.example")
    preflight(open_service.control_url, "/v1/session", "https://elsewhere.example")
    assert refusals(open_service, "data") == before["data"] + 2
    assert refusals(open_service, "control") == before["control"] + 1
    for origin in ("https://stranger.example", "https://elsewhere.example"):
        assert f'"origin": "{origin}"' in open_service.log


@pytest.mark.parametrize("origin", [PAGE, "null", "*", "http://127.0.0.1", ""])
def test_other_origins_get_no_word_but_their_answer(service: Service, origin: str) -> None:
    """It is the browser that keeps it from the page."""
    answer = post(service.url, service.key, origin)
    assert answer.status_code == 200
    assert cors_of(answer) == {}


def test_a_request_of_no_page_has_no_such_headers(service: Service) -> None:
    """It is the same as ever."""
    answer = post(service.url, service.key, None)
    assert cors_of(answer) == {}
    assert "vary" not in answer.headers


@pytest.mark.parametrize("origin", [PAGE, "http://other.example:8443"])
def test_listed_origins_are_allowed_besides_the_console(open_service: Service, origin: str) -> None:
    """Each of them by its own name, exactly."""
    for allowed in (origin, open_service.control_url):
        answer = post(open_service.url, open_service.key, allowed)
        assert answer.headers["access-control-allow-origin"] == allowed
    for other in (origin + ".evil.example", origin.upper(), origin + "/", "x" + origin):
        assert cors_of(post(open_service.url, open_service.key, other)) == {}


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"Authorization": "Bearer wrong"}, {"sql": "select 1"}, 401),
        ({}, {"sql": "selec"}, 400),
        ({}, {"sql": "select 1/0"}, 200),
        ({"Accept": "text/html"}, {"sql": "select 1"}, 406),
        ({"Accept": SSE}, {"sql": "select 1"}, 200),
    ],
)
def test_errors_and_streams_can_be_read_by_the_page_too(
    open_service: Service, headers: dict[str, str], body: dict[str, str], status: int
) -> None:
    """Otherwise a page would see a failure without a reason."""
    answer = post(open_service.url, open_service.key, PAGE, body, **headers)
    assert answer.status_code == status
    assert answer.headers["access-control-allow-origin"] == PAGE


def test_a_body_that_is_too_large_can_be_read_about_too(open_service: Service) -> None:
    """It is answered before the request is complete."""
    request = head(open_service, "Content-Type: application/json", f"Origin: {PAGE}", "Content-Length: 50000000")
    answer = ask(open_service, request)
    assert answer.status == 413
    assert answer.headers["access-control-allow-origin"] == PAGE


def test_a_preflight_needs_no_token(open_service: Service) -> None:
    """It says what may be sent; methods come from the routes."""
    answer = preflight(open_service.url, "/v1/query", PAGE)
    assert answer.status_code == 204
    assert answer.content == b""
    assert "content-length" not in answer.headers
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert answer.headers["access-control-allow-methods"] == "OPTIONS, POST"
    allowed = set(answer.headers["access-control-allow-headers"].split(", "))
    assert allowed == {
        "authorization", "content-type", "accept", "idempotency-key", "tuplegate-database", "tuplegate-transaction-id",
        "tuplegate-consistency", "tuplegate-position",
    }  # fmt: skip
    assert int(answer.headers["access-control-max-age"]) > 0
    assert answer.headers["vary"] == "origin"
    with_values = preflight(open_service.url, "/v1/transaction/txn_abcdefgh", PAGE)
    assert with_values.headers["access-control-allow-methods"] == "GET, HEAD, OPTIONS"


def test_a_preflight_of_a_route_with_headers_of_its_own_names_them(open_service: Service) -> None:
    """Those of Neon's driver, beside what all routes take; and the page can read the answer, an error too."""
    answer = preflight(open_service.url, "/sql", PAGE)
    assert (answer.status_code, answer.headers["access-control-allow-methods"]) == (204, "OPTIONS, POST")
    names = {f"neon-{name}" for name in ("connection-string", "raw-text-output", "array-mode")}
    names |= {f"neon-batch-{name}" for name in ("isolation-level", "read-only", "deferrable")}
    allowed = set(answer.headers["access-control-allow-headers"].split(", "))
    assert names | {"authorization", "content-type", "accept"} <= allowed
    for query, status in (("select 1", 200), ("selec", 400)):
        headers = {"Neon-Connection-String": f"postgresql://any:{open_service.key}@localhost/main", "Origin": PAGE}
        asked = httpx.post(f"{open_service.url}/sql", json={"query": query}, headers=headers, trust_env=False)
        assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (status, PAGE)


def test_pages_can_use_every_header_that_is_described(service: Service) -> None:
    """Send it, or read it. The others are known to browsers, or are no business of a page's."""
    sent, read = set(), set()
    for url in (service.url, service.control_url):
        document = httpx.get(f"{url}/openapi.json", trust_env=False).json()
        read |= {name.lower() for name in document["components"]["headers"]}
        for operation in (one for path in document["paths"].values() for one in path.values()):
            sent |= {one["name"].lower() for one in operation.get("parameters", []) if one["in"] == "header"}
    exposed = post(service.url, service.key, service.control_url).headers["access-control-expose-headers"]
    assert read - {"allow", "www-authenticate"} == set(exposed.split(", "))
    allowed = set()
    for path in ("/v1/query", "/sql"):
        answer = preflight(service.url, path, service.control_url)
        allowed |= set(answer.headers["access-control-allow-headers"].split(", "))
    assert sent | {"authorization", "content-type", "accept"} == allowed


def test_a_preflight_of_another_origin_allows_nothing(open_service: Service) -> None:
    """The path is described, no more."""
    answer = preflight(open_service.url, "/v1/query", "https://elsewhere.example")
    assert answer.status_code == 204
    assert answer.headers["allow"] == "OPTIONS, POST"
    assert cors_of(answer) == {}


def test_a_preflight_for_no_route_is_not_found(open_service: Service) -> None:
    """With the headers that let the page see it."""
    answer = preflight(open_service.url, "/nowhere", PAGE)
    assert answer.status_code == 404
    assert answer.headers["access-control-allow-origin"] == PAGE


def test_the_control_plane_allows_the_same(open_service: Service) -> None:
    """Pages log in there."""
    assert preflight(open_service.control_url, "/health", PAGE).headers["access-control-allow-origin"] == PAGE
    answer = httpx.get(open_service.control_url + "/health", headers={"Origin": PAGE}, trust_env=False, verify=False)
    assert answer.headers["access-control-allow-origin"] == PAGE


def test_the_alias_allows_no_page(open_service: Service) -> None:
    """Neither in what it answers itself, nor in what it forwards."""
    for origin in (PAGE, open_service.control_url):
        assert cors_of(post(open_service.alias_url, open_service.key, origin)) == {}
        assert cors_of(preflight(open_service.alias_url, "/v1/query", origin)) == {}
        own = httpx.get(open_service.alias_url + "/health", headers={"Origin": origin}, trust_env=False, verify=False)
        assert cors_of(own) == {}


def test_all_origins_where_that_was_asked_for() -> None:
    """`*` says so to everybody, and the answer is the same for all."""
    data_dir = new_data_dir()
    running = start_service(data_dir, "--cors-origins", "*")
    try:
        answer = post(running.url, running.key, "https://anybody.example")
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "vary" not in answer.headers
    finally:
        assert running.stop() == 0
        remove(data_dir)


@pytest.mark.parametrize(
    "origins", ["app.example", "https://app.example/path", "ftp://app.example", "https://*.example", "null", "https://"]
)
def test_an_origin_that_no_browser_sends_is_refused_at_the_start(origins: str) -> None:
    """By name, before anything is made."""
    data_dir = new_data_dir()
    try:
        clear(run("serve", "--data-dir", str(data_dir), "--cors-origins", origins), "--cors-origins", origins)
        assert not data_dir.exists()
    finally:
        remove(data_dir)


@pytest.mark.parametrize("plane", ["url", "alias_url", "control_url"])
@pytest.mark.parametrize("path", ["/", "/health", "/nowhere", "/v1/query"])
def test_every_answer_has_its_security_headers(service: Service, plane: str, path: str) -> None:
    """On every plane, of every status; the one for TLS only over TLS."""
    answer = httpx.get(getattr(service, plane) + path, trust_env=False, verify=False)
    assert answer.headers.get_list("x-content-type-options") == ["nosniff"]
    assert answer.headers.get_list("referrer-policy") == ["no-referrer"]
    assert answer.headers.get_list("content-security-policy") == ["default-src 'none'; frame-ancestors 'none'"]
    assert answer.headers.get_list("cache-control") == ["no-store"]
    assert "strict-transport-security" not in answer.headers


def test_an_answer_to_garbage_has_them_too(service: Service) -> None:
    """It is made elsewhere than the others."""
    answer = ask(service, b"\x00\r\n\r\n")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "content-security-policy" in answer.headers
