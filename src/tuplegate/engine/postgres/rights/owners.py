"""The roles and the template that an installation owns in its engine, named after its metadata database.

None of them is a superuser. Each may only do this:

- `service`: workers log in as this role. It makes databases and roles, owns tenants' databases and the metadata
database, sees statistics and ends sessions. It has no rights in tenants' own objects.
- `records`: owns the records in tenants' databases (`records.py`) and nothing else. Nobody can log in as it.
- `warden`: owns the functions that show a tenant its own part of what all databases share (`windows.py`). Nobody can
log in as it.
- `dump`: may read the settings of databases and roles, which pg_dump asks for.
"""

from dataclasses import dataclass

NAME_LENGTH_MAX = 50
"""The bound on the name of a metadata database: the longest suffix must fit behind it."""


@dataclass(frozen=True, slots=True)
class Owners:
    """The names of an installation's objects in its engine. Quote them in SQL."""

    metadata: str

    @property
    def service(self) -> str:
        return f"{self.metadata}_service"

    @property
    def records(self) -> str:
        return f"{self.metadata}_records"

    @property
    def warden(self) -> str:
        return f"{self.metadata}_warden"

    @property
    def dump(self) -> str:
        return f"{self.metadata}_dump"

    @property
    def template(self) -> str:
        """Return the database that tenants' databases are made from."""
        return f"{self.metadata}_template"

    @property
    def mark(self) -> str:
        """Return the comment on each role, by which an installation recognizes its own."""
        return f"Tuplegate: {self.metadata}"
