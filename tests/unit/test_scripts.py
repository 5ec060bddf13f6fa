"""Scripts of transactions: what they hold, and what a failure or a loss at each of their steps means."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise, product
from typing import cast

import pytest
from psycopg import pq
from psycopg.pq.abc import PGresult

from tuplegate.direct_future import DirectFuture
from tuplegate.engine import port
from tuplegate.engine.libpq.connections.commands import Command, ConnectionLost
from tuplegate.engine.libpq.pools.pool import Member
from tuplegate.engine.postgres.rules import blocks
from tuplegate.engine.postgres.rules.blocks import Nature, close_block, open_block, run_all
from tuplegate.engine.run.runner import Runner
from tuplegate.engine.run.steps import Does, Meaning, Script, Step, find_meaning
from tuplegate.engine.sql.facts import read_facts

NATURES = [Nature(*flags) for flags in product((False, True), repeat=5)]
RECORD = Step(Does.RECORD, Command(b"SELECT 1"))
SEAL = Step(Does.SEAL, Command(b"SELECT 1"))
DECISIONS: dict[str, Script] = {
    "nothing": [blocks.COMMIT],
    "recorded": [SEAL, blocks.WAIT, blocks.COMMIT_RECORDED],
    "prepare": blocks.prepare("gid", [SEAL, RECORD]),
    "commit prepared": blocks.commit_prepared("gid", tidy=False),
    "commit prepared, and tidy": blocks.commit_prepared("gid", tidy=True),
}
DECIDES = (Does.COMMIT, Does.PREPARE_TRANSACTION, Does.COMMIT_PREPARED)


def list_all(nature: Nature, *texts: str) -> Script:
    facts = [read_facts(text, text.split()[0]) for text in texts]
    takes = not all(each.plain for each in facts)
    return open_block(nature, close_block(nature, run_all(nature, facts)), takes_snapshot=takes)


@pytest.mark.parametrize("nature", NATURES)
def test_a_block_opens_first_and_asks_for_its_number_last(nature: Nature) -> None:
    does = [step.does for step in list_all(nature, "select 1", "insert into t values (1)")]
    assert does[0] is Does.OPEN
    assert does[-1] is Does.NUMBER
    assert does.count(Does.RUN) == 2
    assert does.index(Does.CHECK) > max(place for place, each in enumerate(does) if each is Does.RUN)


@pytest.mark.parametrize("nature", NATURES)
def test_what_could_make_its_commit_lazy_waits_for_the_disk(nature: Nature) -> None:
    waits = any(step.does is Does.WAIT for step in list_all(nature, "select 1"))
    assert waits is (nature.careful and not nature.read_only)


@pytest.mark.parametrize("nature", NATURES)
def test_the_encoding_is_set_back_behind_what_could_have_changed_it(nature: Nature) -> None:
    script = list_all(nature, "select 1", "savepoint a")
    behind = [after.does for step, after in pairwise(script) if step.does is Does.RUN]
    assert behind == [Does.ENCODING if nature.careful else Does.RUN, Does.CHECK]


@pytest.mark.parametrize("nature", NATURES)
def test_only_a_plain_first_statement_takes_its_snapshot_itself(nature: Nature) -> None:
    assert [step.does for step in list_all(nature, "select 1")].count(Does.OPEN) == 1
    assert [step.does for step in list_all(nature, "set a = b")].count(Does.OPEN) == 2
    assert [step.does for step in list_all(nature, "savepoint a")].count(Does.OPEN) == 2


@pytest.mark.parametrize("nature", NATURES)
def test_nothing_before_the_decision_is_applied_by_a_loss(nature: Nature) -> None:
    script = list_all(nature, "insert into t values (1)")
    assert find_meaning(script) is Meaning.HARMLESS
    assert all(find_meaning(script, failed) is Meaning.HARMLESS for failed in range(len(script)))


@pytest.mark.parametrize("name", DECISIONS)
def test_a_loss_is_harmless_only_where_nothing_can_have_been_decided(name: str) -> None:
    script = DECISIONS[name]
    writes = name != "nothing"
    decides = next(place for place, step in enumerate(script) if step.does in DECIDES)
    assert (find_meaning(script) is Meaning.HARMLESS) is not writes
    for failed in range(len(script)):
        assert (find_meaning(script, failed) is Meaning.HARMLESS) is (not writes or failed < decides), failed


def test_a_commit_that_nobody_can_be_asked_about_is_unknown() -> None:
    assert find_meaning([blocks.COMMIT_BLINDLY]) is Meaning.UNKNOWN
    assert find_meaning([blocks.COMMIT_BLINDLY], 0) is Meaning.HARMLESS


# -- the runner, on a connection that fails where it is told to ----------------------------------------------------


_NOWHERE = pq.PGconn.connect_start(b"host=/nowhere")


def answer(status: pq.ExecStatus) -> PGresult:
    return _NOWHERE.make_empty_result(status)


class Connection:
    """Answers each command, up to the one with the number `at`, which fails or is lost."""

    def __init__(self, at: int, kind: str) -> None:
        self.left = at
        self.kind = kind
        self.writes: list[int] = []

    def send(
        self, commands: Sequence[Command], _on_rows: Callable[[PGresult, int], None]
    ) -> DirectFuture[list[PGresult]]:
        reply: DirectFuture[list[PGresult]] = DirectFuture(asyncio.get_running_loop())
        self.writes.append(len(commands))
        good = [answer(pq.ExecStatus.COMMAND_OK) for _ in commands[: self.left]]
        goes_on, self.left = len(good) == len(commands), self.left - len(commands)
        if goes_on:
            reply.set_result(good)
        elif self.kind == "failed":
            reply.set_result([*good, answer(pq.ExecStatus.FATAL_ERROR)])
        else:
            lost = ConnectionLost("lost")
            lost.results = good
            reply.set_exception(lost)
        return reply

    def flush(self) -> None:
        pass

    def take_notices(self) -> list[port.Notice]:
        return []


class PlainWriter:
    """Writes statements as they are; `asks` are the numbers of those whose types must be asked for."""

    def __init__(self, *asks: int) -> None:
        self.asks = asks

    def must_ask(self, statement: int) -> bool:
        return statement in self.asks

    async def write(self, statement: int) -> list[Step]:
        return [Step(Does.RUN, Command(b"select 1"), statement=statement)]

    def write_own(self, step: Step) -> list[Step]:
        return [step]

    def check(self, steps: Sequence[Step], results: Sequence[PGresult]) -> None:
        pass


def drive(script: Script, at: int, kind: str, *asks: int) -> tuple[Runner, Connection, Exception | None]:
    async def run() -> tuple[Runner, Connection, Exception | None]:
        connection = Connection(at, kind)
        runner = Runner(cast(Member, connection))
        try:
            await runner.run(script, PlainWriter(*asks))
        except (port.EngineFailure, ConnectionLost) as exc:
            return runner, connection, exc
        return runner, connection, None

    return asyncio.run(run())


@pytest.mark.parametrize("kind", ["failed", "lost"])
@pytest.mark.parametrize("name", DECISIONS)
def test_the_runner_tells_what_went_wrong_at_each_step(name: str, kind: str) -> None:
    script = DECISIONS[name]
    for at in range(len(script)):
        runner, _, raised = drive(script, at, kind)
        if kind == "failed":
            assert isinstance(raised, port.StatementFailed)
            assert runner.failed is script[at]
            assert runner.risk is script[at].failed
        else:
            assert isinstance(raised, ConnectionLost)
            assert runner.risk is find_meaning(script)
    assert drive(script, len(script), kind)[2] is None


def test_what_waits_for_types_waits_for_all_before_it() -> None:
    nature = Nature(read_only=False, on_replica=False, plain=True, has_code=False, numbered=False)
    script = list_all(nature, "select 1", "select 2", "select 3")
    _, connection, raised = drive(script, len(script), "failed", 1)
    assert raised is None
    assert connection.writes == [2, len(script) - 2]


def test_a_failure_names_its_statement() -> None:
    script = list_all(NATURES[0], "select 1", "select 2")
    for at, step in enumerate(script):
        _, _, raised = drive(script, at, "failed")
        assert isinstance(raised, port.StatementFailed)
        assert raised.statement == step.statement
