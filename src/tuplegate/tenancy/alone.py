"""Work that one worker of an installation does at a time."""

from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from tuplegate.engine import port

_log: Final = structlog.get_logger()


async def work_alone(locks: port.Locks, name: str, work: Callable[[], Awaitable[None]], complaint: str) -> None:
    """Do the work unless another worker holds its name. Log an engine's failure with the complaint: the work is due
    again anyway."""
    try:
        async with locks.hold(name) as free:
            if free:
                await work()
    except port.CommitsRefused:
        pass  # the health of the service tells
    except port.EngineFailure as failure:
        _log.warning(complaint, reason=str(failure))
