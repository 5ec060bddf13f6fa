"""The programs of docs/connect.md in JavaScript and Java; tests/cli has the other examples."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.peers.install import PATH

from tests.cli.command import run_tunnel
from tests.connect_page import Example, list_examples, prepare
from tests.control import Organization
from tests.extended.test_jdbc import run_java
from tests.service import Service

GENERATED = """
// In place of what Prisma makes from a schema: asks the adapter as that does.
export class PrismaClient {
  constructor({ adapter }) {
    this.connected = adapter.connect();
    this.account = {
      findMany: async ({ where: { id } }) => {
        const argTypes = [{ scalarType: "int", arity: "scalar" }];
        const asked = { sql: "select id, owner from account where id = $1", args: [id], argTypes };
        return (await (await this.connected).queryRaw(asked)).rows;
      },
    };
  }
  async $disconnect() {
    await (await this.connected).dispose();
  }
}
"""


@pytest.fixture(scope="module")
def prepared(service: Service, organization: Organization) -> Organization:
    prepare(organization)
    return organization


@pytest.fixture(scope="module")
def place(service: Service, prepared: Organization, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("home")
    with run_tunnel(service, home, "--port", "0", env={"TUPLEGATE_API_KEY": prepared.key}) as found:
        yield found


@pytest.mark.parametrize(
    "example", list_examples("js"), ids=lambda example: example.text.split('from "')[-1].split('"')[0]
)
def test_a_javascript_program(
    example: Example, service: Service, prepared: Organization, place: str, javascript: Path
) -> None:
    program = javascript / "example.mjs"
    program.write_text(example.at(service, place))
    (javascript / "generated").mkdir(exist_ok=True)
    (javascript / "generated" / "package.json").write_text('{"type": "module"}')
    (javascript / "generated" / "client.js").write_text(GENERATED)
    env = {**os.environ, "PATH": PATH, "TUPLEGATE_API_KEY": prepared.key}
    done = subprocess.run(["node", str(program)], env=env, capture_output=True, text=True, timeout=90, cwd=javascript)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "console.log" not in example.text or done.stdout.strip()


@pytest.mark.parametrize("example", list_examples("java"), ids=["JDBC"])
def test_a_java_program(example: Example, service: Service, place: str, tmp_path: Path) -> None:
    program = tmp_path / "Example.java"
    program.write_text(example.at(service, place))
    assert run_java(program) == "ada\n"
