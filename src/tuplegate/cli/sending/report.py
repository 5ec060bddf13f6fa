"""The report on a database that is sent: each of its parts, and the result."""

from dataclasses import dataclass, field
from enum import StrEnum

COLUMNS = ("kind", "name", "result", "note")


class Result(StrEnum):
    TAKEN = "taken"
    CHANGED = "changed"
    """It was made in another form; the note says how."""
    MISSING = "missing"
    """The other engine lacks it; the note says why."""
    SAME = "same"
    """As many rows with the same values."""
    DIFFERENT = "different"


@dataclass
class Report:
    findings: list[dict[str, str]] = field(default_factory=list)

    def add(self, kind: str, name: str, result: Result, note: str = "") -> None:
        self.findings.append({"kind": kind, "name": name, "result": str(result), "note": note})

    def count(self, *results: Result) -> int:
        return sum(one["result"] in results for one in self.findings)
