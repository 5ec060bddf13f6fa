"""`\\e`: edit a statement in the user's editor."""

import os
import shlex
import signal
import subprocess
import tempfile
from pathlib import Path

from tuplegate.cli.exits import Exit
from tuplegate.cli.remote import Failed


def edit_text(text: str) -> str | None:
    """Return the text as it was saved, or None if unchanged. The temporary file is private and is removed."""
    handle, name = tempfile.mkstemp(prefix="tuplegate-", suffix=".sql")
    file = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as opened:
            opened.write(text.rstrip() + "\n" if text.strip() else "")
        before = file.read_text("utf-8")
        edit_file(file)
        after = file.read_text("utf-8")
    except UnicodeDecodeError as exc:
        raise Failed(f"what was saved is not UTF-8: {exc}; nothing was run", Exit.FILE) from exc
    finally:
        file.unlink(missing_ok=True)
    return None if after == before else after.strip()


def edit_file(file: Path) -> None:
    """Run the editor and wait for it. If it fails, nothing that it saved is run."""
    command = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C belongs to the editor while it runs
    try:
        done = subprocess.run([*shlex.split(command), str(file)], check=False)  # noqa: S603 - the person's own editor
    except (OSError, ValueError) as exc:
        hint = ("hint: VISUAL or EDITOR names the editor to use",)
        raise Failed(f"the editor {command} cannot be started: {exc}", Exit.FILE, hint) from exc
    finally:
        signal.signal(signal.SIGINT, before)
    if done.returncode != 0:
        raise Failed(f"the editor {command} ended with {done.returncode}; nothing was run", Exit.FILE)
