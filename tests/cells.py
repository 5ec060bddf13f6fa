"""Cells for tests: directories of cells with the bundled programs, servers in them, and questions to those."""

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import psycopg
import pytest

from tests.directories import new_directory
from tests.waiting import eventually
from tuplegate.engine.bundled.binaries import Binaries, choose_wheel
from tuplegate.engine.bundled.data_directory import DataDirectory
from tuplegate.engine.cells.layout import CellsDirectory
from tuplegate.engine.cells.making import Prepared, make_cell, prepare_data
from tuplegate.engine.cells.server import CellServer, CellSettings, ServerReport, ServerState

T = TypeVar("T")


@dataclass(frozen=True)
class Programs:
    """PostgreSQL's programs in a place that cells reach, and a prepared directory."""

    binaries: Binaries
    prepared: Prepared


@dataclass(frozen=True)
class Cells:
    """A directory of cells for one test, and the servers that the test has started."""

    directory: CellsDirectory
    programs: Programs
    servers: list[CellServer] = field(default_factory=list)

    def make(self, cell_id: str = "a") -> Path:
        make_cell(self.directory, self.programs.prepared.data, cell_id)
        return self.directory.locate(cell_id)

    def server(self, cell_id: str = "a", settings: CellSettings | None = None) -> CellServer:
        """Return the server of a cell, which is killed after the test."""
        made = CellServer(self.directory.locate(cell_id), self.programs.binaries, settings or CellSettings())
        self.servers.append(made)
        return made

    def start(self, cell_id: str = "a", settings: CellSettings | None = None) -> CellServer:
        """Return the server of a cell once it is ready."""
        server = self.server(cell_id, settings)
        assert server.start(time.monotonic()) is ServerState.STARTING
        await_state(server, ServerState.READY)
        return server

    def connect(self, cell_id: str = "a", **options: str) -> psycopg.Connection:
        parameters = {
            "host": str(self.directory.locate(cell_id) / "run"),
            "port": "5432",
            "user": "tuplegate",
            "dbname": "postgres",
            "password": self.programs.prepared.password,
        }
        return psycopg.connect(**(parameters | options), autocommit=True)  # type: ignore[arg-type]

    def ask(self, sql: str, cell_id: str = "a") -> object:
        with self.connect(cell_id) as connection:
            row = connection.execute(sql.encode()).fetchone()
            assert row is not None
            return row[0]


def await_state(server: CellServer, state: ServerState) -> ServerReport:
    """Look at a server until it has this state."""

    def look() -> ServerReport | None:
        report = server.look(time.monotonic())
        assert report.state is state or report.state is not ServerState.ENDED, report
        return report if report.state is state else None

    return eventually(look)


def stop(server: CellServer) -> ServerReport:
    server.stop(time.monotonic())
    return await_state(server, ServerState.ENDED)


@pytest.fixture(scope="session")
def cell_programs() -> Iterator[Programs]:
    """The bundled programs, and a directory prepared with them."""
    parent = new_directory()
    data = DataDirectory(parent / "data")
    data.take(None)
    binaries = choose_wheel(data)
    directory = CellsDirectory(data.path)
    directory.make()
    with prepare_data(directory, binaries, data.account) as prepared:
        yield Programs(binaries, prepared)
    data.release()
    shutil.rmtree(parent)


@pytest.fixture
def cells(cell_programs: Programs) -> Iterator[Cells]:
    parent = new_directory()
    directory = CellsDirectory(parent)
    directory.make()
    made = Cells(directory, cell_programs)
    yield made
    for server in made.servers:
        server.kill()
        while server.pid:
            server.look(time.monotonic())
            time.sleep(0.01)
    shutil.rmtree(parent)
