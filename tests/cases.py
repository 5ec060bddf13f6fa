"""Many cases in one test, which pays once for what its fixtures take: a schema, a table, a client."""

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from _pytest.mark import ParameterSet

from tests.service import ENGINE

Test = Callable[..., None]


def each_of(names: str | Sequence[str], cases: Iterable[Any]) -> Callable[[Test], Test]:
    """Run the test for each case, one after the other, in place of `pytest.mark.parametrize`.

    For cases that leave nothing to each other. A failure names its case. A case that needs what the engine of the tests
    cannot do (`pytest.param` with the mark `needs`) is left out.
    """
    given = [names] if isinstance(names, str) else list(names)
    listed = list(cases)
    asks = bool(ENGINE) and any(isinstance(case, ParameterSet) for case in listed)

    def decorate(test: Test) -> Test:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            abilities = fixtures.pop("abilities") if asks else None
            for case in listed:
                if isinstance(case, ParameterSet):
                    needed = [name for mark in case.marks for name in mark.args]
                    if abilities and any(abilities.find_missing(name) for name in needed):
                        continue
                    values: Sequence[Any] = case.values
                else:
                    values = [case] if isinstance(names, str) else case
                try:
                    test(**fixtures, **dict(zip(given, values, strict=True)))
                except Exception as exc:
                    exc.add_note(f"in the case {', '.join(given)} = {case!r:.300}")
                    raise

        kept = [parameter for name, parameter in signature.parameters.items() if name not in given]
        if asks:
            kept.append(inspect.Parameter("abilities", inspect.Parameter.KEYWORD_ONLY))
        run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return run

    return decorate
