"""The command `tuplegate` as a child process, as a shell starts it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import preloaded
from tests.service import Service


def heed_interrupts() -> None:
    """Whoever runs the tests in the background has them ignore Ctrl-C, and what they start would, too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Command:
    """Runs commands against a service. `env` is added to an environment that knows this service and no profile."""

    def __init__(self, service: Service, home: Path, **env: str) -> None:
        bare = {name: value for name, value in os.environ.items() if not name.startswith("TUPLEGATE_")}
        self.env = {
            **bare,
            "HOME": str(home),
            "XDG_CONFIG_HOME": str(home),
            "TUPLEGATE_URL": service.url,
            "TUPLEGATE_CONTROL_URL": service.control_url,
            "TUPLEGATE_API_KEY": service.key,
            **env,
        }

    def start(self, *arguments: str, **more: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tuplegate", *arguments]
        return subprocess.Popen(command, env=self.env, **{"preexec_fn": heed_interrupts, **more})

    def __call__(self, *arguments: str, given: str = "") -> Done:
        done = preloaded.run(arguments, self.env, given)
        assert "Traceback" not in done.stderr, done.stderr
        return Done(done.returncode, done.stdout, done.stderr)


@contextmanager
def run_tunnel(service: Service, home: Path, *arguments: str, env: dict[str, str] | None = None) -> Iterator[str]:
    """Run a tunnel; yield the address that it prints."""
    with Command(service, home, **(env or {})).start(
        "tunnel", *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        line = run.stdout.readline().decode()
        assert line.startswith("psql postgresql://127.0.0.1:"), run.stderr.read()
        yield line.split()[1]
        run.send_signal(signal.SIGINT)
        assert run.wait(20) == 0, run.stderr.read()
