"""What the bundled engine leaves open depends on the system alone."""

import pytest

from tuplegate.engine.cells import owner


@pytest.mark.parametrize(("gaps", "names"), [([], []), (["no Landlock"], ["sandbox_incomplete"])])
def test_a_gap_in_the_sandbox_must_be_accepted(
    monkeypatch: pytest.MonkeyPatch, gaps: list[str], names: list[str]
) -> None:
    monkeypatch.setattr(owner, "find_gaps", lambda: gaps)
    found = owner.find_weaknesses()
    assert [weakness.name for weakness in found] == names
    assert all(weakness.reaches_others for weakness in found)
