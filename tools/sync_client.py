"""Makes `tuplegate.client.synchronous` of `tuplegate.client.asynchronous`, and the same of `tuplegate.dbapi`; `--check`
only says whether they are current.

The two differ in a few words only, which are replaced: async and await go, names change. The result is formatted, so
that it can be read and debugged like any other code.
"""

import re
import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).parent.parent / "src" / "tuplegate"
PACKAGES = {"client": "The client", "dbapi": "The DB-API"}
"""The packages that have both halves, and what they are called."""

_HEAD = "# Made by tools/sync_client.py of {name}. Do not edit.\n"
_WORDS = {
    "asynchronous": "synchronous",
    "asyncio": "time",
    "aclose": "close",
    "aiter_bytes": "iter_bytes",
    "anext": "next",
    "connect_async": "connect",
    "StopAsyncIteration": "StopIteration",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
}
_WORD = re.compile(r"\w+")
_AWAIT = re.compile(r"\bawait +|\basync +(?=(?:def|with|for)\b)")


def make_synchronous(text: str) -> str:
    """Return the same code without waiting for an event loop."""
    return _WORD.sub(lambda word: _word(word.group()), _AWAIT.sub("", text))


def _word(word: str) -> str:
    return _WORDS.get(word) or re.sub(r"^(_?)Async(?=[A-Z])", r"\1", word)


def format_code(text: str, path: Path) -> str:
    ruff = Path(sys.executable).parent / "ruff"
    for command in (["check", "--fix", "--quiet", "--select", "I"], ["format", "--quiet"]):
        done = subprocess.run(  # noqa: S603 - our own formatter
            [ruff, *command, "--stdin-filename", path, "-"], input=text, capture_output=True, text=True, check=True
        )
        text = done.stdout
    return text


def make_page(source: Path, target: Path) -> str:
    if source.name == "__init__.py":
        package = target.parent.parent.name
        return f'"""{PACKAGES[package]} without async and await, made of `tuplegate.{package}.asynchronous`."""\n'
    head = _HEAD.format(name=f"asynchronous/{source.name}")
    return format_code(head + make_synchronous(source.read_text("utf-8")), target)


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        sys.stderr.write("usage: python tools/sync_client.py [--check]\n")
        return 2
    pages = {}
    for package in PACKAGES:
        for source in sorted((SOURCES / package / "asynchronous").glob("*.py")):
            target = SOURCES / package / "synchronous" / source.name
            pages[target] = make_page(source, target)
    stale = [path for path, text in pages.items() if not path.exists() or path.read_text("utf-8") != text]
    left = sorted(
        {path for package in PACKAGES for path in (SOURCES / package / "synchronous").glob("*.py")} - set(pages)
    )
    if arguments:
        for path in [*stale, *left]:
            sys.stderr.write(f"{path.relative_to(SOURCES)} is not current: run `python tools/sync_client.py`\n")
        return 1 if stale or left else 0
    for path, text in pages.items():
        path.write_text(text, "utf-8")
    for path in left:
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
