"""Writes the pages of docs/ that are made of tables; `--check` only says whether they are up to date."""

import sys
from collections.abc import Iterable
from pathlib import Path

from tuplegate.access.states import LIVES, Life
from tuplegate.cli.exits import MEANINGS
from tuplegate.engine.cells.owner import WITHOUT_SANDBOX
from tuplegate.engine.cockroach.preparation.weaknesses import WEAKNESSES
from tuplegate.engine.port import Weakness
from tuplegate.engine.postgres.preparation.weaknesses import SHARED, TRIED
from tuplegate.metrics.table import METRICS
from tuplegate.protocol.errors import ERRORS
from tuplegate.settings import Setting, list_settings

DOCS = Path(__file__).parent

_ERRORS_HEAD = """\
# Errors

<!-- Written by docs/generate.py from tuplegate.protocol.errors.ERRORS. Do not edit. -->

Every answer that is not a success has this shape, whatever its status:

```json
{"success": false,
 "error": {"code": "parse_error", "message": "syntax error at or near \\"selec\\"", "sqlstate": "42601", "position": 1,
           "hint": null, "detail": null, "statement": null, "retryable": false},
 "request_id": "req_…"}
```

`code` is one of the table below and is what a program should look at; `message` is for people and may change.
`sqlstate`, `position` (in characters, from 1), `detail` and `hint` are the engine's where it gave them. `statement` is
the index, from 0, of the failed statement of a transaction. `retryable` says that the same request may be sent again
and may then succeed. A statement that the engine refused (status 200) also has the fields of a success, empty. In a
stream that has begun, the `error` object comes in the event `error`.

Answers with status 401 carry `WWW-Authenticate: Bearer`, with 405 `Allow`, and with 503 `Retry-After` in seconds.

| code | status | retryable | meaning |
|---|---|---|---|
"""

_SETTINGS_HEAD = """\
# Settings

<!-- Written by docs/generate.py from tuplegate.settings. Do not edit. -->

A setting can come from four places; a later one wins:

1. its default;
2. the settings file, TOML, named by `--config FILE` or `TUPLEGATE_CONFIG`: `data_port = 9000`;
3. the environment: `TUPLEGATE_DATA_PORT=9000`;
4. a flag of `tuplegate serve`: `--data-port 9000`, or `make serve ARGS="--data-port 9000"`.

A name that does not exist in the file, or a value that a setting does not take, is refused at the start with a message
that says where it came from. Settings are read once, when the service starts. `tuplegate key create` reads the file and
the environment too.

| setting | flag | variable | default | takes | meaning |
|---|---|---|---|---|---|
"""

_STATES_HEAD = """\
# States

<!-- Written by docs/generate.py from tuplegate.access.states. Do not edit. -->

What can happen to a session, a key and a database, and the state that follows. The code obeys the same tables. What is
not in a table cannot happen: a request for it gets `409` `wrong_state`, or `401` where the token itself has ended.
"""

_EXIT_CODES_HEAD = """\
# Exit codes

<!-- Written by docs/generate.py from tuplegate.cli.exits. Do not edit. -->

How a command of [`tuplegate`](cli.md) ends:

| code | name | meaning |
|---|---|---|
"""

_METRICS_HEAD = """\
# Metrics

<!-- Written by docs/generate.py from tuplegate.metrics.table. Do not edit. -->

What `GET /metrics` shows, in Prometheus's text format; [operations](operations.md#metrics) says how to get at it. All
numbers are of all workers of the service together, unless they have the label `worker`. Counters begin at 0 when the
service is started, and never go down while it runs. A histogram has the series `_bucket`, `_sum` and `_count`.

| metric | kind | labels | meaning |
|---|---|---|---|
"""

_WALLS_HEAD = """\
# Weaker walls

<!-- Written by docs/generate.py from tuplegate.engine.*.tenancy.weaknesses. Do not edit. -->

What tenants can reach of each other on an engine of your own, which does not keep them apart in full. What holds there
is logged as a warning at the start and listed by `GET /capabilities`. The bundled engine has none where the operating
system has what [its sandbox](decisions/0031-cells.md) needs.

Those that reach others must be accepted (`accept_weaker_walls`) before there can be a second organization. In all cases
no tenant can change another's data, log in to another's database, cancel another's statements, or read or forge the
service's own records.

## PostgreSQL

Databases of one server share what the server has, whoever has prepared it
([why](decisions/0032-what-is-not-guarded-on-a-shared-server.md)).

"""

_BUNDLED_HEAD = """
## The bundled engine without a whole sandbox

"""

_UNPREPARED_HEAD = """
## PostgreSQL that no superuser has prepared

As [managed PostgreSQL](operations.md#managed-postgresql). Each of these is tried at the start, as a tenant. An engine
that a superuser has prepared has none, but for `settings_unseen` before PostgreSQL 16. No tenant can read another's
data, texts of statements or results.

"""

_COCKROACH_HEAD = """
## CockroachDB

Each of these is tried at the start, as a tenant. A cluster has them however it is prepared: the engine shows to
everybody what tenants should not see of each other, values of columns and keys among it. Use [a
cluster](operations.md#cockroachdb) for one organization, or for organizations that trust each other.

"""

_WALLS_COLUMNS = """\
| name | reaches others | what it means for tenants | what an operator can do |
|---|---|---|---|
"""

# Their defaults depend on who starts the service, so they are described.
_DESCRIBED_DEFAULTS = {
    "data_dir": "`/var/lib/tuplegate` for root, the XDG data home otherwise (as a rule `~/.local/share/tuplegate`)"
}


def errors_page() -> str:
    rows = (
        _row(f"`{row.code}`", str(row.status), "yes" if row.retryable else "no", row.meaning) for row in ERRORS.values()
    )
    return _ERRORS_HEAD + "".join(rows)


def settings_page() -> str:
    rows = (
        _row(f"`{e.name}`", f"`{e.flag}`", f"`{e.variable}`", _default(e), _takes(e), e.help) for e in list_settings()
    )
    return _SETTINGS_HEAD + "".join(rows)


def states_page() -> str:
    return _STATES_HEAD + "".join(_life(life) for life in LIVES)


def _life(life: Life) -> str:
    rows = (_row(f"`{state}`", event, f"`{after}`") for (state, event), after in life.transitions.items())
    head = f"\n## The life of a {life.name}\n\nIt begins as `{life.first}`.\n\n"
    return head + "| state | what happens to it | then |\n|---|---|---|\n" + "".join(rows)


def exit_codes_page() -> str:
    rows = (_row(str(int(code)), f"`{code.name.lower()}`", meaning) for code, meaning in MEANINGS.items())
    return _EXIT_CODES_HEAD + "".join(rows)


def metrics_page() -> str:
    rows = (
        _row(f"`{m.full_name}`", m.kind.value, ", ".join(f"`{label}`" for label in m.labels), m.help)
        for m in METRICS.values()
    )
    return _METRICS_HEAD + "".join(rows)


def walls_page() -> str:
    return "".join(
        (
            *(_WALLS_HEAD, _walls(SHARED)),
            *(_BUNDLED_HEAD, _walls(WITHOUT_SANDBOX)),
            *(_UNPREPARED_HEAD, _walls(TRIED)),
            *(_COCKROACH_HEAD, _walls(WEAKNESSES)),
        )
    )


def _walls(found: tuple[Weakness, ...]) -> str:
    rows = (_row(f"`{w.name}`", "yes" if w.reaches_others else "no", w.meaning, w.remedy) for w in found)
    return _WALLS_COLUMNS + "".join(rows)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _default(setting: Setting) -> str:
    if setting.name in _DESCRIBED_DEFAULTS:
        return _DESCRIBED_DEFAULTS[setting.name]
    if setting.kind is bool:
        return f"`{str(setting.default).lower()}`"
    return f"`{setting.default}`" if setting.default != "" else "none"


def _takes(setting: Setting) -> str:
    if setting.choices:
        return ", ".join(f"`{choice}`" for choice in setting.choices)
    if setting.kind is bool:
        return "true or false"
    if setting.kind is int:
        return _range(setting)
    return "path" if setting.kind is Path else "text"


def _range(setting: Setting) -> str:
    least = 0 if setting.at_least is None else setting.at_least
    return (
        f"whole number, at least {least}" if setting.at_most is None else f"whole number, {least} to {setting.at_most}"
    )


def stale_pages(pages: Iterable[tuple[Path, str]]) -> list[Path]:
    return [path for path, text in pages if not path.exists() or path.read_text("utf-8") != text]


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        sys.stderr.write("usage: python docs/generate.py [--check]\n")
        return 2
    pages = [
        (DOCS / "errors.md", errors_page()),
        (DOCS / "settings.md", settings_page()),
        (DOCS / "states.md", states_page()),
        (DOCS / "exit_codes.md", exit_codes_page()),
        (DOCS / "metrics.md", metrics_page()),
        (DOCS / "walls.md", walls_page()),
    ]
    stale = stale_pages(pages)
    if arguments:
        for path in stale:
            sys.stderr.write(f"docs/{path.name} is not what its table says: run `python docs/generate.py`\n")
        return 1 if stale else 0
    for path, text in pages:
        path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
