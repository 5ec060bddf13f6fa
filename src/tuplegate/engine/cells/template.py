"""The data directory that cells are copied from: made once for each version of the engine and of the service.

Its server has the service's roles, its metadata database, and one database in the form that tenants get. It is
furnished under another name and then renamed, so it is complete or missing. The password of its superuser is in a file
that no cell can read; each copy gets a password of its own before anybody uses it.
"""

import asyncio
import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tuplegate.engine.bundled.binaries import Binaries, DumpTool
from tuplegate.engine.bundled.sandbox.account import Account
from tuplegate.engine.cells.layout import DATA, RUN, CellsDirectory
from tuplegate.engine.cells.making import PREPARED_FORM, make_cell, prepare_data, remove_cell, write_secret
from tuplegate.engine.cells.server import SUPERUSER, CellServer, running
from tuplegate.engine.libpq.connections.identity import NOTE_IDENTITY
from tuplegate.engine.libpq.values.quoting import quote
from tuplegate.engine.postgres.preparation.installing import PostgresOwner
from tuplegate.engine.postgres.rights.owners import Owners
from tuplegate.engine.postgres.safety.tally import CellTallies
from tuplegate.engine.postgres.service.admin import METADATA_DATABASE, AdminConnector
from tuplegate.engine.postgres.tenancy.databases import PostgresDatabases

DATABASE = "tg_template"
"""The name of the tenant's database in the template. Each copy gives it another name."""

_MADE, _BEGUN = "template", "template_begun"


@dataclass(frozen=True, slots=True)
class Template:
    """The template: its data, its superuser's password, and the oid of the tenant's database, which every copy keeps.
    `form` identifies the whole content, `furnishing` the service's own part."""

    form: str
    data: Path
    password: str
    furnishing: str
    oid: int


@dataclass(frozen=True, slots=True)
class SharedCells:
    """The part of the cells that the supervisor makes for all workers before it forks them."""

    directory: CellsDirectory
    template: Template
    tools: tuple[DumpTool, ...]
    tallies: CellTallies


def share_cells(
    directory: CellsDirectory, template: Template, tools: tuple[DumpTool, ...], workers: int
) -> SharedCells:
    return SharedCells(directory, template, tools, CellTallies(workers))


def conninfo_of(run: Path, user: str, password: str) -> str:
    """Return the conninfo of a cell's server. The service only logs in to a server that proves that it knows the
    password."""
    return f"host='{run}' port=5432 user='{user}' password='{password}' passfile='' require_auth=scram-sha-256"


def find_furnishing() -> str:
    """Return a text that identifies the service's own objects in a cell, as this version makes them."""
    connector = AdminConnector("")
    return PostgresDatabases(connector, b"").furnishing


def provide_template(
    directory: CellsDirectory, programs: Binaries, account: Account, make_server: Callable[[str], CellServer]
) -> Template:
    """Return this version's template; make it if it is missing, which takes seconds."""
    furnishing = find_furnishing()
    form = hashlib.sha256(f"{programs.version} {PREPARED_FORM} {furnishing}".encode()).hexdigest()[:16]
    place, note = directory.locate(_MADE), directory.prepared / _MADE
    found = note.read_text("ascii").split() if note.exists() else []
    if place.exists() and found[:1] == [form]:
        return Template(form, place / DATA, found[1], furnishing, int(found[2]))
    _discard(directory, _BEGUN)
    with prepare_data(directory, programs, account) as prepared:
        make_cell(directory, prepared.data, _BEGUN)
    oid = _furnish(make_server(_BEGUN), conninfo_of(directory.locate(_BEGUN) / RUN, SUPERUSER, prepared.password))
    _discard(directory, _MADE)
    write_secret(note, f"{form} {prepared.password} {oid}\n")
    directory.locate(_BEGUN).rename(place)
    return Template(form, place / DATA, prepared.password, furnishing, oid)


def _discard(directory: CellsDirectory, cell_id: str) -> None:
    if directory.locate(cell_id).exists():
        remove_cell(directory, cell_id)


def _furnish(server: CellServer, conninfo: str) -> int:
    with running(server):
        return asyncio.run(_make_objects(conninfo))


async def _make_objects(conninfo: str) -> int:
    """Make the objects that all cells share, and return the oid of the tenant's database. The passwords of its roles
    are random and not stored."""
    owner = PostgresOwner(conninfo, is_bundled=True)
    async with owner.prepare() as preparation:
        ready = await preparation.make_ready(secrets.token_bytes(32))
        await ready.databases.create(DATABASE)
        await preparation.session.fetch(NOTE_IDENTITY, "", DATABASE, find_furnishing())
        template = quote(Owners(METADATA_DATABASE).template)
        await preparation.session.fetch(f"ALTER DATABASE {template} IS_TEMPLATE false")
        await preparation.session.fetch(f"DROP DATABASE {template}")
        [(oid,)] = await preparation.session.fetch("SELECT oid FROM pg_database WHERE datname = $1", DATABASE)
        return int(str(oid))
