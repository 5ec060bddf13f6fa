"""The list-append workload while the service is harmed: its history is strictly serializable all the same."""

import random
import threading
from collections.abc import Iterator

import pytest

from tests.fault_plan import KINDS, KINDS_ELSEWHERE, SLEEP_KINDS, FaultPlan
from tests.faults import none_in_doubt, once_back, serves
from tests.histories import check
from tests.list_append.statements import create_table, final_lists
from tests.list_append.workload import ListAppend, Shares
from tests.service import ENGINE, Service, Sql, running_service

TRANSACTIONS = 1000
FAULT_EVERY = 60


@pytest.fixture
def service() -> Iterator[Service]:
    with running_service(*(() if ENGINE else ("--cell-idle-s", "1"))) as running:
        yield running


def test_list_append_with_faults(service: Service) -> None:
    """Nothing acknowledged is lost, nothing refused shows, nothing is read that no order explains, nothing is left."""
    seed = random.SystemRandom().randrange(2**32)
    with service.client() as client:
        create_table(Sql(client), "lists")
    work = ListAppend(service, "lists", seed, TRANSACTIONS, 6, Shares(0.3, 0.3, 0.1, chosen_ids=0.5, keys=0.5))
    thread = threading.Thread(target=work.run)
    thread.start()
    kinds = KINDS_ELSEWHERE if ENGINE else (*KINDS, *SLEEP_KINDS)
    with FaultPlan(service, seed, FAULT_EVERY, lambda: work.done, kinds, work.rest) as plan:
        thread.join()
    once_back(lambda: serves(service) and none_in_doubt(service))
    with service.client() as client:
        final = final_lists(Sql(client), "lists")
    anomalies = check(work.history, final, real_time=True)
    assert anomalies == [], f"seed {seed}: {anomalies[:5]}"
    assert work.wrong == [], f"seed {seed}: {work.wrong[:5]}"
    assert len(work.history) == TRANSACTIONS
    assert plan.done.total() > 0
    assert work.counts["ok"] > TRANSACTIONS / 2, work.counts
