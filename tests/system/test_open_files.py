"""A service that may have few files open."""

import json
import os
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.servers import needs_linux
from tests.service import Service, new_data_dir, remove, start_service
from tests.waiting import eventually
from tests.workers import Caller, connect, workers

pytestmark = needs_linux

FILES = 300


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def is_served(service: Service) -> bool:
    """On a new connection; those of the flood that had waited in the socket may have to be refused before it."""
    with service.client() as client:
        return client.post("/v1/query", json={"sql": "select 1"}).status_code == 200


@pytest.mark.parametrize("workers_count", [1, 2])
def test_a_flood_of_connections(workers_count: int) -> None:
    """A bystander is answered, also by an engine connection that is opened meanwhile; the worker does not spin; and
    who comes during the flood or after it is served."""
    data_dir = new_data_dir()
    flags = ("--workers", str(workers_count), "--engine-connections-max", "20", "--connection-idle-s", "1")
    service = start_service(data_dir, *flags, "--header-timeout-s", "60", files_max=FILES)
    [line] = [json.loads(text) for text in service.log.splitlines() if "fewer files may be open" in text]
    assert line["http_connections_max"] == (FILES - 20 - 200) // 4
    bystander = Caller(service, connect(service))
    assert bystander.sql("select 1 as a") == [{"a": 1}]
    ports = [urlsplit(url).port for url in (service.url, service.alias_url, service.control_url)]
    with ExitStack() as flood:
        for _ in range(FILES * workers_count):
            for port in ports:
                sock = socket.socket()
                flood.callback(sock.close)
                sock.setblocking(False)
                sock.connect_ex(("127.0.0.1", port))
        eventually(lambda: is_served(service))
        pids = workers(service)
        used, begun = sum(map(cpu_s, pids)), time.monotonic()
        while time.monotonic() - begun < 3:
            assert bystander.sql("select 1 as a") == [{"a": 1}]
            assert max(map(open_files, pids)) < FILES
            time.sleep(0.25)
        assert (sum(map(cpu_s, pids)) - used) / (time.monotonic() - begun) < 0.5 * workers_count
    eventually(lambda: is_served(service))
    assert service.log.count("no file descriptors are left") <= 3 * workers_count
    bystander.close()
    assert service.stop() == 0
    assert "Too many open files" not in service.log
    remove(data_dir)
