"""Writes to files of the kernel's: in /proc, and in a control group."""

from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write a text with one call, as the kernel expects it. Raises OSError with the kernel's answer."""
    with path.open("wb", buffering=0) as file:
        file.write(text.encode())
