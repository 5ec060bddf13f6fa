"""The page of the DB-API is true: its examples print what it shows."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

from tests.service import Service

DOCS = Path(__file__).parent.parent.parent / "docs"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["dbapi.md"])
def test_every_example_prints_what_the_page_shows(service: Service, monkeypatch: pytest.MonkeyPatch, page: str) -> None:
    """In the order of the page, as one program."""
    monkeypatch.setenv("TUPLEGATE_URL", service.url)
    monkeypatch.setenv("TUPLEGATE_API_KEY", service.key)
    blocks = [(match[1], match[2]) for match in BLOCK.finditer((DOCS / page).read_text("utf-8"))]
    names: dict[str, Any] = {}
    ran = 0
    for (kind, code), (shown_kind, shown) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        if kind == "python":
            assert shown_kind == "text", f"the page does not show what this prints:\n{code}"
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(code, page, "exec"), names)
            assert printed.getvalue() == shown, code
            ran += 1
    assert ran > 2
