"""Settings: one table, three sources, and messages that say what is wrong and where."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tuplegate.cli.main import cli
from tuplegate.settings import Settings, SettingsError, default_data_dir, list_settings, load


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tuplegate.toml"


def test_without_any_source_the_defaults_are_in_force() -> None:
    """Nothing needs to be set."""
    assert load({}, {}, None) == Settings()


def test_a_later_source_wins(file: Path) -> None:
    """Default, file, environment, flag."""
    file.write_text("data_port = 1\nqueue_max = 1\nkeep_alive_s = 1\n")
    environment = {"TUPLEGATE_DATA_PORT": "2", "TUPLEGATE_QUEUE_MAX": "2"}
    settings = load({"data_port": "3"}, environment, file)
    assert (settings.data_port, settings.queue_max, settings.keep_alive_s) == (3, 2, 1)
    assert settings.body_timeout_s == Settings().body_timeout_s


@pytest.mark.parametrize("entry", list(list_settings()), ids=lambda entry: entry.name)
def test_every_setting_can_come_from_every_source(file: Path, entry: Any) -> None:
    """The table alone decides what there is."""
    text, value = {
        bool: ("true", True),
        int: (str((entry.at_least or 0) + 7), (entry.at_least or 0) + 7),
        Path: ("/somewhere", Path("/somewhere")),
        str: (entry.choices[-1] if entry.choices else "some", entry.choices[-1] if entry.choices else "some"),
    }[entry.kind]
    file.write_text(f"{entry.name} = " + (text if entry.kind in (bool, int) else f'"{text}"'))
    assert getattr(load({}, {}, file), entry.name) == value
    assert getattr(load({}, {entry.variable: text}, None), entry.name) == value
    assert getattr(load({entry.name: text}, {}, None), entry.name) == value


@pytest.mark.parametrize("entry", list(list_settings()), ids=lambda entry: entry.name)
def test_every_setting_is_in_the_help(entry: Any) -> None:
    """Its flag, its variable and a sentence."""
    shown = CliRunner().invoke(cli, ["serve", "--help"], terminal_width=10_000).output
    assert f"{entry.flag} " in shown
    assert entry.variable in shown
    assert entry.help.endswith(".")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("data_port", "x"),
        ("data_port", "-1"),
        ("data_port", "1.5"),
        ("data_port", ""),
        ("data_port", "70000"),
        ("connections_per_database", "0"),
        ("log_level", "loud"),
        ("behind_proxy", "perhaps"),
    ],
)
def test_a_bad_value_is_refused_with_its_source(file: Path, name: str, value: str) -> None:
    """The message names where the value is from, the setting, the value and what it takes."""
    file.write_text(f'{name} = "{value}"')
    variable = f"TUPLEGATE_{name.upper()}"
    sources: list[tuple[str, dict[str, Any], dict[str, str], Path | None]] = [
        (f"flag --{name.replace('_', '-')}", {name: value}, {}, None),
        (f"environment variable {variable}", {}, {variable: value}, None),
        (str(file), {}, {}, file),
    ]
    for source, flags, environment, path in sources:
        with pytest.raises(SettingsError) as caught:
            load(flags, environment, path)
        message = str(caught.value)
        assert message.startswith(source)
        assert name in message
        assert repr(value) in message
        assert "it takes " in message


@pytest.mark.parametrize(
    "text", ["data_port = true", "data_port = 1.5", "data_port = [1]", "host = 1", "log_level = 1", "data_dir = {}"]
)
def test_a_value_of_the_wrong_kind_in_the_file_is_refused(file: Path, text: str) -> None:
    """TOML has types, and they must be the setting's."""
    file.write_text(text)
    with pytest.raises(SettingsError, match="it takes"):
        load({}, {}, file)


def test_an_unknown_setting_in_the_file_is_refused(file: Path) -> None:
    """A misspelt one must not be ignored."""
    file.write_text("data_prot = 1")
    with pytest.raises(SettingsError, match="data_prot"):
        load({}, {}, file)


@pytest.mark.parametrize("content", [b"data_port =", b"\xff\xfe", b"[", b"data_port = 1\ndata_port = 2"])
def test_a_file_that_is_not_toml_is_refused(file: Path, content: bytes) -> None:
    """The message names the file."""
    file.write_bytes(content)
    with pytest.raises(SettingsError) as caught:
        load({}, {}, file)
    assert str(file) in str(caught.value)


def test_a_file_that_is_not_there_is_refused(file: Path) -> None:
    """So is one that cannot be read."""
    with pytest.raises(SettingsError, match="cannot read"):
        load({}, {}, file)
    with pytest.raises(SettingsError, match="cannot read"):
        load({}, {}, file.parent)


@pytest.mark.parametrize(("text", "value"), [("1", True), ("TRUE", True), ("on", True), ("0", False), ("No", False)])
def test_a_switch_can_be_written_in_words(text: str, value: bool) -> None:
    """As people write it in an environment."""
    assert load({}, {"TUPLEGATE_BEHIND_PROXY": text}, None).behind_proxy is value


def test_other_variables_are_left_alone() -> None:
    """The environment belongs to others too."""
    assert load({}, {"PATH": "x", "TUPLEGATE": "x", "data_port": "x"}, None) == Settings()


def test_a_path_is_taken_from_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tilde in a file or a variable is not expanded by any shell."""
    monkeypatch.setenv("HOME", "/home/somebody")
    assert load({"data_dir": "~/data"}, {}, None).data_dir == Path("/home/somebody/data")


def test_the_data_directory_follows_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """/var/lib for root, the XDG data home for everybody else."""
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert default_data_dir() == Path("/var/lib/tuplegate")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_data_dir() == Path("/data/tuplegate")
    monkeypatch.setenv("XDG_DATA_HOME", "")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert default_data_dir() == Path("/home/somebody/.local/share/tuplegate")


def test_a_clients_variable_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell that knows one service may start another. Whoever meant the setting is told its name."""
    assert load({}, {"TUPLEGATE_URL": "http://a", "TUPLEGATE_CONTROL_URL": "http://b"}, None) == Settings()
    assert load({}, {"TUPLEGATE_PUBLIC_CONTROL_URL": "http://b"}, None).control_url == "http://b"
    monkeypatch.setenv("TUPLEGATE_CONTROL_URL", "http://b")
    result = CliRunner().invoke(cli, ["serve", "--planes", "none"])
    assert "TUPLEGATE_PUBLIC_CONTROL_URL or --control-url" in result.output
    result = CliRunner().invoke(cli, ["serve", "--planes", "none", "--control-url", "http://b"])
    assert "TUPLEGATE_PUBLIC_CONTROL_URL" not in result.output


def test_a_bad_flag_ends_the_command_with_its_message() -> None:
    """Not with a traceback."""
    result = CliRunner().invoke(cli, ["serve", "--data-port", "x"])
    assert result.exit_code == 2
    assert "flag --data-port: data_port cannot be 'x'; it takes a whole number, at least 0" in result.output
