"""The mutations of `make failover` fit the product: each finds what it replaces."""

import subprocess
import sys
from pathlib import Path

import pytest
from failover.faults import FAULTS
from failover.mutations import MUTATIONS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", MUTATIONS)
def test_fits(name: str) -> None:
    """In a process of its own it can be applied; the faults that bring it to light are there."""
    apply = f"from failover.mutations import MUTATIONS; MUTATIONS[{name!r}].apply()"
    subprocess.run([sys.executable, "-c", apply], check=True, cwd=ROOT, timeout=60)
    assert set(MUTATIONS[name].faults) <= set(FAULTS)
