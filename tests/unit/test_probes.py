"""What the service makes of what a server can do."""

from dataclasses import replace

import pytest

from tuplegate.engine.postgres.service.probes import Capabilities, find_problems, find_warnings

GOOD = Capabilities(
    version_number=180006,
    version="18.6",
    user="owner",
    superuser=True,
    standby=False,
    prepared_max=1000,
    connections_max=200,
    connections_reserved=3,
    fsync=True,
    full_page_writes=True,
    work_mem="4MB",
    slots=11000,
    notices_leaving=True,
    makes_databases=False,
)


def test_a_good_one() -> None:
    assert find_problems(GOOD) == []
    assert find_problems(replace(GOOD, superuser=False, makes_databases=True)) == []
    assert find_warnings(GOOD, connections=197) == []


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (replace(GOOD, version_number=140012, version="14.12"), "15 is the oldest"),
        (replace(GOOD, superuser=False), "ALTER ROLE owner CREATEDB CREATEROLE"),
        (replace(GOOD, standby=True), "the primary"),
        (replace(GOOD, fsync=False), "fsync"),
        (replace(GOOD, full_page_writes=False), "full_page_writes"),
    ],
)
def test_what_keeps_the_service_from_starting(found: Capabilities, words: str) -> None:
    [problem] = find_problems(found)
    assert words in problem


def test_all_problems_are_named_at_once() -> None:
    assert len(find_problems(replace(GOOD, superuser=False, standby=True, fsync=False))) == 3


@pytest.mark.parametrize(
    ("found", "connections", "words"),
    [
        (GOOD, 198, "accepts 197 connections"),
        (replace(GOOD, version_number=170010, version="17.10"), 1, "17.11 or newer"),
        (replace(GOOD, version_number=190000, version="19.0"), 1, "newer than what"),
        (replace(GOOD, prepared_max=0), 1, "in one phase"),
        (replace(GOOD, slots=2000), 1, "remembers 2000"),
    ],
)
def test_what_the_operator_is_told(found: Capabilities, connections: int, words: str) -> None:
    [warning] = find_warnings(found, connections)
    assert words in warning
