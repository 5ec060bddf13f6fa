"""The examples of docs/connect.md, as they stand there but for the addresses."""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.control import Organization
from tests.service import Service

PAGE = Path(__file__).parents[1] / "docs" / "connect.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TABLE = "create table account (id int primary key, owner text, balance numeric)"
ROWS = "insert into account values (1, 'ada', 100), (2, 'bo', 50)"


@dataclass(frozen=True)
class Example:
    kind: str
    text: str

    def at(self, service: Service, tunnel: str = "") -> str:
        """The text with the addresses of a service, and of a tunnel to it."""
        host, _, port = tunnel.removeprefix("postgresql://").partition("/")[0].partition(":")
        place = service.url.partition("//")[2]
        text = self.text.replace("127.0.0.1:8080", place).replace("127.0.0.1:5432", f"{host}:{port}")
        return text.replace('"PORT": "5432"', f'"PORT": "{port}"')


def list_examples(*kinds: str) -> list[Example]:
    found = [Example(match[1], match[2]) for match in _BLOCK.finditer(PAGE.read_text("utf-8"))]
    return [example for example in found if not kinds or example.kind in kinds]


def prepare(organization: Organization) -> None:
    """Make what the examples use: a table with rows, and an empty database."""
    sql = organization.control.sql()
    sql(TABLE)
    sql(ROWS)
    organization.control.post("/v1/databases", {"name": "copy"})
