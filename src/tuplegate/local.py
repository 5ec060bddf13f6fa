"""What is done on the machine itself, without HTTP: for whoever can read the data directory."""

import asyncio

from tuplegate.access.scopes import Scope
from tuplegate.engine.bundled.server import BundledServer
from tuplegate.engine.port import EngineFailure
from tuplegate.installation import create_key, install
from tuplegate.serve import ServeError, bundled_engine, bundled_settings, engine_conninfo
from tuplegate.settings import Settings


class LocalError(Exception):
    """It could not be done; the message says why and what to do."""


def make_local_key(settings: Settings, name: str, scopes: list[Scope]) -> str:
    """A new key of the installation: through the running service's engine, or by starting the engine for a moment."""
    if settings.engine:
        return _make_key_at(settings, name, scopes)
    if not (settings.data_dir / "tuplegate.lock").exists():
        raise LocalError(
            f"{settings.data_dir} is not a data directory of Tuplegate, or cannot be read by this user."
            " Name the one that the service uses with --data-dir."
        )
    running = BundledServer(bundled_settings(settings))
    try:
        return asyncio.run(create_key(running.conninfo, name, scopes)).text
    except EngineFailure:
        pass  # the service does not run
    try:
        with bundled_engine(settings) as engine:
            asyncio.run(install(engine.conninfo))
            return asyncio.run(create_key(engine.conninfo, name, scopes)).text
    except (ServeError, EngineFailure) as exc:
        raise LocalError(str(exc)) from exc


def _make_key_at(settings: Settings, name: str, scopes: list[Scope]) -> str:
    try:
        return asyncio.run(create_key(engine_conninfo(settings), name, scopes)).text
    except (ServeError, EngineFailure) as exc:
        raise LocalError(f"no key was made: {exc}") from exc
