"""The account that a program or a server runs as, and what it may reach by the modes of files."""

import os
import pwd
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Account:
    """A user that programs and servers run as. `switch`: this is not the user of the service."""

    uid: int
    gid: int
    switch: bool

    @property
    def name(self) -> str:
        return user_name(self.uid)

    def may(self, status: os.stat_result, wanted: int) -> bool:
        """Return whether the account has these rights to a file. An account that we switch to needs the rights that
        everybody has: cells have further accounts, to which nobody has given rights."""
        shift = 0 if self.switch else 6 if status.st_uid == self.uid else 3 if status.st_gid == self.gid else 0
        return (status.st_mode >> shift) & wanted == wanted

    def blocked_by(self, path: Path) -> Path | None:
        """Return the first existing directory above a resolved path that the account may not pass through."""
        for directory in reversed(path.parents):
            if self.switch and directory.exists() and not self.may(directory.stat(), 0o1):
                return directory
        return None


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
