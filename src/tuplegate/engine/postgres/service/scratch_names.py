"""The names of schemas for the service's own trials in a tenant's database (see `tenancy/scratch.py`).

A name carries a MAC: a schema of the tenant's own is never taken for one, however it is called.
"""

import hashlib
import hmac

from tuplegate.engine.postgres.service.admin import AdminSession

PREFIX = "tuplegate_scratch_"


def sign_name(secret: bytes, nonce: str) -> str:
    """Return the name with its MAC, the same in every database: a copy of one may hold its scratch schemas."""
    mac = hmac.new(secret, f"scratch/{nonce}".encode(), hashlib.sha256).hexdigest()
    return f"{PREFIX}{nonce}{mac[:16]}"


async def find_schemas(session: AdminSession, secret: bytes) -> list[str]:
    """Return the scratch schemas of a database. A schema of the tenant's own is never among them."""
    rows = await session.fetch("SELECT nspname FROM pg_namespace WHERE starts_with(nspname, $1)", PREFIX)
    names = (str(name) for (name,) in rows)
    return [name for name in names if name == sign_name(secret, name[len(PREFIX) :][:16])]
