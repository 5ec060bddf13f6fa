"""How the files that may be open are shared out."""

import pytest

from tuplegate.open_files import WantedFiles


@pytest.mark.parametrize(
    ("files", "connections"),
    [
        (10_000 * 4 + 100 + 200, 10_000),
        (20_000, (20_000 - 300) // 4),
        (1024, (1024 - 300) // 4),
        (256, 16),
        (3, 1),
    ],
)
def test_connections_of_a_kind(files: int, connections: int) -> None:
    wanted = WantedFiles(10_000, 4, 100)
    assert wanted.fit_connections(files) == connections
    assert wanted.files == 40_300
