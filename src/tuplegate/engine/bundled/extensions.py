"""Lets tenants create every extension there is: writes control files and scripts into a directory of our own.

Contract: `trust_extensions` fills `extensions/` in the data directory, for `extension_control_path`. Every extension is
trusted there. `_distrust_crashing` then removes the trust from one whose library does not run on this processor.

PostgreSQL does not check whether the tenant may create objects in the extension's schema. So every script that makes an
extension begins with that check: without it, tenants could add objects to `pg_catalog` and to the service's own schema,
where functions do not count as a tenant's code.
"""

import hashlib
import re
from pathlib import Path
from typing import Final

from tuplegate.engine.bundled import extension_probe
from tuplegate.engine.bundled.binaries import Binaries, run_program
from tuplegate.engine.bundled.data_directory import DataDirectory

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
_TRUSTED: Final = re.compile(r"^[ \t]*trusted[ \t]*=.*$", re.MULTILINE | re.IGNORECASE)


def trust_extensions(binaries: Binaries, directory: DataDirectory) -> Path | None:
    """Fill the directory of extensions and return it; None where the server cannot use one."""
    pg_config = binaries.path / "pg_config"
    if binaries.major < MAJOR_MIN or not pg_config.exists():
        return None
    share = run_program([str(pg_config), "--sharedir"], directory.path, directory.account).strip()
    base = directory.path / "extensions"
    for place in (base, base / "extension"):
        place.mkdir(exist_ok=True)
        place.chmod(0o755)  # servers have users of their own
    source = Path(share, "extension")
    machine = _describe_machine(binaries, directory)
    made_of = _describe(source, machine)
    if _read(directory.path / _MADE_OF) != made_of:
        files = make_files(source)
        for stale in {entry.name for entry in (base / "extension").iterdir()} - files.keys():
            (base / "extension" / stale).unlink()
        for name, content in files.items():
            _write(base / "extension" / name, content)
        _write(directory.path / _MADE_OF, made_of.encode())
    _distrust_crashing(binaries, directory, base, machine)
    return base


def _describe_machine(binaries: Binaries, directory: DataDirectory) -> str:
    """Return a digest of the processor and the probed library; empty if the library is missing."""
    library = run_program([str(binaries.path / "pg_config"), "--pkglibdir"], directory.path, directory.account).strip()
    path = Path(library, f"{extension_probe.NAME}.so")
    return extension_probe.describe_machine(path) if path.is_file() else ""


def _describe(source: Path, machine: str) -> str:
    """Return a digest of the sources of the files, and of this module, which has the rules to make them."""
    files = sorted((entry.name, entry.stat()) for entry in source.iterdir())
    listed = [f"{name} {status.st_size} {status.st_mtime_ns}" for name, status in files]
    rules = Path(__file__).read_text("utf-8")
    return hashlib.sha256("\n".join([str(source), machine, *listed, rules]).encode()).hexdigest()


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o644)


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii")
    except FileNotFoundError:
        return ""


def _distrust_crashing(binaries: Binaries, directory: DataDirectory, extensions: Path, machine: str) -> None:
    """Remove the trust from an extension that crashes on this machine. The probe runs once; its result is stored."""
    control = extensions / "extension" / f"{extension_probe.NAME}.control"
    if not machine or not control.is_file():
        return
    verdict = _read_verdict(directory, machine)
    if verdict is None:
        verdict = "works" if extension_probe.probe(binaries, directory, extensions) else "crashes"
        _write(directory.path / _VERDICT, f"{machine} {verdict}\n".encode())
    if verdict == "crashes":
        _write(control, _TRUSTED.sub("trusted = false", control.read_text("utf-8")).encode())


def _read_verdict(directory: DataDirectory, machine: str) -> str | None:
    known, _, verdict = _read(directory.path / _VERDICT).strip().partition(" ")
    return verdict if known == machine else None


def make_files(source: Path) -> dict[str, bytes]:
    """Return the content of each file of the directory, by name: control files and scripts of the extensions in
    `source`."""
    files: dict[str, bytes] = {}
    for control in source.glob("*.control"):
        text = _TRUSTED.sub("", control.read_text("utf-8")).rstrip()
        files[control.name] = f"{text}\ntrusted = true\n".encode()
    for script in source.glob("*--*.sql"):
        # Updates stay in the schema of their extension.
        is_update = script.name.count("--") > 1
        files[script.name] = script.read_bytes() if is_update else ASK_FOR_SCHEMA + script.read_bytes()
    return files
