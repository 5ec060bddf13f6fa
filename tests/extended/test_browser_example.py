"""The JavaScript of the reference does what the reference says, in Node, which has a browser's fetch and streams."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.service import Service

PAGE = Path(__file__).parent.parent.parent / "docs" / "api.md"
NODE = shutil.which("node")

DRIVER = """
const token = await openSession(process.env.KEY);
const rows = [];
for await (const row of rowsOf(token, "select g as n, repeat('é', 3000) from generate_series(1, $1::int) g", [500])) {
  rows.push(row.n);
}
const failures = [];
for (const work of [
  () => query(token, "create table page (n int)"),
  async () => { for await (const row of rowsOf(token, "select 1 / (2 - g) from generate_series(1, 3) g")); },
  async () => { for await (const row of rowsOf(token, "selec")); },
  () => openSession("svc_k_wrong"),
]) {
  await work().then(() => failures.push(null), (error) => failures.push(error.message));
}
let first;
for await (const row of rowsOf(token, "select generate_series(1, 100000000) as n")) { first = row.n; break; }
console.log(JSON.stringify({ answer: await query(token, "select $1::int + 1 as n", [41]), rows, failures, first }));
"""


@pytest.mark.skipif(NODE is None, reason="there is no Node")
def test_the_javascript_of_the_reference_works(service: Service, tmp_path: Path) -> None:
    """Sessions, statements, streams, and what each does where it fails."""
    text = "\n".join(re.findall(r"^```js\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))
    text = text.replace("http://127.0.0.1:8080", service.url).replace("http://127.0.0.1:8082", service.control_url)
    program = tmp_path / "page.mjs"
    program.write_text(text + DRIVER)
    assert NODE is not None
    done = subprocess.run(
        [NODE, program], env={"KEY": service.key}, capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["answer"] == [{"n": 42}]
    assert told["rows"] == list(range(1, 501))
    assert told["first"] == 1
    refused, divided, unparsed, wrong = told["failures"]
    assert "permission denied" in refused or "read-only" in refused
    assert divided == "division by zero"
    assert "syntax error" in unparsed
    assert wrong == "the token is not a well-formed API key or session token"
