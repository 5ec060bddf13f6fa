"""An engine to try: the bundled server, or the one of `make test ENGINE=…`, opened as a worker opens it.

This file alone knows how a server is started. A second adapter is tried by giving its address.
"""

import asyncio
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
import pytest

from tests.directories import new_directory
from tests.port.capabilities import CAPABILITIES, find_capabilities
from tests.port.tenant import Tenant, new_name
from tests.service import ENGINE, with_database, with_force
from tuplegate.engine.bundled.binaries import DumpTool, find_dump_tools
from tuplegate.engine.cells.desk import Desk
from tuplegate.engine.opening import (
    ReachedCells,
    SharedEngine,
    find_owner,
    reach_engines,
    read_address,
    share_engine,
)
from tuplegate.engine.port import FIRST_ENGINE, Engine, EngineDatabases, EngineOwner, ReachedEngine
from tuplegate.engine.postgres.preparation.installing import PostgresOwner
from tuplegate.engine.routing.engines import SeveralEngines
from tuplegate.settings import Settings
from tuplegate.supervisor.engine_server import open_bundled

_T = TypeVar("_T")

_ATTEND_S = 0.005
_WORKER = 0


class Loop:
    """The event loop that the engine lives on. It turns while a test, or a fixture, waits for something."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self.run = runner.run

    @contextmanager
    def open(self, block: AbstractAsyncContextManager[_T]) -> Iterator[_T]:
        entered = self.run(block.__aenter__())
        try:
            yield entered
        finally:
            self.run(block.__aexit__(None, None, None))


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine on the engine's loop."""
    if not asyncio.iscoroutinefunction(pyfuncitem.obj):
        return None
    loop: Loop = pyfuncitem._request.getfixturevalue("loop")
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    test: Coroutine[Any, Any, None] = pyfuncitem.obj(**given)
    loop.run(test)
    return True


@pytest.fixture(scope="session")
def loop() -> Iterator[Loop]:
    with asyncio.Runner() as runner:
        yield Loop(runner)


@dataclass(frozen=True)
class Opened:
    """An engine as a worker has it, and its databases."""

    engine: Engine
    databases: EngineDatabases


@pytest.fixture(scope="session", params=["given"] if ENGINE else ["server", "cells"])
def opened(request: pytest.FixtureRequest, loop: Loop) -> Iterator[Opened]:
    """The bundled engine is tried both ways: with all databases on one server, and with a server for each."""
    secret = secrets.token_bytes(32)
    with {"given": open_given, "server": open_one_server, "cells": open_cells}[request.param](loop, secret) as found:
        yield found


@contextmanager
def open_given(loop: Loop, secret: bytes) -> Iterator[Opened]:
    metadata = f"tgt_port_{secrets.token_hex(6)}"
    settings = Settings(engine=ENGINE, engine_exclusive=True)
    address = read_address(with_database(ENGINE, metadata))
    reached = reach(loop, loop.run(find_owner(address, settings)), settings, find_dump_tools(None), secret)
    with loop.open(reached.open("port", secret)) as engine:
        yield Opened(engine, reached.databases(secret))
    with psycopg.connect(with_database(ENGINE, "postgres"), autocommit=True) as given:
        given.execute(f"drop database if exists {metadata} {with_force(given)}".encode())


@contextmanager
def open_one_server(loop: Loop, secret: bytes) -> Iterator[Opened]:
    home = new_directory("tgp-")
    settings = Settings(data_dir=home / "data")
    with open_bundled(settings) as bundled:
        owner = PostgresOwner(bundled.conninfo, is_bundled=True)
        reached = reach(loop, owner, settings, find_dump_tools(None), secret)
        with loop.open(reached.open("port", secret)) as engine:
            yield Opened(engine, reached.databases(secret))
    shutil.rmtree(home)


@contextmanager
def open_cells(loop: Loop, secret: bytes) -> Iterator[Opened]:
    home = new_directory("tgp-")
    settings = Settings(data_dir=home / "data")
    with open_bundled(settings) as bundled:
        reached = reach(loop, bundled.owner(settings), settings, (), secret)
        end = bundled.desk.open_line(_WORKER, time.monotonic())
        with loop.open(serving_cells(bundled.desk)), loop.open(reached.open("port", secret)) as catalog:
            cells = ReachedCells(settings, bundled.share(settings), _WORKER, ("port", secret), catalog, end)
            with loop.open(cells), loop.open(SeveralEngines(catalog, {}, locate, (), cells)) as engine:
                yield Opened(engine, cells.databases)
    shutil.rmtree(home)


class OneThread(ThreadPoolExecutor):
    """Does everything at once. A process that starts servers, which a worker is here alone, has no other thread."""

    def submit(self, work: Callable[..., _T], /, *values: Any, **more: Any) -> Future[_T]:
        done: Future[_T] = Future()
        try:
            done.set_result(work(*values, **more))
        except Exception as failure:  # noqa: BLE001 - whoever waits for it gets it
            done.set_exception(failure)
        return done


@asynccontextmanager
async def serving_cells(desk: Desk) -> AsyncIterator[None]:
    """Do the supervisor's part until the block is left, whenever the loop turns."""

    asyncio.get_running_loop().set_default_executor(OneThread())

    async def serve() -> None:
        while True:
            desk.attend(time.monotonic())
            await asyncio.sleep(_ATTEND_S)

    serving = asyncio.create_task(serve())
    try:
        yield
    finally:
        serving.cancel()
        desk.drop_line(_WORKER, time.monotonic())


async def locate(names: Sequence[str]) -> dict[str, str]:
    return dict.fromkeys(names, FIRST_ENGINE)


def reach(
    loop: Loop, owner: EngineOwner, settings: Settings, tools: tuple[DumpTool, ...], secret: bytes
) -> ReachedEngine:
    """Return the engine as a worker sees it before it opens it: prepared, as the supervisor does that."""

    async def prepare() -> SharedEngine:
        async with owner.prepare() as preparation:
            ready = await preparation.make_ready(secret)
            return share_engine(FIRST_ENGINE, ready.login, tools, settings, is_bundled=not ENGINE)

    return reach_engines(settings, [loop.run(prepare())], _WORKER)[FIRST_ENGINE]


@pytest.fixture(scope="session")
def engine(opened: Opened) -> Engine:
    return opened.engine


@pytest.fixture(scope="session")
def databases(opened: Opened) -> EngineDatabases:
    return opened.databases


@pytest.fixture(scope="session")
def database(loop: Loop, engine: Engine, databases: EngineDatabases) -> Iterator[str]:
    """The name of a database that all tests share; each has a schema of its own in it."""
    name = new_name()
    loop.run(databases.create(name))
    yield name
    loop.run(databases.drop(name))


@pytest.fixture
def tenant(loop: Loop, engine: Engine, database: str) -> Iterator[Tenant]:
    """Who asks the engine: the shared database, with a schema that is new and empty."""
    with loop.open(engine.scratch(database)) as schema:
        yield Tenant(engine, database, schema)


@pytest.fixture(scope="session")
def capabilities(loop: Loop, engine: Engine, databases: EngineDatabases, database: str) -> frozenset[str]:
    """The names of what this engine can do beyond what every engine must."""

    async def find() -> frozenset[str]:
        async with engine.scratch(database) as schema:
            return await find_capabilities(Tenant(engine, database, schema), databases)

    return loop.run(find())


@pytest.fixture(autouse=True, scope="module")
def capable_module() -> None:
    """The names here are others; each test asks for itself."""


@pytest.fixture(autouse=True)
def capable(request: pytest.FixtureRequest) -> None:
    """Skip a test of something that this engine cannot do, by the names in capabilities.py."""
    for mark in request.node.iter_markers("needs"):
        [name] = mark.args
        if name not in request.getfixturevalue("capabilities"):
            pytest.skip(f"this engine lacks {name}: {CAPABILITIES[name].meaning}")
