"""The table of attacks: each is a small function whose docstring is the sentence of what must not happen."""

from collections.abc import Callable
from dataclasses import dataclass

from attack.arena import Arena


@dataclass(frozen=True)
class Attack:
    """`quick` ones are in `make test`. `tier` is that of the attacker."""

    name: str
    sentence: str
    quick: bool
    tier: str
    run: Callable[[Arena], None]


ATTACKS: dict[str, Attack] = {}


def attack(
    *, quick: bool = True, tier: str = "unlimited"
) -> Callable[[Callable[[Arena], None]], Callable[[Arena], None]]:
    """Put the function into the table, under its own name."""

    def put(function: Callable[[Arena], None]) -> Callable[[Arena], None]:
        name = function.__name__
        assert name not in ATTACKS, f"two attacks are called {name}"
        sentence = (function.__doc__ or "").strip().splitlines()[0]
        assert sentence, f"{name} does not say what must not happen"
        ATTACKS[name] = Attack(name, sentence, quick, tier, function)
        return function

    return put
