"""The record of one check made by `doctor`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """The result of a check: ok, warning or failed. `advice` says what to do."""

    check: str
    result: str
    found: str
    advice: str = ""
