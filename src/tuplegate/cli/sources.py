"""Opens a file of any format for import."""

from pathlib import Path

from tuplegate.cli.csv_form import CsvForm
from tuplegate.cli.files import RowSource


def open_source(path: Path, format: str, form: CsvForm) -> RowSource:
    """Open the file. `form` applies to CSV only."""
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
