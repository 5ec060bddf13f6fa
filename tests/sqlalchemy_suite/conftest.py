"""SQLAlchemy's own plugin, with this dialect; tests/extended/test_sqlalchemy_suite.py runs it and has its service."""

from typing import Any

import pytest
from sqlalchemy import inspect
from sqlalchemy.dialects import postgresql
from sqlalchemy.testing import provision
from sqlalchemy.testing.plugin.pytestplugin import *  # noqa: F403

import tuplegate.sqlalchemy  # noqa: F401 - makes the dialect known

pytest.register_assert_rewrite("sqlalchemy.testing.assertions")


@provision.generate_driver_url.for_db("tuplegate")  # type: ignore[untyped-decorator]
def generate_driver_url(url: Any, _driver: str, _query: str) -> Any:
    return url


@provision.drop_all_schema_objects_post_tables.for_db("tuplegate")  # type: ignore[untyped-decorator]
def drop_enums(_config: Any, engine: Any) -> None:
    with engine.begin() as connection:
        for enum in inspect(engine).get_enums("*"):
            connection.execute(postgresql.DropEnumType(postgresql.ENUM(name=enum["name"], schema=enum["schema"])))


@provision.upsert.for_db("tuplegate")  # type: ignore[untyped-decorator]
def upsert(
    _config: Any,
    table: Any,
    returning: Any,
    *,
    set_lambda: Any = None,
    sort_by_parameter_order: bool = False,
    index_elements: Any = None,
) -> Any:
    statement = postgresql.insert(table)
    if set_lambda is None:
        statement = statement.on_conflict_do_nothing()
    else:
        elements = index_elements or inspect(table).selectable.primary_key
        statement = statement.on_conflict_do_update(index_elements=elements, set_=set_lambda(statement.excluded))
    return statement.returning(*returning, sort_by_parameter_order=sort_by_parameter_order)
