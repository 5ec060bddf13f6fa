"""The superuser of a cell with native code: its server talks nonsense, or fills the disk. Only its tenant notices."""

import shutil
from collections.abc import Iterator
from math import inf

import pytest
from attack import native, nonsense
from attack.inside import Watched, talk_nonsense, watched_service
from attack.party import new_party

from tests.service import needs_bundled
from tests.waiting import eventually
from tests.workers import workers

pytestmark = [needs_bundled, pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no compiler")]
KINDS = {each.name: each for each in nonsense.ALL}


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    with watched_service() as opened:
        opened.p99_ms_max = inf
        yield opened


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("hash_for_an_hour", id="asks to hash the password for an hour"),
        pytest.param("longest_row", id="announces a row of two gigabytes"),
        pytest.param("largest_row", id="sends a row of two gigabytes"),
        pytest.param("long_parameters", id="sends what no client expects"),
        pytest.param("endless_rows", id="sends rows where none were asked for"),
        pytest.param("endless_errors", id="answers once with many errors"),
        pytest.param("endless_ends", id="answers one statement many times"),
        pytest.param("new_parameters", id="sends parameters without an end"),
        pytest.param("settling_as_another", id="says that it is another cell"),
    ],
)
def test_a_server_of_a_tenants_own(watched: Watched, name: str) -> None:
    """Whatever it says, every worker lives on with a bounded memory, and others are served."""
    watched.wrong.clear()
    answers = talk_nonsense(watched, KINDS[name])
    watched.check_data()
    assert not watched.wrong, "\n".join(watched.wrong)
    assert answers


def test_files_that_no_table_has_are_bounded(watched: Watched) -> None:
    """A cell that fills the disk with files of its own is killed; its tenant is told why, and nobody else notices."""
    watched.wrong.clear()
    attacker = new_party(watched.service, "filling", "small")
    pids = workers(watched.service)
    native.STRAINS["large_file"](watched.service, attacker)

    def refused() -> int | None:
        answer = attacker.query("select 1 as one")
        return answer.status if "its files take more than" in answer.text else None

    assert eventually(refused) == 503
    attacker.close()
    watched.judge("a full disk", pids)
    assert not watched.wrong, "\n".join(watched.wrong)
    assert watched.bystander.party.ask("read", "GET", "/health").body["status"] == "ok"
