"""The tests that SQLAlchemy has for every dialect."""

from typing import Any

import pytest
from sqlalchemy.testing.suite import *  # noqa: F403
from sqlalchemy.testing.suite import IsolationLevelTest as _IsolationLevelTest
from sqlalchemy.testing.suite import ServerSideCursorsTest as _ServerSideCursorsTest

from tests.sqlalchemy_suite.requirements import ONE_LEVEL


class ServerSideCursorsTest(_ServerSideCursorsTest):  # type: ignore[no-redef]  # instead of the suite's
    def _is_server_side(self, cursor: Any) -> bool:
        """As for each driver that the suite knows by name."""
        return bool(cursor.server_side if self.engine.dialect.is_async else cursor.streams)


class IsolationLevelTest(_IsolationLevelTest):  # type: ignore[no-redef]  # instead of the suite's
    @pytest.mark.skip(reason=ONE_LEVEL)
    def test_dialect_user_setting_is_restored(self) -> None:
        """It needs a level beside the default one and AUTOCOMMIT."""
