"""SQLAlchemy's own tests for a dialect pass, or are excluded by a requirement with its reason."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dbapi.conftest import address
from tests.service import Service, new_data_dir, remove, start_service
from tuplegate import dbapi

ROOT = Path(__file__).parent.parent.parent
SUITE = "tests/sqlalchemy_suite"
PASSED_MIN = 1800
"""So many tests the suite has for a dialect like this; with fewer, something was not run."""


@pytest.fixture(scope="module")
def fresh_service() -> Iterator[Service]:
    """With the schemas that the suite wants."""
    data_dir = new_data_dir()
    running = start_service(data_dir)
    with dbapi.connect(address(running), autocommit=True) as connection:
        for schema in ("test_schema", "test_schema_2"):
            connection.cursor().execute(f"create schema {schema}")
    yield running
    assert running.stop() == 0
    remove(data_dir)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scheme", ["tuplegate", "tuplegate+async"])
def test_every_test_of_the_suite_passes(fresh_service: Service, scheme: str) -> None:
    url = address(fresh_service).replace("tuplegate", scheme, 1)
    command = [sys.executable, "-m", "pytest", "-c", f"{SUITE}/setup.cfg", "--rootdir", SUITE, "--confcutdir", SUITE]
    command += ["-p", "no:xdist", "--dburi", url, "-q", f"{SUITE}/test_suite.py"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(ROOT)])}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= PASSED_MIN, done.stdout[-500:]
