"""Nothing that a tenant has defined before takes part in the script of any extension that it may create."""

import pytest

from tests.system.test_extensions import (
    EXTENSIONS,
    Names,
    Own,
    assert_none_is_replaced,
    assert_similar_take_no_part,
    names,
    own,
    server,
)

__all__ = ["names", "own", "server"]  # fixtures


@pytest.mark.parametrize("schema", ["public", "chosen"])
@pytest.mark.parametrize("extension", EXTENSIONS)
def test_similar_objects_take_no_part(own: Own, names: Names, extension: str, schema: str) -> None:
    """Functions, operators and types of the same names, in the schema and in pg_temp, are not taken for others."""
    assert_similar_take_no_part(own, names, extension, schema)


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_no_object_is_replaced(own: Own, names: Names, extension: str) -> None:
    """Where one object has just the name and types of the extension's, or is a shell of it, the script is refused."""
    assert_none_is_replaced(own, names, extension)
