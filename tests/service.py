"""The real service as a child process, and small clients for it. Tests talk to it as any user would: over a socket."""

import asyncio
import functools
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx
import psycopg
import pytest

from tests import preloaded
from tests.directories import copy_data, make_once, new_directory
from tuplegate.engine.cells.catalog import find_catalog
from tuplegate.engine.cells.databases import Installation
from tuplegate.engine.cells.layout import CellsDirectory
from tuplegate.engine.cells.server import is_ready
from tuplegate.engine.cells.template import Template
from tuplegate.engine.libpq.connections.logins import as_tenant
from tuplegate.engine.port import Access
from tuplegate.engine.postgres.transfer.following import Limits
from tuplegate.installation import install
from tuplegate.settings import Settings
from tuplegate.supervisor.engine_server import open_bundled

ENGINE = os.environ.get("TUPLEGATE_TEST_ENGINE", "")
"""URL of a PostgreSQL to run the tests on instead of bundled ones: `make test ENGINE=…`. Its database is not used; its
user must be a superuser, and its settings as docs/operations.md wants them."""

needs_bundled = pytest.mark.skipif(bool(ENGINE), reason="it is about the bundled engine, and another was given")

AUTHORITIES = ssl.create_default_context()
"""What the machine trusts: to read it takes longer than most tests, so it is read once."""

FORKED = "TUPLEGATE_TEST_FORKED"
"""Is set where services may be forked from a process that has loaded them: in tests, and not in benchmarks."""

START_TIMEOUT_S = 60
ENGINE_START_TIMEOUT_S = 300
"""For a first start on an engine of one's own, which may change definitions one by one."""
STOP_TIMEOUT_S = 60


@dataclass
class Service:
    """A running service. `key` is the first key; it is empty when the data directory was used before."""

    process: subprocess.Popen[bytes] | preloaded.Process
    home: Path
    url: str
    alias_url: str
    control_url: str
    key: str
    output: list[str] = field(default_factory=list)
    engine: str = ""
    """The URL of its engine, where that is not the bundled one."""

    @property
    def data_dir(self) -> Path:
        return self.home / "data"

    @property
    def environment(self) -> dict[str, str]:
        """For commands on the service's machine."""
        return {**os.environ, **({"TUPLEGATE_ENGINE": self.engine} if self.engine else {})}

    @property
    def log(self) -> str:
        return (self.home / "service.log").read_text()

    def conninfo(self, database: str) -> str:
        """For the engine's superuser; `tuplegate` is the metadata database, whatever its name. Each other database has
        a server of its own in the bundled engine, which must be awake; the first one is waked."""
        if self.engine:
            return self.engine if database == "tuplegate" else with_database(self.engine, database)
        return self._catalog if database == "tuplegate" else f"{self._cell(database)} dbname={database}"

    def server_of(self, database: str = "") -> str:
        """For the engine's superuser, in the service's own database on the server that a database is on: without one,
        the service's first."""
        return self.engine or f"{self._cell(database or self.first_database)} dbname=tuplegate"

    @property
    def first_database(self) -> str:
        """The engine's name of the first database."""
        with psycopg.connect(self.conninfo("tuplegate")) as connection:
            row = connection.execute(
                "select engine_name from database where is_default order by created_at limit 1"
            ).fetchone()
        assert row is not None
        return str(row[0])

    @property
    def writer(self) -> str:
        """For the role that writes in the first database, which is waked. With the bundled engine."""
        cells, name = self.cells, self.first_database
        self._cell(name)
        return f"{as_tenant(cells.login(name), cells.secret_of(name), name, Access.WRITE)} dbname={name}"

    @property
    def _catalog(self) -> str:
        return f"{find_catalog(self.data_dir)} dbname=tuplegate"

    @property
    def cells(self) -> Installation:
        """What a worker knows of the cells, where databases have them."""
        with psycopg.connect(self._catalog) as connection:
            row = connection.execute("select secret from installation").fetchone()
        assert row is not None
        return Installation(row[0], CellsDirectory(self.data_dir), Template("", Path(), "", "", 0), (), Limits())

    def _cell(self, database: str) -> str:
        cells = self.cells
        if self.key and not is_ready(cells.directory.locate(database)):
            with self.client() as client:
                client.post("/v1/query", json={"sql": "select"})  # wakes the database that the first key is for
        return cells.superuser(database)

    @property
    def trust(self) -> ssl.SSLContext:
        """What a client knows that trusts the certificate of the service's own making, where it has one."""
        made = self.data_dir / "tls" / "certificate.pem"
        return ssl.create_default_context(cafile=str(made)) if made.exists() else AUTHORITIES

    @property
    def alias(self) -> "Service":
        """The same service, by its alias."""
        return replace(self, url=self.alias_url)

    def client(self, key: str | None = None) -> httpx.Client:
        headers = {"Authorization": f"Bearer {key or self.key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False, verify=self.trust)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_TIMEOUT_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(STOP_TIMEOUT_S)


def new_data_dir() -> Path:
    return new_directory() / "data"


def _initialize(data_dir: Path) -> None:
    """Make everything but the first key, as a service does that is stopped before it has shown that."""
    settings = Settings(data_dir=data_dir)
    with open_bundled(settings) as bundled:
        asyncio.run(install(bundled.owner(settings)))


def copy_initialized(data_dir: Path) -> None:
    """Put there what a first start makes, but for the first key."""
    copy_data(make_once("initialized", _initialize), data_dir)


def with_database(url: str, database: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{database}"))


@functools.cache
def newer_than(major: int) -> bool:
    """Whether the engine of the tests is of a later major release; the bundled one is of the latest."""
    if not ENGINE:
        return True
    with psycopg.connect(with_database(ENGINE, "postgres")) as server:
        return server.info.server_version >= (major + 1) * 10_000


def since(major: int) -> pytest.MarkDecorator:
    """For what a release of PostgreSQL has brought."""
    return pytest.mark.skipif(not newer_than(major - 1), reason=f"PostgreSQL {major} brought it")


def engine_for(data_dir: Path) -> str:
    """The engine that the tests were given, with a metadata database for this data directory alone."""
    return with_database(ENGINE, f"tgt_{data_dir.parent.name[3:]}".lower()) if ENGINE else ""


def start_service(
    data_dir: Path,
    *flags: str,
    env: dict[str, str] | None = None,
    initialized: bool = True,
    files_max: int | None = None,
    program: str = "tuplegate",
) -> Service:
    """Starts it and waits until it serves. Its output goes to files in the parent of the data directory. It may have
    `files_max` files open. `program` is the module that is run.

    Where that is not there yet the service finds what initdb makes, unless that is to be its own work.
    """
    log, out = data_dir.parent / "service.log", data_dir.parent / "service.out"
    ports = ["--data-port", "0", "--alias-port", "0", "--control-port", "0"]
    arguments = ["serve", "--data-dir", str(data_dir), *ports, *flags]
    engine = (env or {}).get("TUPLEGATE_ENGINE") or engine_for(data_dir)
    external = {"TUPLEGATE_ENGINE": engine, "TUPLEGATE_ENGINE_EXCLUSIVE": "true"} if engine else {}
    if engine or "TUPLEGATE_ENGINES" in (env or {}):
        external["TUPLEGATE_ACCEPT_WEAKER_WALLS"] = "true"  # the tests' own organizations trust each other
    given = {**os.environ, **external, **(env or {})}
    if initialized and not engine and not data_dir.exists():
        copy_initialized(data_dir)
    # A first start is tried in full, and so is what Python or its loader would have to be told at its own start.
    is_told = any(name.startswith(("PYTHON", "LD_")) for name in env or ())
    is_full = program != "tuplegate" or not initialized or files_max is not None or is_told
    process: subprocess.Popen[bytes] | preloaded.Process
    with log.open("a") as stderr, out.open("w") as stdout:
        if os.environ.get(FORKED) and not is_full:
            process = preloaded.start(arguments, given, stdout, stderr)
        else:
            limited = [] if files_max is None else ["sh", "-c", f'ulimit -n {files_max}; exec "$0" "$@"']
            command = [*limited, sys.executable, "-m", program, *arguments]
            process = subprocess.Popen(command, stdout=stdout, stderr=stderr, env=given)
    deadline = time.monotonic() + (ENGINE_START_TIMEOUT_S if engine else START_TIMEOUT_S)
    # The addresses, the key and the line to paste are written at once, when the service is ready.
    while not (text := out.read_text()).endswith("\n"):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.wait()
            raise AssertionError(f"the service did not start: {log.read_text()[-2000:]}")
        time.sleep(0.01)
    output = text.splitlines()
    values = dict(line.split(": ", 1) for line in output)
    return Service(
        process,
        data_dir.parent,
        values["data"],
        values.get("alias", ""),
        values.get("control", ""),
        values.get("key", ""),
        output,
        engine,
    )


def make_key(service: Service, *scopes: str) -> str:
    """A key made on the machine itself, without HTTP."""
    arguments = ["key", "create", "--data-dir", str(service.data_dir)]
    arguments += ["--name", "local", *(f"--scope={scope}" for scope in scopes)]
    made = preloaded.run(arguments, service.environment)
    made.check_returncode()
    return made.stdout.removeprefix("key: ").strip()


def remove(data_dir: Path) -> None:
    """Removes the data directory, and on an engine that was given everything that the service has made there."""
    if engine := engine_for(data_dir):
        remove_installation(engine)
    shutil.rmtree(data_dir.parent, ignore_errors=True)


@contextmanager
def running_service(*flags: str, env: dict[str, str] | None = None) -> Iterator[Service]:
    """Gives a service with data of its own. It must stop as it should, and its data are removed. Where the test fails,
    nothing of it goes on beside the others."""
    data_dir = new_data_dir()
    running = start_service(data_dir, *flags, env=env)
    try:
        yield running
        assert running.stop() == 0
    finally:
        running.kill()
        remove(data_dir)


def with_force(server: psycopg.Connection[Any]) -> str:
    """The end of a DROP DATABASE that nobody who uses the database can prevent."""
    return "cascade" if server.info.parameter_status("crdb_version") else "with (force)"


def remove_installation(engine: str) -> None:
    metadata = urlsplit(engine).path[1:]
    with psycopg.connect(with_database(engine, "postgres"), autocommit=True) as server:
        force = with_force(server)
        if not server.execute("select 1 from pg_database where datname = %s", [metadata]).fetchall():
            return
        with psycopg.connect(engine, autocommit=True) as catalog:
            rows = catalog.execute("select engine_name from database union select engine_name from leftover").fetchall()
            databases = [row[0] for row in rows]
        for name in databases:
            server.execute(f"drop database if exists {name} {force}".encode())
            server.execute(f"drop role if exists {name}_w, {name}_r, {name}_d".encode())
        server.execute(f"drop database {metadata} {force}".encode())
        with suppress(psycopg.errors.DependentObjectsStillExist):  # another installation of the tests uses it
            server.execute("drop role if exists tuplegate_dump")


class Sql:
    """`POST /v1/query` in one call."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client

    def answer(self, sql: str, params: list[Any] | None = None, **more: Any) -> httpx.Response:
        body: dict[str, Any] = {"sql": sql, **more}
        if params is not None:
            body["params"] = params
        return self.client.post("/v1/query", content=json.dumps(body), headers={"Content-Type": "application/json"})

    def __call__(self, sql: str, params: list[Any] | None = None, **more: Any) -> dict[str, Any]:
        """The body of an answer that must be a success."""
        answer = self.answer(sql, params, **more)
        body: dict[str, Any] = answer.json()
        assert answer.status_code == 200, body
        assert body["success"], body
        return body

    def rows(self, sql: str, params: list[Any] | None = None, **more: Any) -> list[Any]:
        rows: list[Any] = self(sql, params, **more)["rows"]
        return rows

    def value(self, sql: str, params: list[Any] | None = None) -> Any:
        return self.rows(sql, params, row_mode="arrays")[0][0]

    def fails(self, sql: str, params: list[Any] | None = None, **more: Any) -> dict[str, Any]:
        """The error of an answer that must be 200 and no success."""
        answer = self.answer(sql, params, **more)
        body = answer.json()
        assert answer.status_code == 200, body
        assert body["success"] is False, body
        error: dict[str, Any] = body["error"]
        return error
