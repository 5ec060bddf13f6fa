"""Each file of the extended tests runs at least every fourth change, and with a change that touches few others."""

import os
from pathlib import Path

import pytest
from tools.turn import TABLE, TESTED_BY, TOUCHED_MAX, TURNS, Clone, Turn, choose_files, is_valid, read_table, read_turn

ROOT = Path(__file__).parents[2]
FILES = Clone(ROOT).list_files()
NOW = read_table((ROOT / TABLE).read_text())
A, B = "a" * 40, "b" * 40


def test_all_turns_run_each_file_once() -> None:
    assert sorted(file for number in range(TURNS) for file in choose_files(FILES, number, NOW, NOW, ())) == FILES


def test_the_files_that_take_long_exist() -> None:
    assert set(NOW) <= set(FILES)
    assert set(NOW.values()) == set(range(TURNS))


def test_a_new_file_moves_no_other() -> None:
    """One that moved could miss its turn."""
    new = "tests/extended/test_new.py"
    for number in range(TURNS):
        others = choose_files(FILES, number, NOW, NOW, ())
        assert set(choose_files([*FILES, new], number, NOW, NOW, [new])) == {*others, new}


@pytest.mark.parametrize(("sources", "tests"), TESTED_BY.items())
def test_what_a_change_touches_the_sources_of_runs(sources: str, tests: str) -> None:
    its_own = {file for file in FILES if file.startswith(tests)}
    assert its_own
    for number in range(TURNS):
        run, run_all = (choose_files(FILES, number, NOW, NOW, touched) for touched in ([], [f"{sources}some.ts"]))
        assert set(run_all) == {*run, *its_own}


def test_many_files_that_a_change_touches_run_in_their_turns() -> None:
    """It runs no longer than any other change then."""
    files = [f"tests/extended/test_{number}.py" for number in range(3 * TOUCHED_MAX)]
    for number in range(TURNS):
        in_turn = choose_files(files, number, {}, {}, ())
        for few in (files[:TOUCHED_MAX], ["src/some.py", *files[:TOUCHED_MAX]]):
            assert set(choose_files(files, number, {}, {}, few)) == {*in_turn, *few} - {"src/some.py"}
        assert choose_files(files, number, {}, {}, files[: TOUCHED_MAX + 1]) == in_turn


def test_a_file_that_moves_runs() -> None:
    """The turn that it comes to may have been the one before."""
    file = FILES[0]
    for number in range(TURNS):
        moved = [choose_files(FILES, number, {file: to}, {file: 0}, ()) for to in (1, 2)]
        assert all(file in chosen for chosen in moved)


@pytest.mark.parametrize(
    ("turn", "before", "valid"),
    [
        (Turn(0, A, B), None, True),
        (Turn(1, A, B), None, False),
        (Turn(1, A, B), Turn(0, A, A), True),
        (Turn(2, A, B), Turn(0, A, A), False),
        (Turn(0, A, B), Turn(TURNS - 1, A, A), True),
        (Turn(0, A, A), None, False),
    ],
)
def test_a_turn_follows_the_one_that_landed_before(turn: Turn, before: Turn | None, valid: bool) -> None:
    assert is_valid(turn, before, parent=B) is valid


def test_a_message_names_a_turn() -> None:
    turn = Turn(2, A, B)
    assert read_turn(f"Subject\n\nTurn: {turn}\nSigned-off-by: x") == turn
    assert read_turn("Subject\n\nTurn: 1 after noon") is None


class Project(Clone):
    """A repository with files of tests, and the branch that changes land on."""

    def start(self) -> None:
        (self.root / TABLE).parent.mkdir(parents=True)
        (self.root / TABLE).write_text("# Nothing takes long.\n")
        self.git("init", "--quiet", "--bare", "--initial-branch=main", "../landed.git")
        self.git("init", "--quiet", "--initial-branch=main")
        for name in ("name", "email"):
            self.git("config", f"user.{name}", "x")
        self.git("remote", "add", "origin", "../landed.git")
        self.commit(*(f"tests/extended/test_{name}.py" for name in ("one", "two", "three", "four")))
        self.land()

    def commit(self, *changed: str) -> None:
        """Commit a change of these files, or of another one."""
        for name in changed or ("README",):
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write("x\n")
        self.git("add", ".")
        self.git("commit", "--quiet", "-m", "Change")

    def runs_all(self) -> bool:
        files, _ = self.choose()
        return files == sorted(self.list_files())

    def land(self) -> None:
        self.git("push", "--quiet", "origin", "HEAD:main")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.delenv("GIT_DIR", raising=False)  # a hook that runs the tests sets it
    made = Project(tmp_path / "clone")
    made.start()
    return made


def make_change(project: Project) -> None:
    project.commit()
    project.commit()
    project.take(None)


def mend_a_red_one(project: Project) -> None:
    project.commit()
    project.take(None)
    project.commit()
    project.take(None)


def take_no_turn(project: Project) -> None:
    project.commit()


def test_each_file_runs_at_least_every_fourth_change(project: Project) -> None:
    runs = []
    for change in (make_change, make_change, mend_a_red_one, make_change, make_change, take_no_turn, make_change):
        change(project)
        runs.append(set(project.choose()[0]))
        project.land()
    assert all(set().union(*runs[at : at + TURNS]) == set(project.list_files()) for at in range(len(runs) - TURNS + 1))
    assert [run == set(project.list_files()) for run in runs] == [False] * 5 + [True, False]


def test_what_a_change_touches_runs(project: Project) -> None:
    files = project.list_files()
    project.commit(files[0], files[1])
    project.commit(files[2], files[3])
    project.take(None)
    assert project.runs_all()


def test_a_turn_that_a_rebase_carried_on_is_not_valid(project: Project) -> None:
    """Another change has landed in between, with the same turn."""
    project.git("checkout", "--quiet", "-b", "late")
    project.commit("LATE")
    project.take(None)
    assert not project.runs_all()
    project.git("checkout", "--quiet", "main")
    make_change(project)
    project.land()
    project.git("checkout", "--quiet", "late")
    with pytest.raises(LookupError, match="merge origin's main first"):
        project.take(None)
    project.git("rebase", "--quiet", "main")
    assert project.runs_all()
    project.take(None)
    assert not project.runs_all()


def test_all_run_where_the_history_tells_nothing(project: Project) -> None:
    """In a clone of the last commit alone, and where nobody has said what landed."""
    assert project.runs_all()
    make_change(project)
    assert not project.runs_all()
    project.git("clone", "--quiet", "--depth", "1", f"file://{project.root}", "../shallow")
    assert Project(project.root.parent / "shallow").runs_all()


def test_all_run_that_have_another_turn_than_before(project: Project) -> None:
    files = project.list_files()
    for number in range(TURNS):
        (project.root / TABLE).write_text("".join(f"{number} {file}\n" for file in files))
        make_change(project)
        moved = project.choose()[0]
        project.land()
    assert moved == files


def test_what_has_landed_is_not_changed(project: Project) -> None:
    landed = project.git("rev-parse", "HEAD")
    with pytest.raises(LookupError, match="commit first"):
        project.take(None)
    assert project.git("rev-parse", "HEAD") == landed
