"""A transaction that locks more objects than the engine's table of locks has room for."""

from tests.hostile.test_tenants_locks import assert_ended, capacity, one, small, two
from tests.tenants import Tenant

__all__ = ["capacity", "one", "small", "two"]  # fixtures


def test_a_transaction_that_removes_too_many_objects_is_ended(one: Tenant, two: Tenant, capacity: int) -> None:
    """Each object that is removed is locked until the end."""
    count = capacity * 3 // 5
    one.write(f"do $$ begin perform lo_create(0) from generate_series(1, {count}); end $$")
    assert_ended(
        one, two, "do $$ begin perform lo_unlink(oid) from pg_largeobject_metadata; perform pg_sleep(60); end $$"
    )
    assert one.write.value("select count(*) from pg_largeobject_metadata") == count
