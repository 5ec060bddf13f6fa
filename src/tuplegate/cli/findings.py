"""What `doctor` finds: one record for each thing it has looked at."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """`result` is ok, warning or failed; `advice` says what to do."""

    check: str
    result: str
    found: str
    advice: str = ""
