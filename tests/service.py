"""The real service as a child process, and small clients for it. Tests talk to it as any user would: over a socket."""

import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 60


@dataclass
class Service:
    """A running service. `key` is the first key; it is empty when the data directory was used before."""

    process: subprocess.Popen[bytes]
    home: Path
    url: str
    alias_url: str
    control_url: str
    key: str
    output: list[str] = field(default_factory=list)

    @property
    def data_dir(self) -> Path:
        return self.home / "data"

    @property
    def log(self) -> str:
        return (self.home / "service.log").read_text()

    @property
    def trust(self) -> ssl.SSLContext:
        """What a client knows that trusts the certificate of the service's own making, where it has one."""
        made = self.data_dir / "tls" / "certificate.pem"
        return ssl.create_default_context(cafile=str(made) if made.exists() else None)

    @property
    def alias(self) -> "Service":
        """The same service, by its alias."""
        return replace(self, url=self.alias_url)

    def client(self, key: str | None = None) -> httpx.Client:
        headers = {"Authorization": f"Bearer {key or self.key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False, verify=self.trust)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_TIMEOUT_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(STOP_TIMEOUT_S)


def new_data_dir() -> Path:
    """Not pytest's own: that lies under a directory of mode 0700, which root's engine user cannot enter."""
    home = Path(tempfile.mkdtemp(prefix="qg-", dir="/tmp"))
    home.chmod(0o755)
    return home / "data"


def start_service(data_dir: Path, *flags: str, env: dict[str, str] | None = None) -> Service:
    """Starts it and waits until it serves. Its output goes to files in the parent of the data directory."""
    log, out = data_dir.parent / "service.log", data_dir.parent / "service.out"
    ports = ["--data-port", "0", "--alias-port", "0", "--control-port", "0"]
    command = [sys.executable, "-m", "querygate", "serve", "--data-dir", str(data_dir), *ports, *flags]
    with log.open("a") as stderr, out.open("w") as stdout:
        process = subprocess.Popen(command, stdout=stdout, stderr=stderr, env={**os.environ, **(env or {})})
    deadline = time.monotonic() + START_TIMEOUT_S
    # The addresses, the key and the line to paste are written at once, when the service is ready.
    while not (text := out.read_text()).endswith("\n"):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.wait()
            raise AssertionError(f"the service did not start: {log.read_text()[-2000:]}")
        time.sleep(0.01)
    output = text.splitlines()
    values = dict(line.split(": ", 1) for line in output)
    return Service(
        process,
        data_dir.parent,
        values["data"],
        values.get("alias", ""),
        values.get("control", ""),
        values.get("key", ""),
        output,
    )


def remove(data_dir: Path) -> None:
    shutil.rmtree(data_dir.parent, ignore_errors=True)


class Sql:
    """`POST /v1/query` in one call."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client

    def answer(self, sql: str, params: list[Any] | None = None, **more: Any) -> httpx.Response:
        body: dict[str, Any] = {"sql": sql, **more}
        if params is not None:
            body["params"] = params
        return self.client.post("/v1/query", content=json.dumps(body), headers={"Content-Type": "application/json"})

    def __call__(self, sql: str, params: list[Any] | None = None, **more: Any) -> dict[str, Any]:
        """The body of an answer that must be a success."""
        answer = self.answer(sql, params, **more)
        body: dict[str, Any] = answer.json()
        assert answer.status_code == 200, body
        assert body["success"], body
        return body

    def rows(self, sql: str, params: list[Any] | None = None, **more: Any) -> list[Any]:
        rows: list[Any] = self(sql, params, **more)["rows"]
        return rows

    def value(self, sql: str, params: list[Any] | None = None) -> Any:
        return self.rows(sql, params, row_mode="arrays")[0][0]

    def fails(self, sql: str, params: list[Any] | None = None, **more: Any) -> dict[str, Any]:
        """The error of an answer that must be 200 and no success."""
        answer = self.answer(sql, params, **more)
        body = answer.json()
        assert answer.status_code == 200, body
        assert body["success"] is False, body
        error: dict[str, Any] = body["error"]
        return error
