"""The lives of sessions, keys and databases: a table each, which the code obeys and docs/states.md shows. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass


class IllegalTransition(Exception):
    """The event cannot happen in the present state."""


@dataclass(frozen=True, slots=True)
class Life:
    """The states of one kind of thing. `transitions` maps a state and an event to the next state."""

    name: str
    first: str
    transitions: Mapping[tuple[str, str], str]

    def after(self, state: str, event: str) -> str:
        """Return the next state. Raises IllegalTransition."""
        try:
            return self.transitions[state, event]
        except KeyError:
            raise IllegalTransition(f"a {self.name} that is {state} cannot {event}") from None

    @property
    def states(self) -> list[str]:
        return list(dict.fromkeys([self.first, *(state for state, _ in self.transitions), *self.transitions.values()]))


SESSION = Life(
    "session",
    "active",
    {
        ("active", "refresh"): "active",
        ("active", "log out"): "destroyed",
        ("active", "be ended by an admin"): "destroyed",
        ("active", "reach its time"): "expired",
        ("active", "lose its key"): "destroyed",
    },
)

KEY = Life(
    "key",
    "active",
    {
        ("active", "change"): "active",
        ("active", "rotate"): "active",
        ("active", "be revoked"): "revoked",
        ("active", "reach its time"): "expired",
        ("expired", "be revoked"): "revoked",
    },
)

GONE = "gone"

DATABASE = Life(
    "database",
    "creating",
    {
        ("creating", "be made"): "active",
        ("creating", "not be made"): "failed",
        ("active", "change"): "active",
        ("active", "be cloned"): "active",
        ("active", "be reset"): "active",
        ("active", "be dumped"): "active",
        ("active", "be moved"): "moving",
        ("moving", "arrive"): "active",
        ("moving", "stay"): "active",
        ("active", "be deleted"): "deleting",
        ("failed", "be deleted"): "deleting",
        ("deleting", "be removed"): GONE,
    },
)

LIVES = (SESSION, KEY, DATABASE)
