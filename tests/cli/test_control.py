"""Databases, keys, organizations, sessions, profiles and benchmarks from the command line."""

import stat
from pathlib import Path

import pytest

from tests.cli.command import Command
from tests.service import Service, needs_bundled


def test_databases_are_made_cloned_listed_and_deleted(command: Command) -> None:
    """What cannot be undone wants --yes."""
    assert command("database", "create", "cli-one").lines[0]["state"] == "active"
    assert command("query", "--database", "cli-one", "create table t as select 5 as n").code == 0
    assert command("database", "clone", "cli-one", "cli-two").code == 0
    assert command("query", "--database", "cli-two", "select n from t").lines == [{"n": 5}]
    assert command("database", "create", "cli-one").code == 6
    assert {"cli-one", "cli-two"} <= {found["name"] for found in command("database", "list").lines}
    assert command("database", "update", "cli-two", "--protect").lines[0]["delete_protection"] is True
    assert command("database", "delete", "cli-two", "--yes").code == 6
    assert (
        command("database", "update", "cli-two", "--no-protect", "--name", "cli-three").lines[0]["name"] == "cli-three"
    )
    assert command("database", "update", "cli-three").code == 2
    unsure = command("database", "delete", "cli-three")
    assert (unsure.code, "--yes" in unsure.err) == (2, True)
    for name in ("cli-one", "cli-three"):
        assert command("database", "delete", name, "--yes").code == 0


def test_keys_are_made_rotated_and_revoked_through_the_service(
    service: Service, command: Command, tmp_path: Path
) -> None:
    """The key is printed once, by create and by rotate."""
    made = command(
        "key", "create", "--name", "ci", "--scope", "read", "--database", "main", "--expires-in", "60"
    ).lines[0]
    assert (made["name"], made["scopes"], made["database"]) == ("ci", ["read"], "main")
    reader = Command(service, tmp_path, TUPLEGATE_API_KEY=made["key"])
    assert reader("query", "select 1 as n").lines == [{"n": 1}]
    assert reader("query", "create table cli_no ()").code == 5
    assert reader("key", "list").code == 4
    rotated = command("key", "rotate", made["id"], "--grace", "30").lines[0]
    assert rotated["key"] != made["key"]
    [listed] = [found for found in command("key", "list").lines if found["id"] == made["id"]]
    assert "key" not in listed
    assert command("key", "revoke", made["id"]).code == 0
    assert command("key", "revoke", "nowhere").code == 6


@needs_bundled
def test_a_key_is_made_on_the_machine_where_that_is_asked_for(service: Service, command: Command) -> None:
    """As it was before there was a control plane, whether or not there is a key in the environment."""
    for env in (command.env, {**command.env, "TUPLEGATE_API_KEY": ""}):
        command.env = env
        done = command("key", "create", "--data-dir", str(service.data_dir), "--name", "here", "--scope", "read")
        assert done.out.startswith("key: svc_k_")
    assert command("key", "create", "--local", "--name", "x", "--scope", "read", "--database", "main").code == 2
    # The default data directory of this home is empty: the message is about the machine, not about a service.
    command.env |= {"XDG_DATA_HOME": "/nowhere", "TUPLEGATE_DATA_DIR": "/nowhere"}
    refused = command("key", "create", "--name", "x", "--scope", "read")
    assert (refused.code, "/nowhere" in refused.err) == (1, True)


def test_sessions_begin_and_end(service: Service, command: Command, tmp_path: Path) -> None:
    """The token works in place of the key."""
    opened = command("session", "login", "--scope", "read").lines[0]
    session = Command(service, tmp_path, TUPLEGATE_API_KEY=opened["token"])
    assert session("session", "show").lines[0]["id"] == opened["id"]
    assert session("session", "refresh").lines[0]["expires_at"] > opened["expires_at"]
    assert session("session", "logout").code == 0
    assert session("session", "show").code == 4
    assert command("session", "show").code == 4, "a key is no session"


def test_open_sessions_are_listed_and_ended(service: Service, command: Command, tmp_path: Path) -> None:
    """With the id of the key that each belongs to."""
    opened = command("session", "login", "--scope", "read").lines[0]
    [listed] = [one for one in command("session", "list").lines if one["id"] == opened["id"]]
    assert (listed["scopes"], listed["current"]) == (["read"], False)
    assert listed["key"]
    assert command("session", "end", opened["id"]).code == 0
    assert Command(service, tmp_path, TUPLEGATE_API_KEY=opened["token"])("session", "show").code == 4
    assert command("session", "end", opened["id"]).code == 6


def test_a_session_can_be_for_one_database(service: Service, command: Command, tmp_path: Path) -> None:
    """Its statements go there without naming it."""
    command("database", "create", "session_db")
    opened = command("session", "login", "--database", "session_db").lines[0]
    assert opened["database"] == "session_db"
    session = Command(service, tmp_path, TUPLEGATE_API_KEY=opened["token"])
    session("query", "create table only_in_session_db (n int)")
    [there] = session("query", "select to_regclass('only_in_session_db') is not null as there").lines
    [here] = command("query", "select to_regclass('only_in_session_db') is not null as there").lines
    assert (there["there"], here["there"]) == (True, False)
    assert command("session", "login", "--database", "nowhere").code == 6
    command("database", "delete", "session_db", "--yes")


def test_a_benchmark_is_a_table_of_workloads(service: Service, command: Command, tmp_path: Path) -> None:
    """All of them, or those named; a key without the scope is refused."""
    [row] = command("bench", "insert", "--seconds", "1", "--concurrency", "2").lines
    assert (row["workload"], row["concurrency"], row["errors"]) == ("insert", 2, 0)
    assert row["operations"] > 0
    assert row["p50_us"] <= row["p95_us"] <= row["p99_us"]
    every = command("bench", "--seconds", "1", "--concurrency", "1", "-o", "csv")
    assert every.out.count("\n") == 6
    wrong = command("bench", "nonsense")
    assert (wrong.code, "point_read" in wrong.err) == (2, True)
    reader = command("key", "create", "--name", "reader", "--scope", "read").lines[0]
    assert Command(service, tmp_path, TUPLEGATE_API_KEY=reader["key"])("bench").code == 4


def test_organizations_are_managed_by_the_operator(command: Command) -> None:
    """With the first key shown when one is made."""
    made = command("organization", "create", "cli-guest", "--tier", "free").lines[0]
    assert made["key"].startswith("svc_k_")
    assert command("organization", "update", made["id"], "--tier", "pro").lines[0]["tier"] == "pro"
    assert made["id"] in {found["id"] for found in command("organization", "list").lines}
    assert command("organization", "show").lines[0]["name"] == "default"
    assert command("organization", "audit", "--limit", "1").lines[0]["action"].startswith("organization.")
    assert command("organization", "usage").code == 0
    assert command("organization", "delete", made["id"], "--yes").code == 0


def test_profiles_hold_an_address_and_a_key_for_their_owner_alone(service: Service, tmp_path: Path) -> None:
    """The key comes from stdin, is shown in part, and goes to no other address."""
    command = Command(service, tmp_path)
    for name in ("TUPLEGATE_URL", "TUPLEGATE_CONTROL_URL", "TUPLEGATE_API_KEY"):
        del command.env[name]
    assert command("query", "select 1").code == 2
    address = ["--url", service.url, "--control-url", service.control_url]
    assert command("profile", "set", "here", *address, given=service.key + "\n").code == 0
    file = tmp_path / "tuplegate" / "profiles.toml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert command("query", "select 1 as n").lines == [{"n": 1}], "the first one is the default"
    assert command("database", "list").code == 0
    assert (
        command("profile", "set", "away", "--url", "http://127.0.0.1:1", "--database", "x", given="svc_k_y").code == 0
    )
    assert command("query", "--profile", "away", "select 1").code == 3
    listed = command("profile", "list")
    assert [found["name"] for found in listed.lines] == ["away", "here"]
    assert service.key not in listed.out
    assert command("query", "--profile", "here", "--url", "http://127.0.0.1:1", "select 1").code == 2
    command.env["TUPLEGATE_API_KEY"] = "svc_k_other"
    with_environment = command("query", "select 1")
    assert with_environment.code in (3, 4), "the environment's key goes to the environment's address"
    del command.env["TUPLEGATE_API_KEY"]
    assert command("query", "--url", service.url, "select 1").code == 2, "a profile's key goes to its own address"
    assert command("profile", "use", "away").code == 0
    assert command("query", "select 1").code == 3
    assert command("profile", "remove", "away").code == 0
    assert command("query", "--profile", "away", "select 1").code == 2
    assert command("profile", "set", "none", "--url", service.url, given="").code == 2
    file.chmod(0o644)
    refused = command("query", "--profile", "here", "select 1")
    assert (refused.code, "chmod 600" in refused.err) == (2, True)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["database", "--help"], ["query", "-h"]])
def test_help_is_on_stdout_and_a_success(command: Command, arguments: list[str]) -> None:
    """As is the version."""
    done = command(*arguments)
    assert (done.code, done.err) == (0, "")
    assert done.out


def test_the_page_names_every_command() -> None:
    """docs/cli.md has each noun and verb."""
    import click

    from tuplegate.cli.main import cli

    page = (Path(__file__).parent.parent.parent / "docs/cli.md").read_text("utf-8")
    for name, found in cli.commands.items():
        assert f"`{name}" in page, name
        for verb in found.commands if isinstance(found, click.Group) else ():
            assert f"`{name} {verb}" in page or f"`{verb}" in page, f"{name} {verb}"


def test_no_command_takes_a_key_as_an_argument() -> None:
    """Other users of the machine see arguments."""
    import click

    from tuplegate.cli.main import cli

    def options(found: click.Command) -> set[str]:
        inner = found.commands.values() if isinstance(found, click.Group) else ()
        return {name for p in found.params for name in p.opts}.union(*(options(part) for part in inner))

    assert "--url" in options(cli)
    assert not {name for name in options(cli) if "api-key" in name or "token" in name}
