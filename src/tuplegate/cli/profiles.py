"""Stores profiles, named addresses and keys of services, in a file that only its owner can read."""

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import click


@dataclass(frozen=True)
class Profile:
    url: str | None = None
    control_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    database: str | None = None
    ca_file: str | None = None


@dataclass(frozen=True)
class Profiles:
    """All profiles. `default` names the one to use if none is named."""

    default: str | None
    by_name: Mapping[str, Profile]


def find_path() -> Path:
    named = os.environ.get("TUPLEGATE_PROFILES")
    if named:
        return Path(named).expanduser()
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "tuplegate" / "profiles.toml"


def load() -> Profiles:
    """Read the file; return no profiles if there is none."""
    file = find_path()
    try:
        with file.open("rb") as opened:
            if os.fstat(opened.fileno()).st_mode & 0o077:
                raise click.UsageError(f"{file} holds keys and others can read it: run `chmod 600 {file}`")
            data = tomllib.load(opened)
    except FileNotFoundError:
        return Profiles(None, {})
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise click.UsageError(f"the profiles in {file} cannot be read: {exc}") from exc
    return Profiles(
        data.get("default"), {name: _read_profile(name, part) for name, part in data.get("profiles", {}).items()}
    )


def _read_profile(name: str, part: Any) -> Profile:
    known = {item.name for item in fields(Profile)}
    if not isinstance(part, dict) or not set(part) <= known or not all(isinstance(v, str) for v in part.values()):
        raise click.UsageError(f"the profile {name!r} in {find_path()} takes the texts {', '.join(sorted(known))}")
    return Profile(**part)


def save(profiles: Profiles) -> None:
    """Replace the file atomically. Only its owner can read it, from the first byte on."""
    file = find_path()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lines = [] if profiles.default is None else [f"default = {json.dumps(profiles.default)}\n"]
    for name, profile in sorted(profiles.by_name.items()):
        lines.append(f"\n[profiles.{json.dumps(name)}]\n")
        lines += [f"{key} = {json.dumps(value)}\n" for key, value in asdict(profile).items() if value is not None]
    new = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            opened.writelines(lines)
            opened.flush()
            os.fsync(opened.fileno())
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)


def find(name: str | None) -> Profile | None:
    """Find the profile of that name, or the one named by the environment, or the default unless the environment names a
    service. Address and key come from one place, so no key is sent to the wrong address."""
    name = name or os.environ.get("TUPLEGATE_PROFILE") or None
    if name is None:
        if os.environ.get("TUPLEGATE_URL") or os.environ.get("TUPLEGATE_API_KEY"):
            return None
        profiles = load()
        name = profiles.default
        if name is None:
            return None
    else:
        profiles = load()
    if name not in profiles.by_name:
        there = ", ".join(sorted(profiles.by_name)) or "none"
        raise click.UsageError(f"there is no profile {name!r} in {find_path()}; there are: {there}")
    return profiles.by_name[name]
