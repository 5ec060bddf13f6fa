"""The documents name files, code and numbers as they are.

A number that comes from a constant is followed by a comment that names it, and that no reader of the page sees:
`64 KiB<!-- = http/parsing/framing.py _OVERHEAD_MAX -->`. A setting is `<!-- = settings.py Settings.workers -->`.
"""

import ast
import importlib
import re
from collections.abc import Iterator
from datetime import timedelta
from functools import cache, reduce
from math import isclose
from pathlib import Path
from typing import Any

from tuplegate.cli.exits import MEANINGS
from tuplegate.metrics.table import METRICS
from tuplegate.settings import list_settings

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "tuplegate"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "clients").rglob("*.md")])
CODE = ("src", "tests", "tools", "bench", "attack", "torture", "failover", "clients")

OTHERS = {
    "PostgreSQL": {
        *(
            "SyncRep",
            "autovacuum_naptime",
            "factorial",
            "hot_standby",
            "hot_standby_feedback",
            "pg_get_backend_memory_contexts",
        ),
        *("subtype_diff", "uuidv7", "DateStyle", "IntervalStyle", "TimeZone"),
    },
    "hosts of PostgreSQL": {"azure_pg_admin", "neon_superuser", "rds", "rds_password", "rds_superuser"}
    | {"restrict_password_commands"},
    "Python and its packages": {"NaT", "asyncio", "current_task", "len", "pd", "psycopg_c", "reset_index"}
    | {"connect_args", "websockets"},
    "browsers, other clients and HTTP": {"EventSource", "RateLimit", "TypeError", "createClient"},
    "Neon's driver and what is built on it": {"NeonDbError", "PrismaClient", "isolationLevel", "neonConfig"}
    | {
        "webSocketConstructor",
        "poolQueryViaFetch",
        "fetchFunction",
        "ReadCommitted",
        "ReadUncommitted",
        "RepeatableRead",
        "wsProxy",
    },
    "operating systems": {"OTEL_TRACES_SAMPLER", "SSL_CERT_FILE", "TimeoutStopSec", "sched_setattr", "pg_hba", "conf"},
    "an example in docs/api.md": {"tg_hq61sz2dwnxh_r"},
}
"""Names in the documents that are not ours. A name that our code defines cannot stand here."""

MADE = {".failover/", ".peers/", "bench/out/", "build/compiled", "peers.md", "growth.md"}
"""Files and folders that commands make, and that Git does not hold."""

IN_DATA_DIRECTORY = {"catalog/", "cells/", "extensions/", "postgres/", "prepared/", "tls/", "engine-18.x/"}
"""Folders of an installation."""

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_QUOTED = re.compile(r"`([^`]+)`")
_FILE = re.compile(r"[\w.*/-]+\.(?:py|pyx|pyi|sql|toml|md|js|ts)")
_FOLDER = re.compile(r"(?!application/|text/)(?:[\w.-]+/)+(?:[\w.-]+)?")
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*(\([^`]*\))?")
_NAMED_WITH_FILE = re.compile(r"`([A-Za-z_]\w*)(?:\(\))?`,? (?:of |in |\()`([\w/]+\.py)`")
_DEFINED_IN_JAVASCRIPT = re.compile(
    r"^ *(?:export )?(?:async )?(?:function |class |get )?(\w+)(?:\(.*\)| extends \w+)? \{$", re.MULTILINE
)
_CONSTANT = re.compile(r"<!-- = ([\w/]+\.py) ([\w.]+) -->")
_NUMBER = re.compile(
    r".*(?<![\w.,])(\d[\d,]*(?:\.\d+)?|half|three quarters|quarter|tenth|two|three|four|five|six|eight|ten|twenty)"
    r"((?: [A-Za-z%]+){0,4})$"
)
_SPELLED = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "eight": 8, "ten": 10, "twenty": 20} | {
    "half": 0.5,
    "quarter": 0.25,
    "three quarters": 0.75,
    "tenth": 0.1,
}
_BYTES = {"KiB": 2**10, "Ki": 2**10, "MiB": 2**20, "GiB": 2**30}
_SECONDS = {"ms": 0.001, "milliseconds": 0.001, "s": 1, "seconds": 1, "minutes": 60, "hours": 3600, "days": 86400}
_UNITS = _BYTES | _SECONDS | {"%": 0.01, "million": 10**6}
_UNITS_OF_NAMES = {
    "_ns": 1e-9,
    "_us": 1e-6,
    "_ms": 1e-3,
    "_ms_max": 1e-3,
    "_kib": 2**10,
    "_mb": 2**20,
    "_mb_min": 2**20,
    "_days_min": 86400,
}


def _read(page: Path) -> str:
    """Return the text of a page without its blocks of code."""
    return _BLOCK.sub("", page.read_text("utf-8"))


def _list_quoted(page: Path) -> set[str]:
    """Return what stands in backticks, also where a line ends inside."""
    paragraphs = re.split(r"\n\s*\n", _read(page))
    return {" ".join(text.split()) for paragraph in paragraphs for text in _QUOTED.findall(paragraph)}


@cache
def _list_files() -> dict[str, set[str]]:
    """Return the paths of the repository by the name of the file or folder."""
    found: dict[str, set[str]] = {}
    for top in (*CODE, "docs", "requirements", ".ci"):
        for path in ((ROOT / top), *(ROOT / top).rglob("*")):
            found.setdefault(path.name, set()).add("/" + str(path.relative_to(ROOT)))
    for path in ROOT.iterdir():
        if path.is_file():
            found.setdefault(path.name, set()).add("/" + path.name)
    return found


def _is_file(name: str) -> bool:
    """Return whether a path ends as the name says. A `*` stands for any characters."""
    if "*" in name:
        return any(True for _ in ROOT.glob(name))
    parts = name.rstrip("/").split("/")
    return any(path.endswith("/" + "/".join(parts)) for path in _list_files().get(parts[-1], ()))


@cache
def _read_code() -> tuple[frozenset[str], frozenset[str]]:
    """Return the names that our code defines, and all words in its names and texts but for docstrings."""
    defined: set[str] = set()
    words: set[str] = set()
    for top in CODE:
        for path in (ROOT / top).rglob("*"):
            defined.add(path.stem)
            if path.suffix == ".py" and path != Path(__file__):
                _collect(path, defined, words)
            elif path.suffix in (".pyx", ".sql", ".js", ".ts"):
                text = path.read_text("utf-8")
                words.update(re.findall(r"\w+", text))
                defined.update(_DEFINED_IN_JAVASCRIPT.findall(text) if path.suffix == ".js" else ())
    return frozenset(defined), frozenset(words | defined)


def _collect(path: Path, defined: set[str], words: set[str]) -> None:
    """Add the names that a file defines, and the words of other names and of texts that are not docstrings."""
    docstrings = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                defined.add(name)
            case ast.Name(id=name) | ast.Attribute(attr=name):
                (defined if isinstance(node.ctx, ast.Store) else words).add(name)
            case ast.arg(arg=name):
                defined.add(name)
            case ast.alias(name=name):
                words.update(name.split("."))
            case ast.keyword(arg=str(name)):
                words.add(name)
            case ast.Expr(value=ast.Constant() as text):
                docstrings.add(text)
            case ast.Constant(value=str(text)) if node not in docstrings:
                words.update(re.findall(r"\w+", text))
            case ast.Constant(value=bytes(raw)):
                words.update(re.findall(r"\w+", raw.decode("latin-1")))


@cache
def _list_table_names() -> frozenset[str]:
    """Return names that the code makes of its tables: variables of settings, metrics, exit codes."""
    variables = {entry.variable for entry in list_settings()}
    return frozenset(variables | {f"tuplegate_{name}" for name in METRICS} | {code.name.lower() for code in MEANINGS})


def _find_unknown_names(quoted: set[str]) -> Iterator[str]:
    """Yield what looks like a name of code and is none of ours, nor listed as another's."""
    defined, words = _read_code()
    others = set().union(*OTHERS.values())
    for text in quoted:
        found = _NAME.fullmatch(text)
        if found is None or _FILE.fullmatch(text):
            continue
        is_call, parts = bool(found[1]), text.partition("(")[0].split(".")
        if not (is_call or len(parts) > 1 or "_" in text.strip("_") or re.search(r"[a-z][A-Z]", text)):
            continue
        known = defined if is_call or re.match(r"[A-Z][a-z]", text) else words
        if text not in _list_table_names() and any(part not in known and part not in others for part in parts):
            yield text


def test_no_page_is_half_merged() -> None:
    marks = re.compile(r"^(<{7}|\|{7}|={7}$|>{7})", re.MULTILINE)
    assert [page.name for page in PAGES if marks.search(page.read_text())] == []


def test_every_file_and_folder_that_a_page_names_exists() -> None:
    """By its whole path, or as much of its end as the page says."""
    found = [
        f"{page.name}: {name}"
        for page in PAGES
        for name in _list_quoted(page) - MADE - IN_DATA_DIRECTORY
        if (_FILE.fullmatch(name) or _FOLDER.fullmatch(name)) and not _is_file(name)
    ]
    assert found == []


def test_every_name_of_code_in_a_page_exists() -> None:
    """Classes and functions are defined; other names occur in the code."""
    assert [f"{page.name}: {name}" for page in PAGES for name in _find_unknown_names(_list_quoted(page))] == []


def test_a_name_stands_in_the_file_that_a_page_gives_for_it() -> None:
    """Written as "`Name` (`file.py`)", "`Name` of `file.py`" or "`Name` in `file.py`"."""
    for page in PAGES:
        for name, file in _NAMED_WITH_FILE.findall(_read(page)):
            defined: set[str] = set()
            for path in _list_files().get(Path(file).name, ()):
                if path.endswith("/" + file):
                    _collect(ROOT / path[1:], defined, set())
            assert name in defined or name not in _read_code()[0], f"{page.name} has {name} in {file}"


def test_the_tree_of_folders_is_whole() -> None:
    """Every package, every module beside them, and every folder of code; and nothing that is not there."""
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    [tree] = [block for _, block in _BLOCK.findall(text) if block.startswith("src/tuplegate/")]
    found, above = set(), [""]
    for indent, name in re.findall(r"^( *)([\w./]+)", tree, re.MULTILINE):
        above[len(indent) // 2 :] = [name]
        found.add("".join(above))
    packages = {f"{path.parent.relative_to(ROOT)}/" for path in SOURCE.rglob("__init__.py")}
    modules = {str(path.relative_to(ROOT)) for path in SOURCE.glob("[a-z]*.py")}
    tests = {f"{path.parent.relative_to(ROOT)}/" for path in (ROOT / "tests").glob("*/__init__.py")}
    assert packages | modules | tests | {f"{top}/" for top in CODE[1:]} <= found
    assert {name for name in found if not (ROOT / name).exists()} == set()


def test_no_name_of_ours_is_listed_as_another_s() -> None:
    """And every listed name is in a page, so that the list does not grow old."""
    listed = set().union(*OTHERS.values())
    pages = {part for page in PAGES for text in _list_quoted(page) for part in re.findall(r"\w+", text)}
    assert listed - pages == set()
    assert {name for name in listed if name in _read_code()[0]} == set()


def test_every_number_with_a_constant_is_its_value() -> None:
    """As its comment names it."""
    for page in PAGES:
        text = page.read_text("utf-8")
        assert text.count("<!-- =") == len(_CONSTANT.findall(text)), f"a comment in {page.name} has not the right form"
        for match in _CONSTANT.finditer(text):
            before = re.sub(r"\s+", " ", _CONSTANT.sub("", text[: match.start()])[-80:])
            assert _has_value(before, match[1], match[2]), f"{page.name}: {before[-40:]}{match[0]}"


def _has_value(before: str, file: str, name: str) -> bool:
    """Return whether the text ends in a number, and maybe its unit, that is the constant's value."""
    found = _NUMBER.match(before)
    if found is None:
        return False
    stated = _SPELLED[found[1]] if found[1] in _SPELLED else float(found[1].replace(",", ""))
    value = _read_constant(file, name)
    unit = found[2].strip()
    if unit.startswith("times a second"):
        return isclose(1 / stated, value)
    first = unit.partition(" ")[0] if not unit.startswith(("of a second", "a second")) else "s"
    if first not in _UNITS:
        return isclose(stated, value)
    scale = next((scale for end, scale in _UNITS_OF_NAMES.items() if name.lower().endswith(end)), 1)
    return isclose(stated * _UNITS[first], value * scale)


def _read_constant(file: str, name: str) -> float:
    path = SOURCE / file if (SOURCE / file).exists() else ROOT / file
    base = ROOT / "src" if path.is_relative_to(SOURCE) else ROOT
    module = importlib.import_module(".".join(path.relative_to(base).with_suffix("").parts))
    value: Any = reduce(getattr, name.split("."), module)
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


def test_every_word_of_the_glossary_is_used_in_the_code() -> None:
    """As a part of a name; each word stands once, or with another word in parentheses each time."""
    found = _list_glossary()
    assert len(found) == len(set(found)), sorted(word for word in found if found.count(word) > 1)
    used = _list_parts_of_names()
    words = {part for word in found for part in re.sub(r" \(.*\)", "", word).split()}
    assert {word for word in words if not {word, f"{word}s", word.removesuffix("s")} & used} == set()


def test_the_glossary_has_the_words_of_the_way_of_a_request() -> None:
    """Those that a reader meets first and cannot guess."""
    words = {re.sub(r" \(.*\)", "", word) for word in _list_glossary()}
    assert {
        "exchange",
        "identity",
        "kept",
        "lane",
        "plane",
        "pulse",
        "run",
        "stock",
        "template",
        "turn",
    } <= words


def _list_glossary() -> list[str]:
    rows = re.findall(r"^\| ([^|]+) \|", (ROOT / "docs" / "glossary.md").read_text("utf-8"), re.MULTILINE)
    return [word for row in rows if row != "word" for word in row.split(", ")]


def _list_parts_of_names() -> set[str]:
    """Return the words that names in the package are made of, in lower case."""
    names: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        names.update((path.stem, path.parent.name))
        _collect(path, names, set())
    return {part.lower() for name in names for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)}


def test_numbers_are_compared_with_their_units() -> None:
    """And what does not fit is seen."""
    assert _has_value("at most 64 KiB", "http/parsing/framing.py", "_OVERHEAD_MAX")
    assert not _has_value("at most 64 MiB", "http/parsing/framing.py", "_OVERHEAD_MAX")
    assert not _has_value("at most 64", "http/parsing/framing.py", "_OVERHEAD_MAX")
    assert _has_value("within 30 s", "settings.py", "Settings.statement_timeout_ms")
    assert _has_value("by default 30,000", "settings.py", "Settings.statement_timeout_ms")
    assert _has_value("four times a second", "admission/pulse.py", "_EVERY_S")
    assert not _has_value("very often", "admission/pulse.py", "_EVERY_S")


def test_made_up_names_are_found() -> None:
    """Each kind: a call, a class, a part of a dotted name, a name with an underscore."""
    made_up = {"no_such_thing()", "NoSuchThing", "Exchange.no_such_thing", "no_such_thing"}
    assert set(_find_unknown_names(made_up | {"Exchange.respond", "busy", "Content-Type"})) == made_up
    assert not _is_file("engine/pool_of_nobody.py")
    assert not _is_file("port/engine")
    assert _is_file("engine/port")


def test_every_relative_link_leads_to_a_file_and_a_heading() -> None:
    """Links to other sites are not followed."""
    assert [f"{page.name}: {link}" for page in PAGES for link in _find_broken_links(page)] == []


def _find_broken_links(page: Path) -> Iterator[str]:
    for link in _LINK.findall(_read(page)):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if "://" not in link and not (target.exists() and (not anchor or anchor in _list_anchors(target))):
            yield link


@cache
def _list_anchors(page: Path) -> set[str]:
    """Return the anchors that the headings of a page get."""
    headings = [heading.strip().lower() for heading in _HEADING.findall(_read(page))]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}
