"""The mutations of `make failover` fit the product: each finds what it replaces."""

import os

from failover.faults import FAULTS
from failover.mutations import MUTATIONS, Mutation


def _can_be_applied(mutation: Mutation) -> bool:
    """Return whether it can, in a child: this process stays as it is."""
    child = os.fork()
    if child == 0:
        try:
            mutation.apply()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def test_mutations_fit_the_product() -> None:
    """Each can be applied, and the faults that bring it to light are there."""
    assert [name for name, mutation in MUTATIONS.items() if not _can_be_applied(mutation)] == []
    assert {fault for mutation in MUTATIONS.values() for fault in mutation.faults} <= set(FAULTS)
