"""The types of the dialect: converts SQLAlchemy's values for the driver, and the driver's for SQLAlchemy.

A placeholder has the type that the engine infers, so most are cast to the type that SQLAlchemy knows.
"""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from sqlalchemy import types as sqltypes
from sqlalchemy.dialects.postgresql import (
    ARRAY,
    BYTEA,
    CITEXT,
    ENUM,
    INTERVAL,
    JSON,
    JSONB,
    OID,
    REGCLASS,
    REGCONFIG,
    pg_catalog,
    ranges,
)
from sqlalchemy.dialects.postgresql.json import JSONPathType
from sqlalchemy.engine import processors

from tuplegate.client.values import write
from tuplegate.sqlalchemy.ranges import find_reader, read_multirange, read_range, write_multirange, write_range

_FLOATS = ("float4", "float8")


def _cast(kind: type[Any]) -> type[Any]:
    """Return the type, with its parameters cast in SQL: the service would have to guess what they are."""
    return type(f"_{kind.__name__}", (kind,), {"render_bind_cast": True})


class _Interval(INTERVAL):
    render_bind_cast = True

    @classmethod
    def adapt_emulated_to_native(cls, interval: Any, **kw: Any) -> "_Interval":  # type: ignore[override]  # as its base
        return _Interval(precision=interval.second_precision)


_Array, _Bytes, _Enum = _cast(ARRAY), _cast(BYTEA), _cast(ENUM)


class _NumberMixin(sqltypes.NumericCommon[Any]):
    """The driver returns Decimal for numeric, and float for floats."""

    render_bind_cast = True

    def bind_processor(self, dialect: Any) -> None:
        return None

    def result_processor(self, dialect: Any, coltype: Any) -> Any:
        if not self.asdecimal:
            return None if coltype in _FLOATS else processors.to_float
        if coltype not in _FLOATS:
            return None
        return processors.to_decimal_processor_factory(Decimal, self._effective_decimal_return_scale)


class _Numeric(_NumberMixin, sqltypes.Numeric[Any]):
    pass


class _Float(_NumberMixin, sqltypes.Float[Any]):
    pass


class _JsonMixin:
    """JSON is sent as text (see the compiler): its null must not be taken for SQL's. It comes as Python values."""

    render_bind_cast = True

    def result_processor(self, dialect: Any, coltype: Any) -> Callable[[Any], Any] | None:
        read = dialect._json_deserializer
        if read is None:
            return None
        return lambda value: None if value is None else read(write(value))


class _Json(_JsonMixin, JSON[Any]):
    pass


class _Jsonb(_JsonMixin, JSONB[Any]):
    pass


class _JsonIndex(sqltypes.JSON.JSONIndexType):
    pass


class _JsonIntIndex(sqltypes.JSON.JSONIntIndexType):
    __visit_name__ = "json_int_index"
    render_bind_cast = True


class _JsonStrIndex(sqltypes.JSON.JSONStrIndexType):
    __visit_name__ = "json_str_index"
    render_bind_cast = True


class _JsonPath(JSONPathType):
    def bind_processor(self, dialect: Any) -> Callable[[Any], Any]:
        # A text is a jsonpath, and goes as it is; anything else is a list of steps.
        return lambda value: value if isinstance(value, str) else [str(step) for step in value or ()]


class _Range(ranges.AbstractSingleRangeImpl[Any]):
    def bind_processor(self, dialect: Any) -> Callable[[Any], Any]:
        return lambda value: write_range(value) if isinstance(value, ranges.Range) else value

    def result_processor(self, dialect: Any, coltype: Any) -> Callable[[Any], Any]:
        read = find_reader(self.__visit_name__.lower())
        return lambda value: None if value is None else read_range(value, read)


class _MultiRange(ranges.AbstractMultiRangeImpl[Any]):
    def bind_processor(self, dialect: Any) -> Callable[[Any], Any]:
        return lambda value: value if value is None or isinstance(value, str) else write_multirange(value)

    def result_processor(self, dialect: Any, coltype: Any) -> Callable[[Any], Any]:
        read = find_reader(self.__visit_name__.lower())
        return lambda value: None if value is None else read_multirange(value, read)


class _Int2Vector(pg_catalog._SpaceVector, pg_catalog.INT2VECTOR):
    pass


class _OidVector(pg_catalog._SpaceVector, pg_catalog.OIDVECTOR):
    pass


_CAST = (
    sqltypes.String, sqltypes.CHAR, sqltypes.Boolean, sqltypes.Integer, sqltypes.SmallInteger, sqltypes.BigInteger,
    sqltypes.Date, sqltypes.DateTime, sqltypes.Time, OID, REGCLASS, REGCONFIG,
)  # fmt: skip
"""Types that need no more than a cast of their parameters."""

TYPES: dict[Any, Any] = {
    **{kind: _cast(kind) for kind in _CAST},
    sqltypes.Numeric: _Numeric,
    sqltypes.Float: _Float,
    sqltypes.Interval: _Interval,
    sqltypes.Enum: _Enum,
    sqltypes.ARRAY: _Array,
    sqltypes.LargeBinary: _Bytes,
    sqltypes.JSON: _Json,
    sqltypes.JSON.JSONPathType: _JsonPath,
    sqltypes.JSON.JSONIndexType: _JsonIndex,
    sqltypes.JSON.JSONIntIndexType: _JsonIntIndex,
    sqltypes.JSON.JSONStrIndexType: _JsonStrIndex,
    ARRAY: _Array,
    BYTEA: _Bytes,
    CITEXT: CITEXT,
    ENUM: _Enum,
    INTERVAL: _Interval,
    JSON: _Json,
    JSONB: _Jsonb,
    pg_catalog.INT2VECTOR: _Int2Vector,
    pg_catalog.OIDVECTOR: _OidVector,
    ranges.AbstractSingleRange: _Range,
    ranges.AbstractMultiRange: _MultiRange,
}
