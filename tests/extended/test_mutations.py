"""The checks of histories find what is weakened: mutations of `make failover` that show on one service."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from failover.mutations import MIXED, MUTATIONS
from failover.traps import Trap, lay
from failover.tunnels import running_tunnels

from tests.faults import none_in_doubt, once_back, serves
from tests.histories import check
from tests.list_append.statements import create_table, final_lists
from tests.list_append.workload import ListAppend
from tests.service import ENGINE, Service, Sql, new_data_dir, remove, start_service

pytestmark = pytest.mark.skipif(bool(ENGINE), reason="it weakens the adapter of PostgreSQL, on the bundled engine")

TRANSACTIONS = 700
EVERY_S = 0.5
TRAPS = {
    "": (Trap.WORKER, Trap.CONNECTION),
    "rolls-back": (Trap.CONNECTION,),
    "isolation": (),
    "wire-isolation": (),
}


@contextmanager
def weakened(mutation: str) -> Iterator[tuple[Service, Path]]:
    """A service of two workers, and the place for its traps."""
    data_dir = new_data_dir()
    trap = data_dir.parent / "trap"
    env = {"FAILOVER_MUTATION": mutation, "FAILOVER_TRAP": str(trap)}
    service = start_service(data_dir, "--workers", "2", env=env, program="failover.node")
    try:
        yield service, trap
    finally:
        service.kill()
        remove(data_dir)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutation", TRAPS)
def test_is_found(mutation: str) -> None:
    """Whatever happens between its two phases, nothing is wrong with a service as it is; something with each other."""
    seed = random.SystemRandom().randrange(2**32)
    with weakened(mutation) as (service, place), running_tunnels([service]) as ports:
        with service.client() as client:
            create_table(Sql(client), "lists")
        shares = MUTATIONS[mutation].shares if mutation else MIXED
        work = ListAppend(service, "lists", seed, TRANSACTIONS, 8, shares, wire_ports=ports, askers=2)
        work.answer_s = 60
        thread = threading.Thread(target=work.run)
        thread.start()
        number = 0
        while thread.is_alive():
            thread.join(EVERY_S)
            if TRAPS[mutation] and not place.exists():
                lay(place, TRAPS[mutation][number % len(TRAPS[mutation])])
                number += 1
        place.unlink(missing_ok=True)
        once_back(lambda: serves(service) and none_in_doubt(service))
        with service.client() as client:
            found = [*work.wrong, *map(str, check(work.history, final_lists(Sql(client), "lists"), real_time=True))]
    assert bool(found) is bool(mutation), f"seed {seed}, {dict(work.counts)}, {number} traps: {found[:5]}"
