"""Says how far the role that prepares an engine can keep tenants apart.

A superuser takes from tenants what would show them others, or let them reach others. A role that has CREATEDB and
CREATEROLE alone, as managed services give one, cannot: what is in `pg_catalog` is not its own. It makes everything else
in the same way. Of what needs a superuser it tries each step, and goes on where that is refused; what is open then is
found by trying it as a tenant (`weaknesses.py`), never assumed.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Walls:
    """The choices by which databases are furnished.

    `full`: a superuser makes them. `sees_memory`: a function can tell how much memory the settings of a session take,
    by which the service finds out that one of an earlier request is still there.
    """

    full: bool = True
    sees_memory: bool = True

    def tolerate(self, statement: str) -> str:
        """Return the statement; where no superuser runs it, so that it may be refused for want of a right."""
        return statement if self.full else tolerate(statement)


FULL: Final = Walls()


def tolerate(statement: str) -> str:
    """Return a statement that runs this one, and goes on where it is refused for want of a right, or since a superuser
    has done it before."""
    refusals = "insufficient_privilege OR invalid_grant_operation"
    return f"DO $tried$ BEGIN EXECUTE $try${statement}$try$; EXCEPTION WHEN {refusals} THEN NULL; END $tried$"
