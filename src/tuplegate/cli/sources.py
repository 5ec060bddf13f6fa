"""The file of a format, opened to be imported."""

from pathlib import Path

from tuplegate.cli.csv_form import CsvForm
from tuplegate.cli.files import Source


def open_source(path: Path, format: str, form: CsvForm) -> Source:
    """`form` says how CSV is written down; the other formats have one form."""
    match format:
        case "csv":
            from tuplegate.cli.csv_file import CsvFile

            return CsvFile(path, form)
        case "ndjson":
            from tuplegate.cli.ndjson_file import NdjsonFile

            return NdjsonFile(path)
        case _:
            from tuplegate.cli.parquet_file import ParquetSource

            return ParquetSource(path)
