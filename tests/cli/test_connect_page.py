"""The commands and the Python programs of docs/connect.md; tests/extended has those in other languages."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import Command
from tests.connect_page import Example, list_examples, prepare
from tests.control import Organization
from tests.dumps import PROGRAMS
from tests.service import Service

TUNNEL, PRINTED = list_examples("sh", "text")[:2]
DJANGO = """
import django
from django.conf import settings

settings.configure(DATABASES=DATABASES)
django.setup()
from django.db import connection

with connection.cursor() as cursor:
    cursor.execute("select owner from account where id = 1")
    print(cursor.fetchone())
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, service: Service, organization: Organization) -> Path:
    """With the profile that the page names, and the command on the path."""
    prepare(organization)
    folder = tmp_path_factory.mktemp("home")
    done = Command(service, folder)("profile", "set", "production", "--url", service.url, given=organization.key)
    assert done.code == 0, done.err
    (folder / "bin").mkdir()
    shim = folder / "bin" / "tuplegate"
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tuplegate "$@"\n')
    shim.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def address(home: Path, service: Service) -> Iterator[str]:
    """That of the tunnel, which the first example starts. It takes another port where that is taken."""
    words = shlex.split(TUNNEL.text)
    assert words[:2] == ["tuplegate", "tunnel"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Command(service, home).start(*words[1:], "--port", "0", **pipes) as run:
        assert run.stdout is not None
        printed = run.stdout.readline().decode()
        port = printed.rpartition(":")[2].partition("/")[0]
        assert printed == PRINTED.text.replace("5432", port)
        yield printed.split()[1]
        run.send_signal(signal.SIGINT)
        assert run.wait(20) == 0


def run(command: list[str], home: Path, service: Service, key: str) -> str:
    path = os.pathsep.join([str(home / "bin"), str(PROGRAMS), os.environ.get("PATH", os.defpath)])
    env = {**Command(service, home, TUPLEGATE_API_KEY=key).env, "PATH": path}
    done = subprocess.run(command, env=env, cwd=home, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("example", list_examples("sh")[1:], ids=lambda example: example.text.split()[0])
def test_a_command(example: Example, address: str, home: Path, service: Service, organization: Organization) -> None:
    said = run(["bash", "-euc", example.at(service, address)], home, service, organization.key)
    if "pg_restore" in example.text:
        assert organization.control.sql(database="copy").value("select count(*) from account") == 2
    else:
        assert "account" in said or "number of transactions actually processed: 100/100" in said


@pytest.mark.parametrize("example", list_examples("python"), ids=lambda example: example.text.split()[1])
def test_a_python_program(
    example: Example, address: str, home: Path, service: Service, organization: Organization
) -> None:
    text = example.at(service, address) + (DJANGO if "DATABASES" in example.text else "")
    assert "ada" in run([sys.executable, "-c", text], home, service, organization.key)


def test_every_example_is_run_by_a_test() -> None:
    """Here, or in tests/extended: those are the kinds that there are."""
    assert {example.kind for example in list_examples()} == {"sh", "text", "python", "js", "java"}
    assert list_examples("text") == [PRINTED]
