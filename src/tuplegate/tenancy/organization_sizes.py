"""Measures the databases of organizations that have a bound on the disk as a whole, in one worker at a time.

The sizes are in the catalog. A worker that looks up a database reads there how much room the others of its organization
take, and grants it the rest.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from tuplegate.background import tick
from tuplegate.catalog.catalog import Catalog
from tuplegate.engine import port
from tuplegate.tenancy.alone import work_alone

_EVERY_S: Final = 10.0
_SHARE: Final = 4
"""If measuring takes long, it is done for a fifth of the time."""
_NAME: Final = "organization sizes"


class OrganizationSizes:
    """Measures organizations. `is_bounded` returns whether an organization with this tier and these limits has a
    bound."""

    def __init__(
        self,
        catalog: Catalog,
        databases: port.DatabaseSizes,
        locks: port.Locks,
        is_bounded: Callable[[str, str], bool],
    ) -> None:
        self._catalog = catalog
        self._databases = databases
        self._locks = locks
        self._is_bounded = is_bounded

    async def watch(self) -> None:
        """Run for ever."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await work_alone(self._locks, _NAME, self.measure, "the sizes of organizations were not measured")
            await tick(max(_EVERY_S, _SHARE * (loop.time() - began)))

    async def measure(self) -> None:
        tenants = await self._catalog.databases.list_tenants()
        names = [name for name, tier, own in tenants if self._is_bounded(tier, own)]
        sizes = await self._databases.sizes(names) if names else {}
        if sizes:
            await self._catalog.databases.note_sizes(sizes)
