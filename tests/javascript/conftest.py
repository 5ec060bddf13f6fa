"""The packed client, made once for all tests of it."""

from pathlib import Path

import pytest

from tests.javascript.package import make_package


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a program that uses the package."""
    folder = tmp_path_factory.mktemp("javascript")
    make_package(folder)
    return folder
