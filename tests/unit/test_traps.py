"""Traps for service nodes of `make failover`: each is met once."""

from pathlib import Path

from failover.traps import Trap, lay, spring


def test_a_trap_is_met_once(tmp_path: Path) -> None:
    """Who comes first is told which one it is; nobody else meets it, until it is laid again."""
    path = tmp_path / "trap-0"
    assert spring(path) is None
    for trap in Trap:
        lay(path, trap)
        assert spring(path) is trap
        assert spring(path) is None
