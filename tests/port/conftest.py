"""An engine to try: the bundled server, or the one of `make test ENGINE=…`, opened as a worker opens it.

This file alone knows how a server is started. A second adapter is tried by giving its address.
"""

import asyncio
import secrets
import shutil
from collections.abc import Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
import pytest

from tests.directories import new_directory
from tests.port.capabilities import CAPABILITIES, find_capabilities
from tests.port.tenant import Tenant, new_name
from tests.service import ENGINE, with_database, with_force
from tuplegate.engine.bundled.binaries import DumpTool, find_dump_tools
from tuplegate.engine.bundled.server import BundledServer, BundledSettings
from tuplegate.engine.opening import SharedEngine, find_owner, owner_of, reach_engines, read_address, share_engine
from tuplegate.engine.port import FIRST_ENGINE, EngineDatabases, OpenEngine, ReachedEngine
from tuplegate.settings import Settings

_T = TypeVar("_T")


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
class Server:
    """A server that runs, the settings of a service that uses it, and the programs that dump its databases."""

    address: str
    settings: Settings
    dump_tools: tuple[DumpTool, ...]


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    if ENGINE:
        metadata = f"tgt_port_{secrets.token_hex(6)}"
        settings = Settings(engine=ENGINE, engine_exclusive=True)
        yield Server(read_address(with_database(ENGINE, metadata)), settings, find_dump_tools(None))
        with psycopg.connect(with_database(ENGINE, "postgres"), autocommit=True) as given:
            given.execute(f"drop database if exists {metadata} {with_force(given)}".encode())
        return
    home = new_directory("tgp-")
    bundled = BundledServer(BundledSettings(home / "data"))
    try:
        bundled.prepare()
        bundled.start()
        yield Server(bundled.conninfo, Settings(data_dir=home / "data"), bundled.dump_tools)
    finally:
        bundled.stop()
        bundled.release()
        shutil.rmtree(home)


@pytest.fixture(scope="session")
def secret() -> bytes:
    return secrets.token_bytes(32)


@pytest.fixture(scope="session")
def reached(loop: Loop, server: Server, secret: bytes) -> ReachedEngine:
    """The engine as a worker sees it before it opens it: prepared, as the supervisor does that."""
    settings = server.settings

    async def prepare() -> SharedEngine:
        owner = (
            await find_owner(server.address, settings)
            if ENGINE
            else owner_of(server.address, settings, is_bundled=True)
        )
        async with owner.prepare() as preparation:
            ready = await preparation.make_ready(secret)
            return share_engine(FIRST_ENGINE, ready.login, server.dump_tools, settings, is_bundled=not ENGINE)

    return reach_engines(settings, [loop.run(prepare())], 0, nobody_before=True)[FIRST_ENGINE]


@pytest.fixture(scope="session")
def engine(loop: Loop, reached: ReachedEngine, secret: bytes) -> Iterator[OpenEngine]:
    with loop.open(reached.open("port", secret)) as opened:
        yield opened


@pytest.fixture(scope="session")
def databases(reached: ReachedEngine, secret: bytes) -> EngineDatabases:
    return reached.databases(secret)


@pytest.fixture(scope="session")
def database(loop: Loop, engine: OpenEngine, databases: EngineDatabases) -> Iterator[str]:
    """The name of a database that all tests share; each has a schema of its own in it."""
    name = new_name()
    loop.run(databases.create(name))
    yield name
    loop.run(databases.drop(name))


@pytest.fixture
def tenant(loop: Loop, engine: OpenEngine, database: str) -> Iterator[Tenant]:
    """Who asks the engine: the shared database, with a schema that is new and empty."""
    with loop.open(engine.scratch(database)) as schema:
        yield Tenant(engine, database, schema)


@pytest.fixture(scope="session")
def capabilities(loop: Loop, engine: OpenEngine, databases: EngineDatabases, database: str) -> frozenset[str]:
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
