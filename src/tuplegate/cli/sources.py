"""The file of a format, opened to be imported."""

from pathlib import Path

from tuplegate.cli.files import Source


def open_source(path: Path, format: str, null: str) -> Source:
    """`null` is what stands for NULL in CSV; the other formats have a NULL of their own."""
    match format:
        case "csv":
            from tuplegate.cli.csv_file import CsvFile

            return CsvFile(path, null)
        case "ndjson":
            from tuplegate.cli.ndjson_file import NdjsonFile

            return NdjsonFile(path)
        case _:
            from tuplegate.cli.parquet_file import ParquetSource

            return ParquetSource(path)
