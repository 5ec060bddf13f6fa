"""The dialect of SQLAlchemy: types both ways, transactions, streams, reflection; with asyncio and without.

SQLAlchemy's own tests for every dialect are run by tests/extended/test_sqlalchemy_suite.py.
"""

import asyncio
import enum
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg
from sqlalchemy.dialects.postgresql import Range
from sqlalchemy.dialects.postgresql.ranges import MultiRange
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import tuplegate.sqlalchemy
from tests.client.faults import PASS, relay
from tests.dbapi.conftest import address
from tests.dbapi.test_dbapi import routes
from tests.service import Service
from tuplegate import dbapi
from tuplegate.sqlalchemy import ranges


class Mood(enum.Enum):
    GOOD = 1
    BAD = 2


class Base(DeclarativeBase):
    pass


class Album(Base):
    __tablename__ = "album"
    id: Mapped[int] = mapped_column(sa.Identity(), primary_key=True)
    title: Mapped[str]
    mood: Mapped[Mood | None]


NOW = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
VALUES: list[tuple[Any, Any]] = [
    (sa.Numeric(10, 2), Decimal("1.10")),
    (sa.Numeric(10, 2, asdecimal=False), 1.1),
    (sa.Double(), 0.1),
    (sa.Double(asdecimal=True), Decimal("0.5")),
    (sa.BigInteger(), 2**60),
    (sa.Boolean(), True),
    (sa.LargeBinary(), b"\0\xff"),
    (sa.Uuid(), UUID(int=7)),
    (sa.Uuid(as_uuid=False), str(UUID(int=7))),
    (sa.DateTime(timezone=True), NOW),
    (sa.Interval(), timedelta(days=3, microseconds=1)),
    (sa.Enum(Mood), Mood.BAD),
    (sa.JSON(), {"a": [1.5, None, "x"]}),
    (sa.JSON(), "a text"),
    (pg.JSONB(), None),
    (sa.ARRAY(sa.Text), ["a", None, '"q,{']),
    (pg.ARRAY(sa.Integer, dimensions=2), [[1, 2], [3, 4]]),
    (pg.ARRAY(pg.JSONB), [{"a": 1}, "x"]),
    (pg.ARRAY(sa.Enum(Mood)), [Mood.GOOD]),
    (pg.ARRAY(sa.Numeric), [Decimal("1.10")]),
    (pg.INT4RANGE(), Range(1, 5)),
    (pg.INT8RANGE(), Range(empty=True)),
    (pg.NUMRANGE(), Range(Decimal("1.5"), None, bounds="()")),
    (pg.DATERANGE(), Range(date(2026, 1, 1), date(2026, 2, 1))),
    (pg.TSTZRANGE(), Range(NOW, NOW + timedelta(1), bounds="[]")),
    (pg.INT4MULTIRANGE(), MultiRange([Range(1, 3), Range(5, 9)])),
    (pg.INET(), "10.0.0.1/8"),
    (pg.BIT(3), pg.BitString("101")),
]


@pytest.fixture
def engine(service: Service) -> Iterator[sa.Engine]:
    made = sa.create_engine(address(service), pool_pre_ping=True)
    yield made
    made.dispose()


@pytest.fixture
def tables(engine: sa.Engine) -> Iterator[None]:
    Base.metadata.create_all(engine)
    yield
    Base.metadata.drop_all(engine)


def test_values_of_every_type_come_back(engine: sa.Engine) -> None:
    metadata = sa.MetaData()
    columns = [sa.Column(f"c{n}", kind) for n, (kind, _) in enumerate(VALUES)]
    table = sa.Table("every_type", metadata, *columns)
    values = {f"c{n}": value for n, (_, value) in enumerate(VALUES)}
    with engine.connect() as connection:
        table.create(connection)
        connection.execute(table.insert().values(values))
        connection.execute(table.insert(), [values, dict.fromkeys(values)])
        rows = connection.execute(sa.select(table)).mappings().all()
        for n, (kind, value) in enumerate(VALUES):
            if not isinstance(kind, sa.JSON):
                assert (repr(kind), [row[f"c{n}"] for row in rows]) == (repr(kind), [value, value, None])
                found = connection.scalar(
                    sa.select(sa.func.count()).where(table.c[f"c{n}"] == sa.bindparam("v", value, kind))
                )
                assert (repr(kind), found) == (repr(kind), 2)
            else:
                assert [row[f"c{n}"] for row in rows][:2] == [value, value]
        connection.rollback()


def test_the_null_of_json_is_not_that_of_sql(engine: sa.Engine) -> None:
    table = sa.Table("nulls", sa.MetaData(), sa.Column("j", pg.JSONB(none_as_null=False)))
    with engine.connect() as connection:
        table.create(connection)
        connection.execute(table.insert(), [{"j": None}, {"j": sa.null()}])
        kinds = connection.scalars(sa.text("select jsonb_typeof(j) from nulls order by 1")).all()
        assert kinds == ["null", None]
        connection.rollback()


def test_json_has_its_own_reader_and_writer(service: Service) -> None:
    engine = sa.create_engine(
        address(service), json_serializer=lambda _value: '{"written": 1}', json_deserializer=lambda text: ("read", text)
    )
    with engine.connect() as connection:
        assert connection.scalar(sa.select(sa.literal(1, sa.JSON()))) == ("read", '{"written":1}')
        long = sa.text("select repeat('7', 5000)::json as v").columns(v=sa.JSON())
        assert connection.scalar(long) == ("read", "7" * 5000), "all digits reach the reader"
    engine.dispose()


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("int4range", "[1,)", Range(1, None)),
        ("numrange", "empty", Range(empty=True)),
        ("tsrange", '["2026-01-01 00:00:00",)', Range(datetime(2026, 1, 1), None)),
        ("textrange", r'["a\"b\\,",")"]', Range('a"b\\,', ")", bounds="[]")),
    ],
)
def test_ranges_are_read(kind: str, text: str, value: Range[Any]) -> None:
    assert ranges.read_range(text, ranges.find_reader(kind)) == value
    assert ranges.read_range(ranges.write_range(value), ranges.find_reader(kind)) == value
    assert ranges.read_multirange("{[1,3),[5,9)}", int) == [Range(1, 3), Range(5, 9)]
    with pytest.raises(ValueError, match="is not a range"):
        ranges.read_range("[1", int)


def test_objects_are_stored_and_found(engine: sa.Engine, tables: None) -> None:
    with Session(engine) as session:
        first = Album(title="Kind of Blue", mood=Mood.GOOD)
        session.add(first)
        session.flush()
        assert first.id == 1
        with pytest.raises(sa.exc.IntegrityError), session.begin_nested():
            session.execute(sa.insert(Album).values(id=1, title="again"))
        session.add_all([Album(title=f"number {n}") for n in range(2500)])
        session.commit()
        assert session.scalars(sa.select(Album.title).where(Album.mood == Mood.GOOD)).all() == ["Kind of Blue"]
        assert session.scalar(sa.select(sa.func.count()).select_from(Album)) == 2501


def test_a_transaction_takes_few_requests(service: Service, tables: None) -> None:
    with relay(service.url, lambda _request: PASS) as between:
        engine = sa.create_engine(f"tuplegate://:{service.key}@{between.url.removeprefix('http://')}/")
        assert service.key not in repr(engine.url)
        with engine.connect():
            between.requests.clear()
        with engine.begin() as connection:
            connection.execute(sa.insert(Album), [{"title": f"number {n}"} for n in range(500)])
        assert routes(between) == ["begin", "commit"]
        with engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT").execute(sa.text("select 1"))
        assert routes(between) == ["begin", "commit", "query"]
        engine.dispose()


def test_isolation_is_serializable_or_none(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        assert connection.get_isolation_level() == "SERIALIZABLE"
        assert connection.scalar(sa.text("show transaction_isolation")) == "serializable"
    with engine.connect() as connection, pytest.raises(sa.exc.ArgumentError, match="SERIALIZABLE, AUTOCOMMIT"):
        connection.execution_options(isolation_level="READ COMMITTED")
    with engine.connect() as connection, pytest.raises(sa.exc.InvalidRequestError, match="by itself"):
        connection.begin_twophase()
    with engine.connect() as connection, pytest.raises(sa.exc.InternalError, match="read-only"):
        connection.execution_options(postgresql_readonly=True).execute(sa.text("create table never (id int)"))
    with engine.connect() as connection:
        assert connection.scalar(sa.text("show transaction_read_only")) == "off"


def test_large_results_are_streamed(service: Service, engine: sa.Engine) -> None:
    many = sa.select(sa.func.generate_series(1, sa.bindparam("n", type_=sa.Integer)))
    with engine.connect() as connection:
        result = connection.execution_options(stream_results=True, max_row_buffer=100).execute(many, {"n": 3000})
        assert result.first() == (1,)
    with engine.connect() as connection:
        result = connection.execute(many, {"n": 3000}, execution_options={"yield_per": 500})
        assert vars(result.cursor)["streams"]
        sizes = []
        for part in result.partitions():
            sizes.append(len(part))
            assert connection.scalar(sa.text("select 1")) == 1
        assert sizes == [500] * 6


def test_what_is_there_is_reflected(engine: sa.Engine, tables: None) -> None:
    found = sa.Table("album", sa.MetaData(), autoload_with=engine)
    assert [column.name for column in found.columns] == ["id", "title", "mood"]
    assert found.c.id.identity is not None
    assert isinstance(found.c.mood.type, pg.ENUM)
    assert found.primary_key.columns.keys() == ["id"]


def test_a_connection_that_is_lost_is_replaced(service: Service) -> None:
    """The pool asks before it hands one out, and gives a new one, which finds nobody either."""
    with relay(service.url, lambda _request: PASS) as between:
        url = f"{address(service).rpartition('@')[0]}@{between.url.removeprefix('http://')}/?retries=0"
        engine = sa.create_engine(url, pool_pre_ping=True)
        with engine.connect() as connection:
            assert connection.scalar(sa.text("select 1")) == 1
            first = connection.connection.dbapi_connection
    with engine.connect() as connection:
        assert connection.connection.dbapi_connection is not first
        with pytest.raises(sa.exc.OperationalError, match="cannot be reached") as raised:
            connection.execute(sa.text("select 1"))
        assert raised.value.connection_invalidated
    engine.dispose()


def test_the_same_with_asyncio(service: Service, tables: None) -> None:
    async def run() -> None:
        engine = create_async_engine(address(service).replace("tuplegate:", "tuplegate+async:"), pool_pre_ping=True)
        async with engine.begin() as connection:
            await connection.execute(sa.insert(Album), [{"title": "one"}, {"title": "two"}])
        async with engine.connect() as connection:
            assert (await connection.scalars(sa.select(Album.title).order_by(Album.id))).all() == ["one", "two"]
            streamed = await connection.stream(sa.text("select generate_series(1, 2000)"))
            assert len([row async for row in streamed]) == 2000
            with pytest.raises(sa.exc.DataError):
                await connection.execute(sa.text("select 1/0"))
        async with engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT", postgresql_readonly=True)
            assert await connection.scalar(sa.text("select 1")) == 1
        await engine.dispose()

    asyncio.run(run())


def test_plain_urls_find_the_asynchronous_dialect(service: Service) -> None:
    assert isinstance(create_async_engine(address(service)).dialect, tuplegate.sqlalchemy.AsyncTuplegateDialect)
    assert vars(sa.create_engine(address(service)).dialect)["dbapi"] is dbapi
