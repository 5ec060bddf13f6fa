"""Tunnels to `GET /v2` of the service nodes, one each, as processes of their own."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.external import free_port
from tests.service import Service

STOP_S = 10.0


@contextmanager
def running_tunnels(services: Sequence[Service]) -> Iterator[tuple[int, ...]]:
    """Gives their ports, in the order of the nodes."""
    ports = tuple(free_port() for _ in services)
    processes = []
    try:
        for service, port in zip(services, ports, strict=True):
            command = [sys.executable, "-m", "tuplegate", "tunnel", "--url", service.url, "--port", str(port)]
            env = {**os.environ, "TUPLEGATE_API_KEY": service.key}
            log = (service.home / "tunnel.log").open("ab")
            with log:
                processes.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))
        yield ports
    finally:
        for process in processes:
            process.kill()
            process.wait(STOP_S)
