"""Reads the rows of a result as texts: for the service's own statements, which know their types."""

from psycopg.pq.abc import PGresult


def read_text_rows(result: PGresult) -> list[tuple[str | None, ...]]:
    return [
        tuple(
            None if (value := result.get_value(row, column)) is None else value.decode()
            for column in range(result.nfields)
        )
        for row in range(result.ntuples)
    ]
