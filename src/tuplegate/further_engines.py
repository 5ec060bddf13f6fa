"""Engines beside the first, as the supervisor sees them: read from the settings, and prepared.

An engine that is not there at the start delays nothing. A separate process tries it again and again: preparing needs
the login of a superuser, which workers do not have. It ends when all are prepared, and with the supervisor.
"""

import asyncio
import os
import re
import signal
import time
from dataclasses import dataclass, field

import structlog

from tuplegate.engine.opening import read_address
from tuplegate.engine.port import FIRST_ENGINE, BadUrl, EngineFailure, EngineOwner, EngineRefused
from tuplegate.installation import Installed, prepare_engine
from tuplegate.open_files import close_others
from tuplegate.protocol.control import NAME_RULE

_log = structlog.get_logger()

_START_S = 15.0
"""How long a start of the service waits for them; the rest is left to the separate process."""
_TRY_AGAIN_S = 1.0
_NAME = re.compile("[a-z][a-z0-9_-]{0,62}")


def read_engines(text: str) -> dict[str, str]:
    """Return the address of each engine of the setting `engines`, by its name. Raises BadUrl."""
    found: dict[str, str] = {}
    for number, entry in enumerate(text.split(), 1):
        name, _, url = entry.partition("=")
        if _NAME.fullmatch(name) is None or not url:
            raise BadUrl(
                f"entry {number} is not of the form name=postgresql://user:password@host:port/database. A name has"
                f" {NAME_RULE}; entries are separated by blanks"
            )
        if name == FIRST_ENGINE or name in found:
            raise BadUrl(f"the name {name} is taken: that of the engine with the catalog is {FIRST_ENGINE}")
        try:
            found[name] = read_address(url)
        except BadUrl as exc:
            raise BadUrl(f"the URL of {name}: {exc}") from exc
    return found


@dataclass
class EnginePreparation:
    """Prepares the engines beside the first, by their names. `first` is the first engine's part of the installation."""

    first: Installed
    engines: dict[str, EngineOwner]
    _missing: list[str] = field(default_factory=list)
    _said: dict[str, str] = field(default_factory=dict)
    _pid: int | None = None
    _started_at: float = 0.0

    def try_all(self) -> None:
        self._missing = list(self.engines)
        asyncio.run(self._try(_START_S))

    async def _try(self, within_s: float | None = None) -> None:
        done = await asyncio.gather(*(self._prepare(name, within_s) for name in self._missing))
        self._missing = [name for name, is_done in zip(self._missing, done, strict=True) if not is_done]

    async def _prepare(self, name: str, within_s: float | None) -> bool:
        try:
            async with asyncio.timeout(within_s):
                await prepare_engine(name, self.engines[name], self.first)
        except (EngineRefused, EngineFailure, TimeoutError) as exc:
            if self._said.get(name) != str(exc):
                _log.error("an engine is not used", engine=name, at=self.engines[name].place, reason=str(exc))
            self._said[name] = str(exc)
            return False
        return True

    def watch(self, life_fd: int) -> None:
        """Start the process that continues to prepare, if something is left to do."""
        if self._pid is not None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid == 0:
                return
            self._pid = None
            if status == 0:
                self._missing = []
        if self._missing and time.monotonic() - self._started_at > _TRY_AGAIN_S:
            self._started_at = time.monotonic()
            self._pid = os.fork()
            if self._pid == 0:
                self._be_preparing(life_fd)

    def stop(self) -> None:
        if self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)

    def _be_preparing(self, life_fd: int) -> None:
        """Never returns: the supervisor's own clean-up must not run twice."""
        status = 1
        try:
            os.setsid()
            close_others({0, 1, 2, life_fd})
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            asyncio.run(self._try_until_done(life_fd))
            status = 0
        except BaseException:  # noqa: BLE001 - a forked child must not unwind into its parent's code
            _log.error("engines could not be prepared", exc_info=True)
        finally:
            os._exit(status)

    async def _try_until_done(self, life_fd: int) -> None:
        asyncio.get_running_loop().add_reader(life_fd, lambda: os._exit(1))
        while self._missing:
            await asyncio.sleep(_TRY_AGAIN_S)
            await self._try()
