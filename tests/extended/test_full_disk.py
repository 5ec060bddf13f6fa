"""A disk that fills up: writing stops in time, reading and removing go on, and the service comes back by itself.

On a file system of a gigabyte, in memory: the servers of a service take a third of it at rest.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.control import engine_pid
from tests.metrics import scrape
from tests.servers import needs_linux
from tests.service import Service, Sql, needs_bundled, new_data_dir, start_service
from tests.waiting import eventually
from tuplegate.engine.bundled.disk import RESERVE_BYTES, RESERVE_NAME

pytestmark = [needs_linux, needs_bundled]

LEAST_MB = 128
FULL = "53100"
MORE = "insert into filled select i, repeat(md5(i::text), 30) from generate_series(1, 4000) i"
ENDLESS = "insert into filled select i, repeat(md5(i::text), 30) from generate_series(1, 1000000000) i"

SORTING = """
select count(*) from (select repeat(md5(i::text), 8) b from generate_series(1, 10000000) i order by b offset 1) x
"""


@pytest.fixture(scope="module")
def data_dir() -> Iterator[Path]:
    """On a small file system of its own."""
    made = new_data_dir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1g,mode=0755", "tuplegate-test", str(made.parent)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        made.parent.rmdir()
        pytest.skip(f"no small file system can be mounted here: {mounted.stderr.strip()}")
    log = made.parent.with_suffix(".log")  # on another disk, so that nothing of it is lost
    log.touch()
    (made.parent / "service.log").symlink_to(log)
    yield made
    subprocess.run(["umount", str(made.parent)], check=True)
    made.parent.rmdir()
    log.unlink()


@pytest.fixture(scope="module")
def small(data_dir: Path) -> Iterator[Service]:
    running = start_service(data_dir, "--disk-free-mb-min", str(LEAST_MB), "--workers", "2")
    yield running
    assert running.stop() == 0


@pytest.fixture
def sql(small: Service) -> Iterator[Sql]:
    with small.client() as client:
        yield Sql(client)


@pytest.fixture
def filler(data_dir: Path) -> Iterator[Path]:
    """A file of somebody else's on the same disk."""
    path = data_dir.parent / "filler"
    yield path
    path.unlink(missing_ok=True)


def fill(path: Path, left: int = 0) -> None:
    """Takes what is free but for so many bytes."""
    with path.open("ab", buffering=0) as file:
        try:
            while (free := free_on(path)) > left:
                file.write(bytes(min(2**20, free - left)))
        except OSError:
            assert left == 0


def free_on(path: Path) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def health(sql: Sql) -> dict[str, Any]:
    answer = sql.client.get("/health")
    body: dict[str, Any] = answer.json()
    assert (answer.status_code == 503) == (body["status"] == "failing")
    return body


def is_short(sql: Sql) -> bool:
    return bool(health(sql)["status"] == "degraded")


def is_back(sql: Sql) -> bool:
    return bool(health(sql)["status"] == "ok" and sql.answer("insert into little values (2)").json()["success"])


def refusal(sql: Sql, statement: str) -> tuple[str, str]:
    error = sql.answer(statement).json()["error"]
    return error["sqlstate"], error["message"].split(",")[0]


NEARLY_FULL = (FULL, "the disk of the service is nearly full")


@pytest.fixture
def little(sql: Sql) -> Iterator[Sql]:
    """With two tables, and code that writes."""
    sql("create table little (a int)")
    sql("insert into little values (1)")
    sql("create table filled (a int, b text)")
    sql("create function add() returns int language sql as 'insert into little values (1) returning a'")
    sql("create function look() returns bigint language sql as 'select count(*) from little'")
    yield sql
    sql("drop table if exists little, filled cascade")
    sql("drop function add, look")


def test_tenants_cannot_fill_the_disk_and_can_make_room(small: Service, little: Sql, data_dir: Path) -> None:
    """Writing ends with room to spare; reading and removing go on, and with room again so does writing."""
    sql = little
    eventually((data_dir / RESERVE_NAME).exists)
    before = scrape(small)
    assert before.value("disk_short") == 0
    while (body := sql.answer(MORE).json())["success"]:
        pass
    assert body["error"]["sqlstate"] == FULL, body
    eventually(lambda: is_short(sql))
    assert (data_dir / RESERVE_NAME).stat().st_size == RESERVE_BYTES, "nothing of the reserve was needed"
    assert health(sql)["checks"]["disk"].endswith("128 MiB are the least; what takes room is refused")
    page = scrape(small)
    assert page.value("disk_short") == 1
    assert page.value("disk_free_bytes") < before.value("disk_free_bytes")
    assert sql.value("select count(*) from filled") > 0
    assert sql.value("select look()") == 1
    for statement in (
        "insert into little values (1)",
        "update little set a = 2",
        "create table other (a int)",
        "with x as (insert into little values (1) returning a) select * from x",
        "select add()",
        "do $$ begin insert into little values (1); end $$",
    ):
        assert refusal(sql, statement) == NEARLY_FULL, statement
    body = sql.client.post("/v1/transaction", json={"statements": ["select 1", "insert into little values (1)"]}).json()
    assert body["error"]["sqlstate"] == FULL
    assert sql.rows("select a from little") == [{"a": 1}]
    sql("delete from filled where a < 100")
    sql("vacuum filled")
    sql("truncate filled")
    eventually(lambda: is_back(sql))


def test_a_statement_that_would_fill_the_disk_is_ended(small: Service, little: Sql, data_dir: Path) -> None:
    """While it runs; the engine does not notice."""
    sql = little
    eventually((data_dir / RESERVE_NAME).exists)
    engine = engine_pid(small)
    assert refusal(sql, ENDLESS) == NEARLY_FULL
    sql("truncate filled")
    assert refusal(sql, SORTING)[0] == FULL, "by the service, or by the engine where that is sooner"
    eventually(lambda: is_back(sql))
    assert engine_pid(small) == engine
    assert (data_dir / RESERVE_NAME).exists()


def test_a_disk_that_others_fill_stops_no_reading(little: Sql, filler: Path, data_dir: Path) -> None:
    """The reserve is given up and made again; the engine starts with it, and without any room once there is some."""
    sql = little
    eventually((data_dir / RESERVE_NAME).exists)
    fill(filler)
    eventually(lambda: not (data_dir / RESERVE_NAME).exists())
    eventually(lambda: is_short(sql))
    assert sql.value("select count(*) from little") == 1
    assert sql.value("select look()") == 1
    assert refusal(sql, "insert into little values (1)") == NEARLY_FULL
    assert refusal(sql, "select add()") == NEARLY_FULL
    assert refusal(sql, "do $$ begin delete from little; end $$") == NEARLY_FULL
    sql("delete from little where a = 5")
    sql("drop table filled")
    filler.unlink()
    eventually(lambda: is_back(sql))
    eventually((data_dir / RESERVE_NAME).exists)


def test_an_engine_that_ended_for_lack_of_room_comes_back(
    small: Service, little: Sql, filler: Path, data_dir: Path
) -> None:
    """Without any room it cannot start; it is tried until it can."""
    sql = little
    eventually((data_dir / RESERVE_NAME).exists)
    fill(filler)
    eventually(lambda: not (data_dir / RESERVE_NAME).exists())

    def could_not_start() -> bool:
        fill(filler)
        with suppress(ValueError, ProcessLookupError):  # none runs
            os.kill(engine_pid(small), signal.SIGKILL)
        return "the engine did not start" in small.log

    eventually(could_not_start)
    filler.unlink()
    eventually(lambda: is_back(sql))
    assert sql.value("select count(*) from little where a = 1") == 1
