"""All attacks, by subject: importing a subject's module puts its attacks into the table."""

from attack import become, read, slow, stop, weaken
from attack.table import ATTACKS, Attack

SUBJECTS = (become, read, stop, slow, weaken)

__all__ = ["ATTACKS", "SUBJECTS", "Attack"]
