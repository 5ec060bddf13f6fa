"""Python programs that know nothing of us, through a tunnel: asyncpg, SQLAlchemy with psycopg, Django.

Each does the same: types both ways, an error with code and position, a transaction that commits and one that rolls
back, 10,000 rows, a cancelled statement.
"""

import asyncio
import datetime
import decimal
import os
import subprocess
import sys
import uuid
from pathlib import Path

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa

VALUES = {
    "n": 1,
    "big": 2**62,
    "exact": decimal.Decimal("1.10"),
    "half": 0.5,
    "yes": True,
    "words": "ä'\"\\",
    "raw": b"\0\xff",
    "day": datetime.date(2026, 2, 28),
    "at": datetime.datetime(2026, 2, 28, 12, 30, 0, 123456, tzinfo=datetime.UTC),
    "id": uuid.UUID(int=7),
    "list": [1, None, 3],
}
TYPES = ["int", "bigint", "numeric", "float8", "boolean", "text", "bytea", "date", "timestamptz", "uuid", "int[]"]
TABLE = "create table typed (" + ", ".join(f"{name} {kind}" for name, kind in zip(VALUES, TYPES, strict=True)) + ")"


def test_asyncpg(address: str) -> None:
    async def work() -> None:
        connection = await asyncpg.connect(address, ssl=False)
        await connection.execute(TABLE)
        try:
            places = ", ".join(f"${number}" for number in range(1, len(VALUES) + 1))
            await connection.execute(f"insert into typed values ({places})", *VALUES.values())
            assert dict(await connection.fetchrow("select * from typed")) == VALUES
            with pytest.raises(asyncpg.UndefinedColumnError) as failed:
                await connection.fetch("select nothing")
            assert (failed.value.sqlstate, failed.value.position) == ("42703", "8")
            for n, error in ((2, None), (3, ZeroDivisionError())):
                try:
                    async with connection.transaction():
                        await connection.execute("insert into typed (n) values ($1)", n)
                        if error is not None:
                            raise error
                except ZeroDivisionError:
                    pass
            assert [row["n"] for row in await connection.fetch("select n from typed order by n")] == [1, 2]
            async with connection.transaction():
                rows = [row async for row in connection.cursor("select i from generate_series(1, 10000) i")]
            assert len(rows) == 10_000
            with pytest.raises(asyncio.TimeoutError):
                await connection.fetch("select pg_sleep(30)", timeout=0.5)
            assert await connection.fetchval("select 1") == 1
            copied = await connection.copy_records_to_table("typed", records=[(7,), (8,)], columns=["n"])
            assert copied == "COPY 2"
        finally:
            await connection.execute("drop table typed")
            await connection.close()

    asyncio.run(work())


def test_sqlalchemy_with_psycopg(address: str) -> None:
    engine = sa.create_engine(address.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.execute(sa.text(TABLE))
    try:
        typed = sa.Table("typed", sa.MetaData(), autoload_with=engine)
        with engine.begin() as connection:
            connection.execute(typed.insert(), VALUES)
        with engine.connect() as connection:
            assert connection.execute(sa.select(typed)).mappings().one() == VALUES
            with pytest.raises(sa.exc.ProgrammingError) as failed:
                connection.execute(sa.text("select nothing"))
            assert isinstance(failed.value.orig, psycopg.errors.UndefinedColumn)
            connection.rollback()
            connection.execute(typed.delete())
            connection.rollback()
            assert connection.scalar(sa.select(sa.func.count()).select_from(typed)) == 1
            options = connection.execution_options(stream_results=True)
            assert len(options.execute(sa.text("select i from generate_series(1, 10000) i")).all()) == 10_000
    finally:
        with engine.begin() as connection:
            connection.execute(sa.text("drop table typed"))
        engine.dispose()


DJANGO = """
import os, sys
import django
from django.conf import settings
from django.core.management import call_command

host, port, name = sys.argv[1:]
settings.configure(
    INSTALLED_APPS=["app"],
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "HOST": host, "PORT": port, "NAME": name}},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    USE_TZ=True,
)
django.setup()
call_command("makemigrations", "app", verbosity=0)
call_command("migrate", verbosity=0)

from django.db import DataError, IntegrityError, connection, transaction
from app.models import Book

book = Book.objects.create(title="ä", price="1.10", tags={"x": [1, None]})
book.refresh_from_db()
assert (book.title, str(book.price), book.tags) == ("ä", "1.10", {"x": [1, None]})
assert book.at is not None
try:
    with transaction.atomic():
        Book.objects.create(title="ä", price="2")
except IntegrityError as error:
    assert error.__cause__.sqlstate == "23505"
else:
    raise AssertionError
with transaction.atomic():
    Book.objects.bulk_create([Book(title=str(number), price=number) for number in range(10_000)])
assert Book.objects.count() == 10_001
assert len(list(Book.objects.iterator(chunk_size=1000))) == 10_001
assert Book.objects.filter(tags__x=[1, None]).get() == book
call_command("migrate", "app", "zero", verbosity=0)
with connection.cursor() as cursor:
    cursor.execute("drop table django_migrations")
print("done")
"""
MODELS = """
from django.db import models

class Book(models.Model):
    title = models.CharField(max_length=100, unique=True)
    price = models.DecimalField(max_digits=10, decimal_places=2)
    tags = models.JSONField(default=dict)
    at = models.DateTimeField(auto_now_add=True)
"""


def test_django(address: str, tmp_path: Path) -> None:
    """Its migrations, its transactions and its queries."""
    app = tmp_path / "app"
    (app / "migrations").mkdir(parents=True)
    for file, text in (("__init__.py", ""), ("migrations/__init__.py", ""), ("models.py", MODELS)):
        (app / file).write_text(text)
    place, _, database = address.removeprefix("postgresql://").partition("/")
    host, _, port = place.partition(":")
    done = subprocess.run(
        [sys.executable, "-c", DJANGO, host, port, database],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout == "done\n", done.stderr
