"""PostgreSQL's driver for Java, unmodified, through a tunnel: the program in tests/clients/java."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent.parent / "clients" / "java" / "Scenario.java"
JAR = Path(os.environ.get("TUPLEGATE_TEST_JDBC", "/usr/share/java/postgresql.jar"))
"""Where Debian's package libpostgresql-jdbc-java puts it."""


def run_java(program: Path, *arguments: str) -> str:
    """Run a program of one file; return what it prints. Skips the test without a JDK or the driver."""
    java = shutil.which("java")
    if java is None or shutil.which("javac") is None:
        pytest.skip("there is no JDK")
    if not JAR.exists():
        pytest.skip(f"{JAR} is not there: TUPLEGATE_TEST_JDBC names PostgreSQL's driver for Java")
    command = [java, "-cp", str(JAR), str(program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_types_errors_transactions_rows_and_a_cancel(address: str) -> None:
    assert run_java(PROGRAM, address.removeprefix("postgresql://")) == "done\n"
