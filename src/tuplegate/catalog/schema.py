"""The metadata database: its tables, managed by numbered migrations, and the row of the installation."""

from dataclasses import dataclass
from importlib import resources

from tuplegate.catalog.metadata import Metadata


@dataclass(frozen=True, slots=True)
class Installation:
    """The installation. `id` marks its objects in a shared engine; `secret` signs values that clients hand back."""

    id: str
    secret: bytes


async def migrate(metadata: Metadata) -> list[str]:
    """Apply the missing migrations, and return their names. Each is a transaction of its own if the engine has
    transactions for definitions. Otherwise an interrupted one is applied again, from its first statement: so every
    statement may be repeated."""
    await metadata.fetch(
        "CREATE TABLE IF NOT EXISTS migration (name text PRIMARY KEY, applied_at timestamptz DEFAULT now())"
    )
    applied = {row[0] for row in await metadata.fetch("SELECT name FROM migration")}
    files = sorted(
        (file for file in resources.files(__package__).joinpath("migrations").iterdir() if file.name.endswith(".sql")),
        key=lambda file: file.name,
    )
    unknown = applied - {file.name for file in files}
    if unknown:
        raise RuntimeError(f"the data directory was used by a newer version: it has migration {max(map(str, unknown))}")
    done = []
    for file in files:
        if file.name not in applied:
            steps = [(part, ()) for part in file.read_text().split(";\n") if part.strip()]
            await metadata.change_definitions([*steps, ("INSERT INTO migration (name) VALUES ($1)", (file.name,))])
            done.append(file.name)
    return done


async def find_installation(metadata: Metadata) -> Installation | None:
    rows = await metadata.fetch("SELECT id, encode(secret, 'hex') FROM installation")
    return Installation(str(rows[0][0]), bytes.fromhex(str(rows[0][1]))) if rows else None


async def add_installation(metadata: Metadata, installation: Installation) -> None:
    await metadata.fetch(
        "INSERT INTO installation (id, secret) VALUES ($1, decode($2, 'hex')) ON CONFLICT DO NOTHING",
        installation.id,
        installation.secret.hex(),
    )


async def has_old_secret(metadata: Metadata) -> bool:
    return (await metadata.fetch("SELECT secret_is_old FROM installation"))[0][0] == "t"


async def replace_secret(metadata: Metadata, secret: bytes) -> None:
    """Replace the secret. Everything derived from it is renewed: passwords of roles, and secrets of databases."""
    await metadata.run_atomically(
        [
            ("UPDATE installation SET secret = decode($1, 'hex'), secret_is_old = false", (secret.hex(),)),
            ("UPDATE database SET furnishing = NULL", ()),
        ]
    )


async def find_unseen_key(metadata: Metadata) -> str | None:
    """Return the id of a first key that was made but perhaps never shown."""
    return (await metadata.fetch("SELECT unseen_key FROM installation"))[0][0]


async def note_unseen_key(metadata: Metadata, id: str | None) -> None:
    await metadata.fetch("UPDATE installation SET unseen_key = $1", id)
