"""Programs in JavaScript beside the packages that they import."""

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.peers.install import PATH, NotInstalled, install

from tests.service import Service, Sql

CLIENTS = Path(__file__).parent.parent / "clients"
INSTALLED = Path.home() / ".cache" / "tuplegate" / "clients"
"""Outside of the repository, as the generators are."""

COLUMNS = (
    "id int primary key, name text, big int8, price numeric, at timestamptz, data jsonb, tags text[], done boolean"
)

Program = Callable[[str], Any]


@pytest.fixture(scope="session")
def javascript(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs, with the packages."""
    if shutil.which("node", path=PATH) is None:
        pytest.skip("there is no Node.js")
    try:
        packages = install("javascript", INSTALLED, CLIENTS)
    except NotInstalled as exc:
        pytest.skip(f"the clients cannot be had: {exc}")
    folder = tmp_path_factory.mktemp("clients")
    for program in (CLIENTS / "javascript").glob("*.mjs"):
        shutil.copy(program, folder)
    (folder / "node_modules").symlink_to(packages / "node_modules")
    return folder


@pytest.fixture
def run(service: Service, sql: Sql, javascript: Path, address: str) -> Iterator[Program]:
    """Run a program with an empty table of its own; return what it tells."""
    table = f"t_{uuid.uuid4().hex[:12]}"
    sql(f"create table {table} ({COLUMNS})")

    def run(name: str) -> Any:
        environment = {
            **os.environ,
            "PATH": PATH,
            "TUPLEGATE_URL": service.url,
            "TUPLEGATE_TUNNEL": address,
            "TUPLEGATE_API_KEY": service.key,
            "TUPLEGATE_TABLE": table,
        }
        command = ["node", str(javascript / f"{name}.mjs")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, cwd=javascript)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    yield run
    sql(f"drop table {table}")
