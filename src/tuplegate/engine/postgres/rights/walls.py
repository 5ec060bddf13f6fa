"""Decides how far the role that prepares an engine can keep tenants apart.

A superuser revokes from tenants whatever would show or reach other tenants. A role with only CREATEDB and CREATEROLE,
as managed services give one, cannot: it does not own `pg_catalog`. It makes everything else in the same way. It tries
each step that needs a superuser, and continues if that is refused; the remaining gaps are found by trying them as a
tenant (`weaknesses.py`), never assumed.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Walls:
    """The choices by which databases are furnished.

    `full`: a superuser makes them. `sees_memory`: a function can measure the memory of a session's settings, by which
    the service finds a setting that an earlier request has left.
    """

    full: bool = True
    sees_memory: bool = True

    def tolerate(self, statement: str) -> str:
        """Return the statement; if no superuser runs it, in a form that may be refused for lack of a right."""
        return statement if self.full else tolerate(statement)


FULL: Final = Walls()


def tolerate(statement: str) -> str:
    """Return a statement that runs this one, and continues if it is refused for lack of a right, or since a superuser
    has done it before."""
    refusals = "insufficient_privilege OR invalid_grant_operation"
    return f"DO $tried$ BEGIN EXECUTE $try${statement}$try$; EXCEPTION WHEN {refusals} THEN NULL; END $tried$"
