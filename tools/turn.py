"""Chooses the files of `make test-extended` that `.ci/run` runs for a change, and prints them.

They are the files of the change's turn, and those that the change touches. A file's turn depends on nothing but its
name, and a landed change's turn follows the one that landed before it, so each file is run at least every third change.

Nothing in a clean clone tells which commits have landed before. So whoever lands a change says it: `make turn` writes
it into the message of the last commit (`--take`). All files are chosen where that line is missing, or was written for
another commit.
"""

import re
import subprocess
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

TOOL = "tools/turn.py"
FOLDERS = ("tests/transfers", "tests/extended")
TURNS = 3

HEAVY = {
    "tests/extended/test_compiled.py": 1,
    "tests/extended/test_failover.py": 2,
    "tests/extended/test_more_values.py": 0,
    "tests/extended/test_moves.py": 0,
    "tests/extended/test_all_extensions.py": 2,
    "tests/extended/test_bundled_kills.py": 1,
    "tests/extended/test_console_rows.py": 0,
    "tests/extended/test_cluster.py": 2,
    "tests/extended/test_external_suite.py": 0,
    "tests/extended/test_wire_faults.py": 2,
    "tests/extended/test_attack.py": 1,
    "tests/extended/test_external_engine.py": 1,
    "tests/extended/test_managed.py": 0,
    "tests/extended/test_standstill.py": 2,
    "tests/extended/test_stubborn_faults.py": 1,
    "tests/transfers/test_dumps.py": 0,
    "tests/transfers/test_dump.py": 2,
    "tests/transfers/test_dump_route.py": 2,
    "tests/extended/test_full_disk.py": 1,
    "tests/extended/test_like_the_engine_at_length.py": 0,
    "tests/extended/test_openapi.py": 1,
    "tests/extended/test_workers.py": 0,
    "tests/extended/test_all_long_values.py": 2,
    "tests/extended/test_backups.py": 2,
    "tests/extended/test_generated_clients.py": 1,
    "tests/extended/test_javascript_client.py": 0,
    "tests/extended/test_several_engines.py": 2,
    "tests/extended/test_replicas.py": 1,
    "tests/extended/test_transfer_faults.py": 0,
}
"""The turns of files that take half a minute or more, so that all turns take about as long; the longest file first."""

_LINE = re.compile(r"^Turn: ([0-2]) after ([0-9a-f]{40}) on ([0-9a-f]{40})$", re.MULTILINE)


@dataclass(frozen=True)
class Turn:
    """The turn of a change, as the message of its last commit names it."""

    number: int
    landed: str
    """The last commit of the change that landed before."""
    parent: str
    """The first parent of the commit that the message was written for: it is another one after a rebase."""

    def __str__(self) -> str:
        return f"{self.number} after {self.landed} on {self.parent}"


def read_turn(message: str) -> Turn | None:
    """Return the turn that the message of a commit names, or None."""
    found = _LINE.findall(message)
    return Turn(int(found[-1][0]), *found[-1][1:]) if found else None


def follow(before: Turn | None) -> int:
    """Return the number of the turn after that of the change that landed before. That one ran all if it names none."""
    return 0 if before is None else (before.number + 1) % TURNS


def is_valid(turn: Turn, before: Turn | None, parent: str) -> bool:
    """Return whether a turn was written for the commit with that parent, and follows the turn before it."""
    return turn.parent == parent and turn.number == follow(before)


def turn_of(file: str) -> int:
    return HEAVY.get(file, crc32(file.encode()) % TURNS)


def sort_files(files: Iterable[str]) -> list[str]:
    """Return the files with those first that take long: no process is left with one of them at the end."""
    order = {file: place for place, file in enumerate(HEAVY)}
    return sorted(files, key=lambda file: (order.get(file, len(order)), file))


def choose_files(files: Iterable[str], number: int, touched: Collection[str]) -> list[str]:
    """Return the files of a turn and those that were touched."""
    return sort_files(file for file in files if turn_of(file) == number or file in touched)


@dataclass(frozen=True)
class Clone:
    root: Path

    def git(self, *arguments: str) -> str:
        done = subprocess.run(  # noqa: S603 - our own arguments
            ["git", *arguments],  # noqa: S607
            cwd=self.root,
            capture_output=True,
            check=False,
            text=True,
        )
        if done.returncode:
            raise LookupError(f"git {arguments[0]}: {done.stderr.strip()}")
        return done.stdout.strip()

    def read_turn(self, commit: str) -> Turn | None:
        return read_turn(self.git("log", "-1", "--format=%B", commit))

    def list_files(self) -> list[str]:
        found = (path for folder in FOLDERS for path in (self.root / folder).glob("test_*.py"))
        return sorted(str(path.relative_to(self.root)) for path in found)

    def choose(self) -> tuple[list[str], str]:
        """Return the files to run for the last commit, and the reason."""
        files = self.list_files()
        everything = sort_files(files)
        try:
            turn = self.read_turn("HEAD")
            if turn is None:
                return everything, "all, since the last commit names no turn: make turn"
            if not is_valid(turn, self.read_turn(turn.landed), self.git("rev-parse", "HEAD^1")):
                return everything, f"all, since the last commit names a turn that is not its own, {turn}: make turn"
            touched = self.git("diff", "--name-only", turn.landed, "HEAD").splitlines()
        except LookupError as exc:
            return everything, f"all, since the history does not tell what has landed: {exc}"
        if TOOL in touched:
            return everything, f"all, since {TOOL} may have moved files to other turns"
        return choose_files(
            files, turn.number, touched
        ), f"turn {turn.number}, and what was touched since {turn.landed}"

    def take(self) -> None:
        """Write the turn into the message of the last commit, which must be on top of what has landed."""
        self.git("fetch", "--quiet", "origin", "main")
        landed = self.git("rev-parse", "FETCH_HEAD")
        if landed == self.git("rev-parse", "HEAD"):
            raise LookupError("nothing is there to land: commit first")
        if self.git("merge-base", landed, "HEAD") != landed:
            raise LookupError("what has landed is not in this branch: merge origin's main first")
        turn = Turn(follow(self.read_turn(landed)), landed, self.git("rev-parse", "HEAD^1"))
        message = ("--amend", "--only", "--no-edit", "--trailer", f"Turn: {turn}")
        self.git("-c", "trailer.ifexists=replace", "commit", *message)


def main() -> None:
    clone = Clone(Path(__file__).parent.parent)
    if sys.argv[1:] == ["--take"]:
        try:
            clone.take()
        except LookupError as exc:
            sys.exit(str(exc))
        return
    files, reason = clone.choose()
    print(f"Extended tests: {reason}", file=sys.stderr)
    print("\n".join(files))


if __name__ == "__main__":
    main()
