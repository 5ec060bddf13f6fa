"""The pages of the DB-API and of SQLAlchemy are true: their examples print what they show."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

from tests.service import Service
from tests.sqlalchemy_suite.requirements import CLOSED
from tests.tenants import tenant_of

DOCS = Path(__file__).parent.parent.parent / "docs"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["dbapi.md", "sqlalchemy.md"])
def test_every_example_prints_what_the_page_shows(service: Service, monkeypatch: pytest.MonkeyPatch, page: str) -> None:
    """In the order of the page, as one program, in a database that has nothing else."""
    with tenant_of(service, f"reads-{page.partition('.')[0]}") as tenant:
        monkeypatch.setenv("TUPLEGATE_URL", service.url)
        monkeypatch.setenv("TUPLEGATE_API_KEY", tenant.write.client.headers["Authorization"].removeprefix("Bearer "))
        _run(page)


def _run(page: str) -> None:
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


def test_every_exclusion_from_the_suite_of_sqlalchemy_is_on_the_page() -> None:
    page = (DOCS / "sqlalchemy.md").read_text("utf-8")
    for name, reason in CLOSED.items():
        assert re.search(rf"^\|.*`{name}`.*\| {re.escape(reason)} \|$", page, re.MULTILINE), name
    listed = re.findall(r"`(\w+)`", page[page.index("| excluded") :])
    assert set(listed) == {*CLOSED, "test_dialect_user_setting_is_restored"}
