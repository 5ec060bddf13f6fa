"""Chooses the files of `make test-extended` that `.ci/run` runs for a change, and prints them.

They are the files of the change's turn, and those that the change touches or moves to another turn, where the sources
of the console and of the JavaScript client count as their tests. A file's turn depends on its name or its line in
`.ci/turns`, not on other files, and a change's turn follows that of the change that landed before it. So each file is
run at least every fourth change. A change that touches or moves many of them, as a new name in all tests does, runs
only those of its turn: whoever lands it runs all of them before.

Nothing in a clean clone tells which commits have landed before. So whoever lands a change says it: `make turn` writes
it into the message of the last commit (`--take`). All files are chosen where that line is missing, or was written for
another commit.
"""

import re
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

TABLE = ".ci/turns"
FOLDERS = ("tests/transfers", "tests/extended", "tests/console", "tests/javascript")
TESTED_BY = {
    "console/": "tests/console/",
    "src/tuplegate/console/": "tests/console/",
    "clients/javascript/": "tests/javascript/",
}
"""The tests of sources that most changes leave alone: a change to one of them touches the others."""
TURNS = 4
TOUCHED_MAX = 12

_LINE = re.compile(r"^Turn: ([0-3]) after ([0-9a-f]{40}) on ([0-9a-f]{40})$", re.MULTILINE)


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


def read_table(text: str) -> dict[str, int]:
    """Return the turns of the files that a text names, in its order."""
    lines = (line.split() for line in text.splitlines() if not line.startswith("#"))
    return {file: int(number) for number, file in lines}


def turn_of(file: str, table: Mapping[str, int]) -> int:
    return table.get(file, crc32(file.encode()) % TURNS)


def sort_files(files: Iterable[str], table: Mapping[str, int]) -> list[str]:
    """Return the files with those first that take long: no process is left with one of them at the end."""
    order = {file: place for place, file in enumerate(table)}
    return sorted(files, key=lambda file: (order.get(file, len(order)), file))


def choose_files(
    files: Collection[str], number: int, table: Mapping[str, int], before: Mapping[str, int], touched: Collection[str]
) -> list[str]:
    """Return the files of a turn, those that were touched, and those that had another turn before, if these are few: a
    file that moves could miss its turn."""
    moved = {file for file in files if turn_of(file, table) != turn_of(file, before)}
    tests = tuple(tests for sources, tests in TESTED_BY.items() if any(name.startswith(sources) for name in touched))
    run = {*moved, *touched} & set(files)
    if len(run) > TOUCHED_MAX:
        run = set()
    run.update(file for file in files if file.startswith(tests))
    return sort_files((file for file in files if turn_of(file, table) == number or file in run), table)


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
        table = read_table((self.root / TABLE).read_text())
        everything = sort_files(files, table)
        try:
            turn = self.read_turn("HEAD")
            if turn is None:
                return everything, "all, since the last commit names no turn: make turn"
            if not is_valid(turn, self.read_turn(turn.landed), self.git("rev-parse", "HEAD^1")):
                return everything, f"all, since the last commit names a turn that is not its own, {turn}: make turn"
            touched = self.git("diff", "--name-only", turn.landed, "HEAD").splitlines()
        except LookupError as exc:
            return everything, f"all, since the history does not tell what has landed: {exc}"
        chosen = choose_files(files, turn.number, table, self.read_table_of(turn.landed, table), touched)
        return chosen, f"turn {turn.number}, and what was touched since {turn.landed} if it is little"

    def read_table_of(self, commit: str, default: dict[str, int]) -> dict[str, int]:
        """Return the turns that held at a commit, or the default if there were no turns yet."""
        try:
            return read_table(self.git("show", f"{commit}:{TABLE}"))
        except LookupError:
            return default

    def take(self, commit: str | None) -> None:
        """Write the turn into the message of the last commit, which must be on top of what has landed: that commit, or
        origin's main."""
        if commit is None:
            self.git("fetch", "--quiet", "origin", "main")
        landed = self.git("rev-parse", commit or "FETCH_HEAD")
        if landed == self.git("rev-parse", "HEAD"):
            raise LookupError("nothing is there to land: commit first")
        if self.git("merge-base", landed, "HEAD") != landed:
            raise LookupError("what has landed is not in this branch: merge origin's main first")
        turn = Turn(follow(self.read_turn(landed)), landed, self.git("rev-parse", "HEAD^1"))
        message = ("--amend", "--only", "--no-edit", "--trailer", f"Turn: {turn}")
        self.git("-c", "trailer.ifexists=replace", "commit", *message)


def main() -> None:
    clone = Clone(Path(__file__).parent.parent)
    if sys.argv[1:2] == ["--take"]:
        try:
            clone.take(sys.argv[2] if len(sys.argv) > 2 else None)
        except LookupError as exc:
            sys.exit(str(exc))
        return
    files, reason = clone.choose()
    print(f"Extended tests: {reason}", file=sys.stderr)
    print("\n".join(files))


if __name__ == "__main__":
    main()
