"""A dialect of SQLAlchemy: `tuplegate://KEY@host:port/database`, and `tuplegate+async://` with asyncio.

Where the package is installed, SQLAlchemy finds it by itself. Elsewhere importing this module makes it known.
"""

from sqlalchemy.dialects import registry

from tuplegate.sqlalchemy.asynchronous import AsyncTuplegateDialect
from tuplegate.sqlalchemy.dialect import TuplegateDialect

registry.register("tuplegate", "tuplegate.sqlalchemy", "TuplegateDialect")
registry.register("tuplegate.async", "tuplegate.sqlalchemy", "AsyncTuplegateDialect")

__all__ = ["AsyncTuplegateDialect", "TuplegateDialect"]
