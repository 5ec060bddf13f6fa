"""The pages' sources keep to the limits that hold for the service's own."""

import re
from pathlib import Path

from tests.unit.test_sizes import FILE_LINES, FUNCTION_LINES

SOURCES = Path(__file__).parents[2] / "console" / "src"
_OPENS = re.compile(r"^(\s*)(?:export )?(?:default )?(?:static )?(?:async )?(?:function\*? \w+|#?\w+\().*\{$")
_HEAD_OPENS = re.compile(r"^(\s*)(?:export )?(?:async )?function\*? \w+.*\($")


def _find_long_functions(path: Path) -> list[str]:
    """Name functions and methods over the limit: from the line that opens one to the line that closes it."""
    lines = path.read_text("utf-8").splitlines()
    found = []
    for number, line in enumerate(lines):
        opens = _OPENS.match(line) or _HEAD_OPENS.match(line)
        if not opens or "=>" in line or line.lstrip().startswith(("if ", "for ", "while ", "switch ", "return ")):
            continue
        close = f"{opens[1]}}}"
        end = next((at for at in range(number + 1, len(lines)) if lines[at] == close), number)
        if end - number + 1 > FUNCTION_LINES:
            found.append(f"{path.relative_to(SOURCES)}:{number + 1} {end - number + 1}")
    return found


def test_no_file_and_no_function_of_the_pages_outgrows_its_limit() -> None:
    files = [path for path in SOURCES.rglob("*") if path.suffix in (".ts", ".tsx")]
    assert len(files) > 40
    too_long = [str(path.relative_to(SOURCES)) for path in files if len(path.read_text().splitlines()) > FILE_LINES]
    assert too_long + [one for path in files for one in _find_long_functions(path)] == []
