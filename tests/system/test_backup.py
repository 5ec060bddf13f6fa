"""Backup and restore, by the commands of `docs/operations.md` themselves."""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.control import Control
from tests.dumps import PROGRAMS
from tests.service import Service, needs_bundled, running_service

pytestmark = needs_bundled

PAGE = Path(__file__).parent.parent.parent / "docs/operations.md"


@contextmanager
def service() -> Iterator[Service]:
    with running_service() as running:
        yield running


def command(program: str) -> str:
    """The block of the page that runs the program."""
    blocks: list[str] = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    [found] = [text for text in blocks if f"/{program} " in text]
    return found


def run(text: str, of: Service, directory: Path) -> None:
    environment = {**os.environ, "DATA": str(of.data_dir), "BIN": str(PROGRAMS)}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text], env=environment, cwd=directory, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("was_reset", [False, True])
def test_what_was_dumped_is_there_after_the_restore(tmp_path: Path, was_reset: bool) -> None:
    """In another installation, for its own keys, those that only read too; also of a database that was reset before,
    and beside one of the same name in another organization."""
    with service() as first:
        control = Control(first, first.key)
        control.post("/v1/organizations", {"name": "other"})
        sql = control.sql()
        if was_reset:
            assert sql.client.post("/admin/reset").status_code == 200
        sql("create type mood as enum ('fine')")
        sql("create table kept (id int generated always as identity primary key, m mood)")
        sql("insert into kept (m) values ('fine'), (null)")
        run(command("pg_dump"), first, tmp_path)
    with service() as second:
        run(command("pg_restore"), second, tmp_path)
        control = Control(second, second.key)
        reader = control.post("/v1/keys", {"name": "r", "scopes": ["read"]})["key"]
        assert control.sql(reader).rows("select * from kept order by id", row_mode="arrays") == [[1, "fine"], [2, None]]
        assert control.sql()("insert into kept (m) values ('fine') returning id")["rows"] == [{"id": 3}]
