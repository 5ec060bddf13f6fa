"""The table of all settings. The file, the environment, the flags of `tuplegate serve` and docs/settings.md follow it.

A later source overrides an earlier one: default, file (TOML), environment (`TUPLEGATE_NAME`), flag (`--name`).
Variables for clients are not read here: a shell that is set up to use one service may start another.
"""

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any


class SettingsError(Exception):
    """A setting that cannot be used. The message says which, where it comes from, and which values are allowed."""


def default_data_dir() -> Path:
    if os.geteuid() == 0:
        return Path("/var/lib/tuplegate")
    data_home = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(data_home) / "tuplegate"


def _define(
    default: Any,
    text: str,
    *,
    at_least: int | None = None,
    at_most: int | None = None,
    choices: tuple[str, ...] = (),
    variable: str = "",
) -> Any:
    meta = {"help": text, "at_least": at_least, "at_most": at_most, "choices": choices, "variable": variable}
    if callable(default):
        return field(default_factory=default, metadata=meta)
    return field(default=default, metadata=meta)


# size: this class is the table; each setting is a field.
@dataclass(frozen=True)
class Settings:
    """All settings. The metadata of each field holds its help text and bounds."""

    data_dir: Path = _define(default_data_dir, "Directory of the bundled engine and all it stores.")  # noqa: RUF009
    host: str = _define("127.0.0.1", "Address to bind. Anything but loopback needs TLS or --behind-proxy.")
    data_port: int = _define(8080, "Port of the data plane; 0 picks a free one.", at_least=0, at_most=65535)
    alias_port: int = _define(8081, "Port of the alias; 0 picks a free one.", at_least=0, at_most=65535)
    control_port: int = _define(8082, "Port of the control plane; 0 picks a free one.", at_least=0, at_most=65535)
    planes: str = _define("data,alias,control", "What this process serves, separated by commas.")
    data_url: str = _define(
        "",
        "Address by which others reach the data plane, if not the one it is bound to.",
        variable="TUPLEGATE_PUBLIC_DATA_URL",
    )
    alias_url: str = _define(
        "",
        "Address by which others reach the alias, if not the one it is bound to.",
        variable="TUPLEGATE_PUBLIC_ALIAS_URL",
    )
    control_url: str = _define(
        "",
        "Address by which others reach the control plane, if not the one it is bound to.",
        variable="TUPLEGATE_PUBLIC_CONTROL_URL",
    )
    node_url: str = _define(
        "",
        "Address by which other machines of this installation reach the data plane of this one, if not the one it is"
        " bound to: they hand over requests of transactions that it holds open.",
    )
    behind_proxy: bool = _define(
        False, "A TLS-terminating proxy stands in front: plain HTTP may be bound to any address."
    )
    tls_cert: str = _define("", "File of the certificate to serve HTTPS with, and those of its issuers, as PEM.")
    tls_key: str = _define("", "File of the certificate's key, as PEM.")
    tls: str = _define("", "Serve HTTPS with a certificate made by the service itself.", choices=("self-signed",))
    metrics_address: str = _define(
        "",
        "Separate address for GET /metrics, as 127.0.0.1:9090: plain HTTP, without a token. Anything but loopback"
        " needs --behind-proxy.",
    )
    cors_origins: str = _define(
        "", "Further origins whose pages may call data and control plane, separated by commas; * for all."
    )
    console_dir: str = _define("", "Directory of the console's built files, if not those that the package has.")

    workers: int = _define(
        1, "Processes that answer requests, about one for every core or two.", at_least=1, at_most=64
    )

    engine: str = _define(
        "", "URL of a PostgreSQL of your own, 15 to 18, to use instead of the bundled one. It may hold a password."
    )
    engines: str = _define(
        "",
        "Further PostgreSQL servers for databases, as name=URL, separated by blanks. The one above is called first; it"
        " has the catalog.",
    )
    replicas: str = _define(
        "",
        "URLs of standbys of the engine, separated by commas, that may answer reads of a snapshot. Of each, the address"
        " and TLS count; no user or password is needed.",
    )
    engine_exclusive: bool = _define(
        False, "Nobody but this installation uses the engine of your own, so that SERIALIZABLE can be guarded."
    )
    accept_weaker_walls: bool = _define(
        False,
        "Serve several organizations on an engine of your own, which does not keep them apart in full.",
    )
    durability: str = _define(
        "engine",
        "engine: a commit is acknowledged when the engine reports it. replicated: only once a standby has it, too;"
        " while no standby can confirm it, nothing is written.",
        choices=("engine", "replicated"),
    )
    engine_bin: str = _define("", "Directory of PostgreSQL programs to use instead of the bundled ones.")
    engine_user: str = _define("", "Unprivileged user that initdb runs as when the service is started by root.")
    engine_connections_max: int = _define(
        100,
        "Connections to the engine: what the bundled one accepts, what this service opens at your own.",
        at_least=10,
    )
    engine_shared_buffers_mb: int = _define(
        32, "Memory of the page cache of each server of the bundled engine, in MiB.", at_least=1
    )
    cells_awake_max: int = _define(
        100, "Databases of the bundled engine that may be awake: each has a server of its own.", at_least=1
    )
    cell_idle_s: int = _define(
        900, "Seconds without use after which a database of the bundled engine falls asleep; 0 for never.", at_least=0
    )
    cell_memory_mb: int = _define(
        2048,
        "Total memory of a database of the bundled engine, in MiB: all its processes, and its files in memory; at"
        " least its page cache and one process. Enforced if the service was given a control group (cgroup v2).",
        at_least=128,
    )
    cell_wake_timeout_s: int = _define(30, "Seconds that a request waits for a database to wake.", at_least=1)

    engine_process_memory_mb: int = _define(
        512,
        "Memory that one process of the bundled engine may take, in MiB (Linux); parallel queries share as much again.",
        at_least=64,
    )
    engine_temp_mb: int = _define(
        2048, "Temporary files that one process of the engine may write for a tenant, in MiB.", at_least=16
    )
    disk_free_mb_min: int = _define(
        512,
        "Room to keep free on the bundled engine's disk, in MiB: with less, statements that take room are refused. 0 to"
        " watch nothing.",
        at_least=0,
    )

    statement_timeout_ms: int = _define(
        30_000,
        "Time of a statement that asks for none, in milliseconds. Tiers and organizations can have another.",
        at_least=1,
    )
    statement_timeout_ms_max: int = _define(300_000, "The longest such time that a request may ask for.", at_least=1)
    stream_timeout_ms: int = _define(
        300_000, "The same for a statement whose rows are streamed; the reader's time does not count.", at_least=1
    )
    stream_timeout_ms_max: int = _define(3_600_000, "The longest such time that a request may ask for.", at_least=1)
    export_timeout_ms: int = _define(
        3_600_000, "The same for a stream that is an export, as `tuplegate export` asks for.", at_least=1
    )
    export_timeout_ms_max: int = _define(14_400_000, "The longest such time that a request may ask for.", at_least=1)
    definition_timeout_ms: int = _define(
        600_000, "The same for CREATE, ALTER, DROP, REFRESH, REINDEX, CLUSTER, VACUUM and ANALYZE.", at_least=1
    )
    definition_timeout_ms_max: int = _define(3_600_000, "The longest such time that a request may ask for.", at_least=1)
    transaction_timeout_ms: int = _define(
        60_000, "The same for a transaction that is sent as a whole; one with definitions has theirs.", at_least=1
    )
    transaction_timeout_ms_max: int = _define(300_000, "The longest such time that a request may ask for.", at_least=1)
    transaction_statements_max: int = _define(1000, "Statements in one transaction.", at_least=1)
    open_transactions_max: int = _define(
        16, "Transactions of one organization that may stay open between requests on one machine.", at_least=1
    )
    open_idle_ms: int = _define(
        30_000, "How long an open transaction may wait for its next request, in milliseconds.", at_least=1
    )
    open_idle_ms_max: int = _define(300_000, "The longest such time that a request may ask for.", at_least=1)
    open_life_ms: int = _define(60_000, "How long a transaction may stay open, in milliseconds.", at_least=1)
    open_life_ms_max: int = _define(
        3_600_000, "The longest such time that a request may ask for; also that of GET /v2's transactions.", at_least=1
    )
    wire: bool = _define(True, "Serve PostgreSQL's own protocol, in a WebSocket at GET /v2.")
    wire_connections_max: int = _define(
        8, "Connections of one organization on one machine that speak PostgreSQL's own protocol.", at_least=1
    )
    wire_idle_s: int = _define(300, "Seconds without a message after which such a connection is closed.", at_least=1)
    body_bytes_max: int = _define(10 * 2**20, "Largest request body, in bytes.", at_least=1024)
    answer_bytes_max: int = _define(
        64 * 2**20, "Largest buffered answer, in bytes; rows beyond it are cut.", at_least=1024
    )
    connections_per_database: int = _define(
        16, "Engine connections for one database and scope, over all workers.", at_least=1
    )
    connections_per_organization: int = _define(
        60, "Engine connections for all databases of one organization, over all workers.", at_least=1
    )
    databases_per_organization: int = _define(100, "Databases that one organization may have.", at_least=1)
    organization_bytes_max: int = _define(
        0, "Bytes on disk that all databases of an organization may take together; 0 for no bound.", at_least=0
    )
    running_max: int = _define(32, "Statements of one organization that may run at once.", at_least=1)
    queue_max: int = _define(1000, "Statements of one organization that may wait for their turn.", at_least=0)
    attempts_max: int = _define(50, "Tries of a statement that meets a serialization conflict.", at_least=1)
    connection_idle_s: int = _define(60, "Seconds after which an unused engine connection is closed.", at_least=1)

    dumps_max: int = _define(
        2,
        "Dumps of databases that are made at once, over all workers and machines; half of them for one organization.",
        at_least=1,
    )
    dump_timeout_s: int = _define(3600, "Longest time a dump may take, in seconds.", at_least=1)
    dump_kib_s_min: int = _define(
        64,
        "KiB a second that the reader of a dump must take. One that is behind by reader_timeout_s is cut off.",
        at_least=1,
    )
    move_stall_s: int = _define(
        300, "Seconds without progress after which a move between engines is given up.", at_least=1
    )
    move_log_mb_max: int = _define(
        16_384, "MiB of its log that an engine keeps for a move from it; with more the move is given up.", at_least=64
    )
    backup_dir: str = _define("", "Directory for backups: dumps of all databases. None are made without it.")
    backup_every_s: int = _define(86_400, "Seconds from one backup of a database to the next.", at_least=1)
    backup_keep: int = _define(7, "Backups of a database that are kept.", at_least=1)

    tiers: str = _define(
        "free=200/1GB organization_bytes_max=5GB, pro=6000/50GB organization_bytes_max=500GB, unlimited",
        "Tiers of organizations: the requests a minute that each lets through, the size of a database, and limits by"
        " the names of their settings.",
    )
    default_tier: str = _define("free", "Tier of new organizations.")
    session_lifetime_s: int = _define(86_400, "Seconds a session lives, and is extended by a refresh.", at_least=1)
    session_cap_s: int = _define(0, "Longest a session lives by being refreshed; 0 for no bound.", at_least=0)

    audit_days: int = _define(400, "Days that entries of the audit are kept.", at_least=1, at_most=36_500)
    audit_rows_per_organization: int = _define(
        200_000, "Entries of the audit that one organization keeps; older ones are removed.", at_least=1
    )
    audit_rows_max: int = _define(
        5_000_000, "Entries of the audit in all; beyond that, organizations with the most lose old ones.", at_least=1
    )
    usage_days: int = _define(90, "Days that usage by the hour is kept.", at_least=1, at_most=36_500)
    usage_rows_per_organization: int = _define(
        300_000, "Hours of usage, of each database, that one organization keeps.", at_least=1
    )
    usage_rows_max: int = _define(10_000_000, "The same of all organizations together.", at_least=1)

    http_connections_max: int = _define(
        10_000, "HTTP connections open at once, by plane and worker; fewer if too few files may be open.", at_least=1
    )
    http_memory_mb: int = _define(
        256,
        "Bodies that are arriving and answers that are not taken, held by one worker, in MiB; as much again for rows"
        " that the engine has sent and that are in no answer yet. One organization may have a fourth of each.",
        at_least=16,
    )
    header_timeout_s: int = _define(10, "Seconds in which the headers of a request must arrive.", at_least=1)
    body_timeout_s: int = _define(30, "Seconds in which the body of a request must arrive.", at_least=1)
    keep_alive_s: int = _define(75, "Seconds an idle HTTP connection is kept open.", at_least=1)
    reader_timeout_s: int = _define(30, "Seconds after which a reader that takes nothing is cut off.", at_least=1)
    heartbeat_s: int = _define(15, "Seconds of silence after which a stream sends a sign of life.", at_least=1)
    stop_timeout_s: int = _define(30, "Seconds that running requests are given when the service stops.", at_least=0)

    traces_endpoint: str = _define(
        "", "URL that takes traces, OTLP over HTTP, as http://127.0.0.1:4318/v1/traces. Needs tuplegate[otel]."
    )
    log_level: str = _define("info", "Least severe log line written.", choices=("debug", "info", "warning", "error"))
    log_format: str = _define("auto", "auto: text on a terminal, JSON otherwise.", choices=("auto", "text", "json"))


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table."""

    name: str
    kind: type
    default: Any
    help: str
    at_least: int | None
    at_most: int | None
    choices: tuple[str, ...]
    variable: str

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


def list_settings() -> Iterator[Setting]:
    for item in fields(Settings):
        assert isinstance(item.type, type)
        meta = item.metadata
        default = item.default_factory() if callable(item.default_factory) else item.default
        variable = meta["variable"] or "TUPLEGATE_" + item.name.upper()
        bounds = (meta["at_least"], meta["at_most"], meta["choices"])
        yield Setting(item.name, item.type, default, meta["help"], *bounds, variable)


def load(flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None) -> Settings:
    """Return the settings in force. `flags` holds only those that were given."""
    values: dict[str, Any] = {}
    table = {setting.name: setting for setting in list_settings()}
    if file is not None:
        values |= _read_file(file, table)
    for setting in table.values():
        if setting.variable in environment:
            values[setting.name] = _convert(
                setting, environment[setting.variable], f"environment variable {setting.variable}"
            )
    for name, value in flags.items():
        values[name] = _convert(table[name], value, f"flag {table[name].flag}")
    return Settings(**values)


def _read_file(file: Path, table: Mapping[str, Setting]) -> dict[str, Any]:
    try:
        data = tomllib.loads(file.read_text())
    except OSError as exc:
        raise SettingsError(f"cannot read the settings file {file}: {exc.strerror}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise SettingsError(f"the settings file {file} is not TOML: {exc}") from exc
    unknown = sorted(set(data) - set(table))
    if unknown:
        raise SettingsError(f"{file}: unknown setting {unknown[0]!r}; `tuplegate serve --help` lists them all")
    return {name: _convert(table[name], value, str(file)) for name, value in data.items()}


_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def _convert(setting: Setting, value: Any, source: str) -> Any:
    """Convert a value to the setting's type, and check its bounds."""
    problem = SettingsError(f"{source}: {setting.name} cannot be {value!r}; it takes {_describe_values(setting)}")
    if setting.kind is bool:
        if isinstance(value, bool):
            return value
        text = str(value).lower()
        if text not in _TRUE + _FALSE:
            raise problem
        return text in _TRUE
    if setting.kind is int:
        try:
            number = int(str(value))
        except ValueError:
            raise problem from None
        if isinstance(value, bool) or not (setting.at_least or 0) <= number <= (setting.at_most or number):
            raise problem
        return number
    if not isinstance(value, str | Path) or (setting.choices and str(value) not in setting.choices):
        raise problem
    return Path(value).expanduser() if setting.kind is Path else str(value)


def _describe_values(setting: Setting) -> str:
    if setting.choices:
        return "one of " + ", ".join(setting.choices)
    if setting.kind is bool:
        return "true or false"
    if setting.kind is int:
        most = "" if setting.at_most is None else f" and at most {setting.at_most}"
        return f"a whole number, at least {setting.at_least}{most}"
    return "a path" if setting.kind is Path else "text"
