"""What the messages of the extended protocol are counted as."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tuplegate.data_plane.wire.admission import WireAdmission, WireCounts
from tuplegate.http.exchange import Counts


@pytest.mark.parametrize(
    ("messages", "begun"),
    [
        ("PBDES", 1),
        ("S", 1),
        ("SS", 2),
        ("BEBES", 2),
        ("BBEES", 2),
        ("BEBS", 2),  # the Execute may be a COMMIT
        ("BBEBS", 2),
        ("BEDS", 2),
        ("BECS", 1),
        ("CS", 1),
        ("BESBES", 2),
        ("PBECBECS", 2),
    ],
)
def test_each_part_that_can_begin_a_transaction_is_counted(messages: str, begun: int) -> None:
    counted = 0

    async def admit(begins: int) -> None:
        nonlocal counted
        counted += begins

    async def run() -> None:
        link: Any = SimpleNamespace(admit=admit)
        identity: Any = SimpleNamespace(quota=None)
        admission = WireAdmission(link, identity, Counts(), WireCounts())
        for kind in messages:
            await (admission.admit_sync() if kind == "S" else admission.admit_part(ord(kind)))

    asyncio.run(run())
    assert counted == begun
