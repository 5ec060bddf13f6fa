"""The console's files: served from memory, without a token, as they were built, under a policy of their own."""

import gzip
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.control import error_of
from tests.directories import new_directory
from tests.http.test_bad_input import ask
from tests.http.test_cors import cors_of, post
from tests.service import Service, running_service

PAGE = "<!doctype html><title>Tuplegate</title><script type=module src=/console/assets/index-Bx81.js></script>"
SCRIPT = "export const answer = 42\n" * 400


def build(folder: Path) -> Path:
    """Write what stands for a built console, compressed as the build does it."""
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text(PAGE)
    (folder / "icon.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    (folder / "assets/index-Bx81.js").write_text(SCRIPT)
    (folder / "assets/index-Bx81.js.gz").write_bytes(gzip.compress(SCRIPT.encode(), mtime=0))
    (folder / "assets/index-Bx81.js.br").write_bytes(b"brotli, for all that the service knows")
    (folder.parent / "secret.txt").write_text("not a part of it")
    return folder


@pytest.fixture(scope="module")
def console() -> Iterator[Service]:
    home = new_directory()
    with running_service("--console-dir", str(build(home / "built"))) as running:
        yield running
    shutil.rmtree(home)


def get(service: Service, path: str, encodings: str = "identity", **headers: str) -> httpx.Response:
    given = {"Accept-Encoding": encodings, **headers}
    return httpx.get(service.control_url + path, headers=given, trust_env=False, verify=service.trust)


def test_the_page_is_served_without_a_token(console: Service) -> None:
    """It is asked for again each time, and answered in a word where it is the same."""
    answer = get(console, "/console/")
    assert (answer.status_code, answer.text) == (200, PAGE)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers.get_list("cache-control") == ["private, no-cache"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    again = get(console, "/console/", **{"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == answer.headers["etag"]
    assert "content-length" not in again.headers
    assert get(console, "/console/", **{"If-None-Match": '"other", W/' + answer.headers["etag"]}).status_code == 304
    assert get(console, "/console/", **{"If-None-Match": '"other"'}).status_code == 200


def test_the_address_without_its_slash_leads_there(console: Service) -> None:
    """By a path, so that it holds behind a proxy as well."""
    answer = get(console, "/console")
    assert (answer.status_code, answer.headers["location"]) == (308, "/console/")


def test_the_page_may_do_only_what_it_needs(console: Service) -> None:
    """Its own scripts and styles, and requests to the two planes; nothing inline, and nobody frames it."""
    data = console.url
    answer = get(console, "/console/")
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert answer.headers.get_list("content-security-policy") == [
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; "
        f"connect-src 'self' {data}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ]


def test_what_has_its_hash_in_its_name_is_kept_for_good(console: Service) -> None:
    """It is sent in the best coding that the browser takes."""
    for encodings, coding in (
        ("gzip, deflate, br", "br"),
        ("gzip", "gzip"),
        ("br;q=0, gzip;q=0.5", "gzip"),
        ("GZIP", "gzip"),
        ("*;q=0.1, gzip;q=0", "br"),
        ("identity", None),
        ("", None),
        ("gzip;q=nonsense", None),
    ):
        with httpx.Client(trust_env=False) as client:
            url = f"{console.control_url}/console/assets/index-Bx81.js"
            with client.stream("GET", url, headers={"Accept-Encoding": encodings}) as answer:
                raw = b"".join(answer.iter_raw())
        assert answer.headers.get("content-encoding") == coding, encodings
        assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
        assert answer.headers.get_list("cache-control") == ["public, max-age=31536000, immutable"]
        assert answer.headers["vary"] == "accept-encoding"
        assert int(answer.headers["content-length"]) == len(raw)
    assert get(console, "/console/assets/index-Bx81.js", "gzip").text == SCRIPT
    tags = {get(console, "/console/assets/index-Bx81.js", one).headers["etag"] for one in ("gzip", "identity")}
    assert len(tags) == 2, "two codings are two answers"


def test_other_files_are_asked_for_again(console: Service) -> None:
    """Their names stay the same when they change."""
    answer = get(console, "/console/icon.svg")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/svg+xml")
    assert answer.headers["cache-control"] == "private, no-cache"


def test_head_is_get_without_its_body(console: Service) -> None:
    """Of a file, and of the page."""
    for path in ("/console/", "/console/assets/index-Bx81.js", "/console/config.json"):
        url = console.control_url + path
        head, whole = (httpx.request(method, url, trust_env=False) for method in ("HEAD", "GET"))
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == whole.headers["content-length"]


@pytest.mark.parametrize(
    "path",
    [
        "/console/assets/index-Other.js",
        "/console/assets/index-Bx81.js.gz",
        "/console/assets/",
        "/console/assets",
        "/console/index.html.br",
        "/console/../secret.txt",
        "/console/assets/../../secret.txt",
        "/console/%2e%2e/secret.txt",
        "/console/assets/..%2f..%2fsecret.txt",
        "/console/assets/..%5csecret.txt",
        "/console//etc/passwd",
        "/console/assets/%00",
        "/console/x/index.html",
    ],
)
def test_nothing_else_can_be_read(console: Service, path: str) -> None:
    """Files are found by their name in a table, never by a path; no client's library tidies the path here."""
    at_control = Service(**{**console.__dict__, "url": console.control_url})
    answer = ask(at_control, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
    assert answer.status == 404
    assert b"not a part of it" not in answer.body


def test_other_methods_are_refused(console: Service) -> None:
    """As on every path."""
    answer = httpx.post(f"{console.control_url}/console/", trust_env=False)
    assert error_of(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "GET"


# -- where the planes are ------------------------------------------------------------------------------------------


def config(service: Service, host: str) -> dict[str, str | None]:
    answer = get(service, "/console/config.json", Host=host)
    assert answer.status_code == 200
    assert answer.headers.get_list("cache-control") == ["no-store"]
    found: dict[str, str | None] = answer.json()
    return found


def port_of(url: str) -> str:
    return url.rpartition(":")[2]


def test_the_page_learns_where_the_planes_are(console: Service) -> None:
    """By the name that the browser uses where that is one of this machine; no other name is taken from a request."""
    own = config(console, f"127.0.0.1:{port_of(console.control_url)}")
    assert own == {
        "version": "0.61.0",
        "data_url": console.url,
        "alias_url": console.alias_url,
        "control_url": console.control_url,
    }
    local = config(console, f"localhost:{port_of(console.control_url)}")
    assert local["data_url"] == f"http://localhost:{port_of(console.url)}"
    assert local["control_url"] == f"http://localhost:{port_of(console.control_url)}"
    for hostile in ("evil.example", "evil.example:80", "localhost.evil.example", "localhost;x"):
        assert config(console, hostile) == own
        policy = get(console, "/console/", Host=hostile).headers["content-security-policy"]
        assert f"connect-src 'self' {console.url};" in policy


def test_pages_of_this_machine_by_either_name_may_call_the_data_plane(console: Service) -> None:
    """A browser at `localhost` has another origin than one at 127.0.0.1; a Host header makes no third."""
    port = port_of(console.control_url)
    for origin in (console.control_url, f"http://localhost:{port}"):
        assert post(console.url, console.key, origin).headers["access-control-allow-origin"] == origin
    for origin in (
        f"https://localhost:{port}",
        "http://localhost:1",
        "http://localhost",
        f"http://evil.example:{port}",
    ):
        assert cors_of(post(console.url, console.key, origin, Host=f"evil.example:{port_of(console.url)}")) == {}


def test_addresses_that_others_use_are_told_as_they_were_given() -> None:
    """Behind a proxy; then a name of this machine is none of the service's."""
    flags = ("--data-url", "https://data.example", "--control-url", "https://console.example:8443")
    with running_service(*flags) as running:
        assert "console: https://console.example:8443/console" in running.output
        found = config(running, "localhost:8082")
        assert found["data_url"] == "https://data.example"
        assert found["control_url"] == "https://console.example:8443"
        answer = post(running.url, running.key, "https://console.example:8443")
        assert answer.headers["access-control-allow-origin"] == "https://console.example:8443"
        assert cors_of(post(running.url, running.key, f"http://localhost:{port_of(running.control_url)}")) == {}


def test_a_service_that_is_bound_everywhere_goes_by_the_name_of_the_request() -> None:
    """It knows none of its own: page and data plane have the same name, and only the console's port is allowed."""
    with running_service("--host", "0.0.0.0", "--behind-proxy") as running:
        data, control = port_of(running.url), port_of(running.control_url)
        running.url, running.control_url = f"http://127.0.0.1:{data}", f"http://127.0.0.1:{control}"
        found = config(running, f"box.example:{control}")
        assert found["data_url"] == f"http://box.example:{data}"
        assert config(running, "box.example;")["data_url"] is None
        answer = post(running.url, running.key, f"http://box.example:{control}", Host=f"box.example:{data}")
        assert answer.headers["access-control-allow-origin"] == f"http://box.example:{control}"
        for origin in (f"http://other.example:{control}", "http://box.example:1", f"https://box.example:{control}"):
            assert cors_of(post(running.url, running.key, origin, Host=f"box.example:{data}")) == {}


# -- what leads there ----------------------------------------------------------------------------------------------


def test_a_console_that_was_not_built_says_what_is_missing() -> None:
    """And how to mend it; it is there as soon as it is built, without a restart."""
    home = new_directory()
    built = home / "built"
    built.mkdir()
    (built / "missing.txt").write_text("npm could not fetch <packages>")
    with running_service("--console-dir", str(built)) as running:
        answer = get(running, "/console/")
        assert answer.status_code == 503
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.headers.get_list("cache-control") == ["no-store"]
        assert "make console" in answer.text
        assert "npm could not fetch &lt;packages&gt;" in answer.text
        assert get(running, "/console/assets/index-Bx81.js").status_code == 404
        (built / "missing.txt").unlink()
        build(built)
        assert get(running, "/console/").text == PAGE
    shutil.rmtree(home)


def test_the_banners_and_the_other_planes_lead_to_it(console: Service) -> None:
    """As a link, as a hint, and from the alias by a redirect."""
    for plane in (console.url, console.control_url, console.alias_url):
        banner = httpx.get(plane, trust_env=False).json()
        assert banner["console"] == f"{console.control_url}/console/"
    hint = httpx.get(f"{console.url}/console", trust_env=False).json()["error"]["hint"]
    assert f"{console.control_url}/console" in hint
    moved = httpx.get(f"{console.alias_url}/console/", trust_env=False)
    assert (moved.status_code, moved.headers["location"]) == (307, f"{console.control_url}/console/")


def test_the_service_prints_the_address(console: Service) -> None:
    """Among the other addresses."""
    assert f"console: {console.control_url}/console" in console.output
