"""All probes, and their verdicts: found on the first request to this worker, and kept for the version of the engine."""

import asyncio
from difflib import get_close_matches

from tuplegate.data_plane.capabilities.definitions import DEFINITIONS
from tuplegate.data_plane.capabilities.isolation import RACES
from tuplegate.data_plane.capabilities.probes import AnyProbe, Probed
from tuplegate.data_plane.capabilities.queries import QUERIES
from tuplegate.data_plane.capabilities.runner import run_probe
from tuplegate.data_plane.capabilities.service import EXERCISES
from tuplegate.data_plane.capabilities.values import VALUES
from tuplegate.data_plane.capabilities.writes import WRITES
from tuplegate.engine import port

PROBES: dict[str, AnyProbe] = {
    probe.name: probe for probe in (*QUERIES, *VALUES, *DEFINITIONS, *WRITES, *RACES, *EXERCISES)
}

Verdicts = dict[str, bool]


def find_near(name: str) -> list[str]:
    """Return names of probes that may have been meant."""
    return get_close_matches(name.lower(), PROBES, n=3, cutoff=0.5)


class Matrix:
    """The verdicts, by version of the engine. Requests that come while the probes run wait for the same run."""

    def __init__(self, probed: Probed) -> None:
        self._probed = probed
        self._runs: dict[str, asyncio.Task[Verdicts]] = {}

    async def find_verdicts(self, version: str, database: str) -> Verdicts:
        """Return the verdicts. The run continues when a client that waits for it leaves. A failed run is not kept, and
        requests that waited for it run the probes in their own database."""
        while True:
            run = self._runs.get(version)
            own = run is None
            if run is None:
                run = self._runs[version] = asyncio.get_running_loop().create_task(self._run(database))
                run.add_done_callback(lambda done: self._forget_failed(version, done))
            try:
                return await asyncio.shield(run)
            except port.EngineFailure:
                if own:
                    raise

    async def _run(self, database: str) -> Verdicts:
        return {name: (await run_probe(self._probed, database, probe)).supported for name, probe in PROBES.items()}

    def _forget_failed(self, version: str, done: "asyncio.Task[Verdicts]") -> None:
        if done.cancelled() or done.exception() is not None:
            del self._runs[version]
