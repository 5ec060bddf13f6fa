"""The page of the client is true: its examples print what it shows, and its tree is the tree."""

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tuplegate.client
from tests.service import Service, running_service
from tuplegate.client import AsyncClient, AsyncOpenTransaction, Client, OpenTransaction, TuplegateError

PAGE = (Path(__file__).parent.parent.parent / "docs/client.md").read_text("utf-8")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def fresh_service() -> Iterator[Service]:
    with running_service() as running:
        yield running


def test_every_example_prints_what_the_page_shows(fresh_service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the page, as one program."""
    monkeypatch.setenv("TUPLEGATE_URL", fresh_service.url)
    monkeypatch.setenv("TUPLEGATE_API_KEY", fresh_service.key)
    blocks = [(match[1], match[2]) for match in BLOCK.finditer(PAGE)]
    names: dict[str, Any] = {}
    ran = 0
    for (kind, code), (shown_kind, shown) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        if kind == "python":
            assert shown_kind == "text", f"the page does not show what this prints:\n{code}"
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(code, "docs/client.md", "exec"), names)
            assert printed.getvalue() == shown, code
            ran += 1
    assert ran > 5


def test_every_error_is_in_the_tree_of_the_page() -> None:
    """All that is below TuplegateError and exported."""
    tree = next(match[2] for match in BLOCK.finditer(PAGE) if match[2].startswith("TuplegateError"))
    kinds = [getattr(tuplegate.client, name) for name in tuplegate.client.__all__]
    errors = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, TuplegateError)]
    assert len(errors) > 30
    assert {kind.__name__ for kind in errors} == set(re.findall(r"\b[A-Z][A-Za-z]+[a-z]\b", tree))


def test_every_method_is_on_the_page() -> None:
    """Of the client, of its collections and of its transactions."""
    for name in (name for name in vars(Client) if not name.startswith("_")):
        assert re.search(rf"\b{name}\b", PAGE), name
    for name in (name for name in vars(OpenTransaction) if not name.startswith("_")):
        assert re.search(rf"\bt\.{name}\b", PAGE), name
    with Client("http://127.0.0.1:1", "svc_k_x") as client:
        for collection in (client.databases, client.keys, client.organizations, client.engines):
            for name in (name for name in vars(type(collection)) if not name.startswith("_")):
                assert f".{name}(" in PAGE, name


def test_both_clients_have_the_same_methods() -> None:
    """But for the name of close."""
    ours = {name for name in vars(Client) if not name.startswith("_")}
    theirs = {name for name in vars(AsyncClient) if not name.startswith("_")}
    assert ours - {"close"} == theirs - {"aclose"}
    assert {name for name in dir(OpenTransaction) if not name.startswith("_")} == {
        name for name in dir(AsyncOpenTransaction) if not name.startswith("_")
    }
