"""`tuplegate doctor`: what it looks at, what it says to do, and the certificates it trusts."""

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import Command, Done
from tests.service import Service, needs_bundled, running_service
from tuplegate.engine.bundled.sandbox.bounds import find_missing_bounds


@pytest.fixture(scope="module")
def secure() -> Iterator[Service]:
    """A service with a certificate of its own making."""
    with running_service("--tls", "self-signed") as running:
        yield running


@pytest.fixture
def command(service: Service, tmp_path: Path) -> Command:
    return elsewhere(service, tmp_path)


def elsewhere(service: Service, home: Path, **env: str) -> Command:
    """On a machine without a data directory, whatever service this one may have had."""
    return Command(service, home, TUPLEGATE_DATA_DIR=str(home / "none"), **env)


def results(done: Done) -> dict[str, str]:
    return {found["check"]: found["result"] for found in done.lines}


def failures(done: Done) -> dict[str, str]:
    """What has failed, and what is to be done about it."""
    return {found["check"]: found["advice"] for found in done.lines if found["result"] == "failed"}


def test_the_doctor_finds_a_healthy_service_and_a_sick_one(service: Service, command: Command, tmp_path: Path) -> None:
    """And says what to do."""
    healthy = command("doctor")
    assert healthy.code == 0, healthy.out
    checks = ("address", "control address", "engine", "key", "clock", "control plane")
    assert results(healthy) == dict.fromkeys(checks, "ok")
    gone = elsewhere(service, tmp_path, TUPLEGATE_URL="http://127.0.0.1:1")("doctor")
    assert gone.code == 10
    assert gone.lines[0]["result"] == "failed"
    assert "tuplegate serve" in gone.lines[0]["advice"]
    wrong = elsewhere(service, tmp_path, TUPLEGATE_API_KEY="svc_k_wrong")("doctor")
    assert wrong.code == 10
    assert {found["check"] for found in wrong.lines if found["result"] == "failed"} == {"key", "clock"}


def test_without_a_key_the_rest_is_checked(service: Service, tmp_path: Path) -> None:
    """And it is said where a key comes from."""
    done = elsewhere(service, tmp_path, TUPLEGATE_API_KEY="")("doctor")
    assert done.code == 10
    assert results(done)["engine"] == "ok"
    assert "TUPLEGATE_API_KEY" in failures(done)["key"]
    refused = elsewhere(service, tmp_path, TUPLEGATE_API_KEY="")("query", "select 1")
    assert (refused.code, "tuplegate profile set NAME" in refused.err) == (2, True)
    unfit = elsewhere(service, tmp_path)("restore", "nowhere.dump", "My Data")
    assert (unfit.code, "lower-case letters, digits, hyphens and underscores" in unfit.err) == (2, True)


def test_a_certificate_that_is_not_trusted_is_the_first_thing_to_fix(secure: Service, tmp_path: Path) -> None:
    """The advice works: by flag, environment and profile, for the doctor and every other command."""
    command = elsewhere(secure, tmp_path)
    untrusted = command("doctor")
    assert untrusted.code == 10
    assert set(failures(untrusted)) == {"tls", "control tls"}
    assert "--ca-file" in failures(untrusted)["tls"]
    refused = command("query", "select 1 as a")
    assert (refused.code, "--ca-file" in refused.err) == (3, True)
    own = str(secure.data_dir / "tls" / "certificate.pem")
    trusted = command("doctor", "--ca-file", own)
    assert trusted.code == 0, trusted.out
    assert results(trusted)["tls"] == "ok"
    assert command("query", "--ca-file", own, "select 1 as a").lines == [{"a": 1}]
    assert elsewhere(secure, tmp_path, TUPLEGATE_CA_FILE=own)("query", "select 1 as a").lines == [{"a": 1}]
    addresses = ("--url", secure.url, "--control-url", secure.control_url)
    assert command("profile", "set", "own", *addresses, "--ca-file", own, given=secure.key).code == 0
    assert command("doctor", "--profile", "own").code == 0


def test_a_file_that_holds_no_certificates_is_named(secure: Service, tmp_path: Path) -> None:
    """A file that is not there, and one that is something else."""
    other = tmp_path / "other.pem"
    other.write_text("nothing of the kind")
    for file in (tmp_path / "nowhere.pem", other):
        done = elsewhere(secure, tmp_path)("doctor", "--ca-file", str(file))
        assert (done.code, "PEM" in failures(done)["tls"]) == (10, True)
        assert elsewhere(secure, tmp_path)("query", "--ca-file", str(file), "select 1").code == 2


def test_a_plane_that_speaks_no_tls_is_told_apart(service: Service, tmp_path: Path) -> None:
    """It is there, and speaks something else."""
    done = elsewhere(service, tmp_path, TUPLEGATE_URL=service.url.replace("http:", "https:"))("doctor")
    assert done.code == 10
    assert "TLS" in next(found["found"] for found in done.lines if found["check"] == "tls")


@needs_bundled
def test_the_machine_of_a_service_is_looked_at(service: Service, command: Command) -> None:
    """Its data directory, and the disk below it."""
    done = command("doctor", "--data-dir", str(service.data_dir))
    assert done.code == 0, done.out
    assert (results(done)["data directory"], results(done)["disk"]) == ("ok", "ok")
    assert f"pid {service.process.pid}" in done.out
    missing = find_missing_bounds(service.process.pid)
    assert results(done)["bounds"] == ("warning" if missing else "ok")
    assert all(text in done.out for text in missing)


def test_where_no_service_runs_its_ports_must_be_free(command: Command, tmp_path: Path) -> None:
    """And the engine's programs must be there; others must not see the data."""
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / "tuplegate.lock").write_text("999999999\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = {"DATA": "0", "ALIAS": "0", "CONTROL": str(taken.getsockname()[1])}
        command.env |= {f"TUPLEGATE_{plane}_PORT": port for plane, port in ports.items()}
        done = command("doctor", "--data-dir", str(data))
    assert set(failures(done)) == {"control port"}
    assert "--control-port" in failures(done)["control port"]
    assert results(done)["engine programs"] == "ok"
    command.env["TUPLEGATE_ENGINE_BIN"] = str(tmp_path)
    data.chmod(0o755)
    done = command("doctor", "--data-dir", str(data))
    assert set(failures(done)) == {"data directory", "engine programs"}
    shutil.rmtree(data)


def test_people_get_lines_and_what_to_do_below_them(service: Service, tmp_path: Path) -> None:
    """Nothing of it is cut."""
    done = elsewhere(service, tmp_path, TUPLEGATE_URL="http://127.0.0.1:1")("doctor", "-o", "table")
    assert done.out.startswith("failed   address ")
    assert "\n                          → Start the service (`tuplegate serve`), or correct --url.\n" in done.out
