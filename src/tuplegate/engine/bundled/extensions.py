"""Chooses which extensions tenants may create: writes control files and scripts into a directory of our own.

Contract: `trust_extensions` fills `extensions/` in the data directory, for `extension_control_path`. An extension is
trusted there if PostgreSQL or `OURS` trusts it and its default version can be made of scripts that are proved harmless
(`extension_scripts`). Only these scripts are in the directory, so no other can run. One that PostgreSQL trusts and
that has no such proof is there with `trusted = false`. `distrust_crashing` then takes the trust from one whose library
does not run on this processor.

PostgreSQL does not ask whether the tenant may create objects in the schema that an extension goes to. So every script
that makes an extension begins with that question: without it, tenants could add objects to `pg_catalog` and to the
service's own schema.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from tuplegate.engine.bundled import extension_probe, extension_scripts
from tuplegate.engine.bundled.binaries import Binaries, run_program
from tuplegate.engine.bundled.data_directory import DataDirectory
from tuplegate.engine.bundled.extension_scripts import find_hazard

OURS: Final = frozenset({"vector"})
"""Extensions that PostgreSQL's own control files do not mark as trusted, and that tenants shall have."""

MAJOR_MIN: Final = 18
"""The first version with `extension_control_path`."""

ASK_FOR_SCHEMA: Final = b"""DO LANGUAGE plpgsql $tuplegate$
BEGIN
  IF NOT pg_catalog.has_schema_privilege(session_user, pg_catalog.current_schema()::pg_catalog.text,
                                         'CREATE'::pg_catalog.text) THEN
    RAISE EXCEPTION USING ERRCODE = '42501',
      MESSAGE = pg_catalog.concat('permission denied for schema ', pg_catalog.current_schema()::pg_catalog.text);
  END IF;
END $tuplegate$;
"""
"""Runs as superuser, so every name is qualified and every type exact. The session belongs to the tenant's role."""

_VERDICT: Final = "extensions/processor"
_MADE_OF: Final = "extensions/made_of"
_SCRIPT: Final = re.compile(r"(?P<name>.+?)--(?P<versions>.+)\.sql")
_TRUSTED: Final = re.compile(r"^[ \t]*trusted[ \t]*=.*$", re.MULTILINE | re.IGNORECASE)
_TRUE: Final = re.compile(r"=\s*'?(true|on|yes|1)\b", re.IGNORECASE)
_DEFAULT_VERSION: Final = re.compile(r"^[ \t]*default_version[ \t]*=[ \t]*'?([^'#\s]+)", re.MULTILINE)


def trust_extensions(binaries: Binaries, directory: DataDirectory) -> Path | None:
    """Fill the directory of extensions and return it; None where the server cannot use one."""
    pg_config = binaries.path / "pg_config"
    if binaries.major < MAJOR_MIN or not pg_config.exists():
        return None
    share = run_program([str(pg_config), "--sharedir"], directory, directory.account).strip()
    base = directory.path / "extensions"
    directory.own(base)
    directory.own(base / "extension")
    source = Path(share, "extension")
    machine = _describe_machine(binaries, directory)
    made_of = _describe(source, machine)
    if _read(directory.path / _MADE_OF) != made_of:
        files = choose_files(source)
        for stale in {entry.name for entry in (base / "extension").iterdir()} - files.keys():
            (base / "extension" / stale).unlink()
        for name, content in files.items():
            directory.replace(f"extensions/extension/{name}", content)
        directory.replace(_MADE_OF, made_of.encode())
    _distrust_crashing(binaries, directory, base, machine)
    return base


def _describe_machine(binaries: Binaries, directory: DataDirectory) -> str:
    """Return what the verdict on the one extension that is tried depends on; nothing where there is no such library."""
    library = run_program([str(binaries.path / "pg_config"), "--pkglibdir"], directory, directory.account).strip()
    path = Path(library, f"{extension_probe.NAME}.so")
    return extension_probe.describe_machine(path) if path.is_file() else ""


def _describe(source: Path, machine: str) -> str:
    """Return a digest of what the files are chosen from, and by which rules."""
    files = sorted((entry.name, entry.stat()) for entry in source.iterdir())
    listed = [f"{name} {status.st_size} {status.st_mtime_ns}" for name, status in files]
    rules = [Path(module).read_text("utf-8") for module in (__file__, extension_scripts.__file__)]
    return hashlib.sha256("\n".join([str(source), machine, *listed, *rules]).encode()).hexdigest()


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii")
    except FileNotFoundError:
        return ""


def _distrust_crashing(binaries: Binaries, directory: DataDirectory, extensions: Path, machine: str) -> None:
    """Take the trust from an extension that crashes on this machine. The answer is kept: it is tried once."""
    control = extensions / "extension" / f"{extension_probe.NAME}.control"
    if not machine or not control.is_file():
        return
    verdict = _read_verdict(directory, machine)
    if verdict is None:
        verdict = "works" if extension_probe.probe(binaries, directory, extensions) else "crashes"
        directory.replace(_VERDICT, f"{machine} {verdict}\n".encode())
    if verdict == "crashes":
        text = _TRUSTED.sub("trusted = false", control.read_text("utf-8"))
        directory.replace(f"extensions/extension/{control.name}", text.encode())


def _read_verdict(directory: DataDirectory, machine: str) -> str | None:
    known, _, verdict = _read(directory.path / _VERDICT).strip().partition(" ")
    return verdict if known == machine else None


def choose_files(source: Path) -> dict[str, bytes]:
    """Return what the directory holds, by name: control files and scripts of the extensions in `source`."""
    files: dict[str, bytes] = {}
    scripts: dict[str, list[Path]] = {}
    for path in source.glob("*--*.sql"):
        if match := _SCRIPT.fullmatch(path.name):
            scripts.setdefault(match["name"], []).append(path)
    for control in source.glob("*.control"):
        text = control.read_text("utf-8")
        marks = _TRUSTED.findall(text)
        if control.stem not in OURS and not (marks and _TRUE.search(marks[-1])):
            continue
        harmless = {path.name: path.read_bytes() for path in scripts.get(control.stem, ())}
        harmless = {name: script for name, script in harmless.items() if find_hazard(script) is None}
        version = _DEFAULT_VERSION.search(text)
        text = _TRUSTED.sub("", text).rstrip()
        if version and _can_be_made(version[1], harmless):
            files[control.name] = f"{text}\ntrusted = true\n".encode()
            files |= _guard(harmless)
        else:
            quoted = str(source).replace("'", "''")
            files[control.name] = f"{text}\ntrusted = false\ndirectory = '{quoted}'\n".encode()
    return files


def _guard(scripts: Mapping[str, bytes]) -> dict[str, bytes]:
    """Put the question for the schema in front of those that make an extension; updates stay in its schema."""
    return {name: script if _update(name) else ASK_FOR_SCHEMA + script for name, script in scripts.items()}


def _can_be_made(version: str, names: Iterable[str]) -> bool:
    """Return whether scripts lead to a version: one that makes an extension, and updates from there."""
    reached = {_versions(name)[0] for name in names if not _update(name)}
    updates = [_versions(name) for name in names if _update(name)]
    for _ in updates:
        reached |= {later for former, later in updates if former in reached}
    return version in reached


def _update(name: str) -> bool:
    return len(_versions(name)) > 1


def _versions(name: str) -> list[str]:
    match = _SCRIPT.fullmatch(name)
    return match["versions"].split("--") if match else []
