"""Runs one attack: an attacker of its own, the attack, the check of the whole, the bystander's figures."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from attack import hostile, walls
from attack.arena import Arena, Breach
from attack.table import Attack

_SHOWN_MAX = 12


@dataclass(frozen=True)
class Verdict:
    """`wrong` is empty where every wall held. `sent` are the attacker's last requests, `statements` what it had made
    before."""

    name: str
    wrong: list[str]
    figures: str
    sent: list[str]


def try_attack(arena: Arena, attack: Attack) -> Verdict:
    return _try(arena, attack.name, attack.tier, attack.run)


def try_hostile(arena: Arena, seed: int) -> Verdict:
    """A database full of hostile objects, and routes in an order of the seed."""
    plan = hostile.plan(seed)
    verdict = _try(arena, f"hostile {seed}", "unlimited", plan.run)
    return Verdict(verdict.name, verdict.wrong, verdict.figures, [*plan.statements, *plan.order, *verdict.sent])


def _try(arena: Arena, name: str, tier: str, run: Callable[[Arena], None]) -> Verdict:
    began = time.monotonic()
    with arena.fresh_attacker(tier) as attacker:
        before = walls.stand(arena)
        arena.bystander.renew()
        wrong: list[str] = []
        try:
            run(arena)
        except Breach as breach:
            wrong.append(str(breach))
        except Exception as exc:  # noqa: BLE001 - an attack that breaks down is a failure of its own, with the rest told
            wrong.append(f"the attack broke down: {type(exc).__name__}: {exc}")
        sent = list(attacker.sent)[-_SHOWN_MAX:]
        wrong += walls.breaches(arena, before)
        figures = arena.bystander.renew()
        wrong += [f"the bystander's {error}" for error in figures.errors[:3]]
    return Verdict(name, wrong, f"{time.monotonic() - began:.1f} s; bystander {figures}", sent)
