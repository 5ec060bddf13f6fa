"""The numbers of the service's own locks at the engine."""

from tuplegate.engine.postgres.transaction.ledger import number_lock


def test_nobody_outside_can_tell_the_number_of_a_lock() -> None:
    """A client chooses the end of a name, as with its Idempotency-Key: without a secret it could find another name with
    the same number."""
    names = ["idempotency/a//v1/query/k", "idempotency/a//v1/query/l", "dump/a"]
    numbers = {number_lock(secret, name) for name in names for secret in (b"one", b"two")}
    assert len(numbers) == 2 * len(names)
    assert all(-(2**63) <= int(number) < 2**63 for number in numbers)
    assert number_lock(b"one", "dump/a") == number_lock(b"one", "dump/a"), "all workers know it"
