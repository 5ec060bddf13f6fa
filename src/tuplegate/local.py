"""Makes keys on the machine itself, without HTTP: for users who can read the data directory."""

import asyncio

from tuplegate.access.scopes import Scope
from tuplegate.engine.cells.catalog import find_catalog
from tuplegate.engine.opening import find_owner, owner_of
from tuplegate.engine.port import EngineFailure
from tuplegate.installation import create_key, install
from tuplegate.settings import Settings
from tuplegate.supervisor.engine_server import open_bundled, read_engine_address
from tuplegate.supervisor.serve_error import ServeError


class LocalError(Exception):
    """The key could not be made; the message says why and what to do."""


def make_local_key(settings: Settings, name: str, scopes: list[Scope]) -> str:
    """Make a key of the installation: through the running service's engine, or by starting the engine for a moment."""
    if settings.engine:
        return _make_key_at(settings, name, scopes)
    if not (settings.data_dir / "tuplegate.lock").exists():
        raise LocalError(
            f"{settings.data_dir} is not a data directory of Tuplegate, or cannot be read by this user."
            " Name the one that the service uses with --data-dir."
        )
    try:
        running = owner_of(find_catalog(settings.data_dir.resolve()), settings)
        return asyncio.run(create_key(running, name, scopes)).text
    except (OSError, EngineFailure):
        pass  # the service does not run
    try:
        with open_bundled(settings) as bundled:
            owner = bundled.owner(settings)
            asyncio.run(install(owner))
            return asyncio.run(create_key(owner, name, scopes)).text
    except (ServeError, EngineFailure) as exc:
        raise LocalError(str(exc)) from exc


def _make_key_at(settings: Settings, name: str, scopes: list[Scope]) -> str:
    try:
        owner = asyncio.run(find_owner(read_engine_address(settings), settings))
        return asyncio.run(create_key(owner, name, scopes)).text
    except (ServeError, EngineFailure) as exc:
        raise LocalError(f"no key was made: {exc}") from exc
