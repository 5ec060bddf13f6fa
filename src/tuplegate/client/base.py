"""The part of a client that sends nothing: its address, key and database, and the headers of its requests."""

import os

from tuplegate.client.addresses import DEFAULT_URL, check_key, check_url
from tuplegate.client.positions import Consistency, Positions, check_consistency


class ClientBase:
    def __init__(
        self,
        url: str | None,
        api_key: str | None,
        control_url: str | None,
        database: str | None,
        timeout_s: float,
        consistency: Consistency | None,
    ) -> None:
        self.url = check_url(url or os.environ.get("TUPLEGATE_URL") or DEFAULT_URL)
        given = control_url or os.environ.get("TUPLEGATE_CONTROL_URL")
        self._given_control_url = check_url(given) if given else None
        self._api_key = api_key or os.environ.get("TUPLEGATE_API_KEY") or ""
        if not self._api_key:
            raise ValueError("there is no API key: give api_key, or set TUPLEGATE_API_KEY")
        check_key(self._api_key)
        self.timeout_s = timeout_s
        self.consistency = None if consistency is None else check_consistency(consistency)
        self._is_secure = any(address.startswith("https:") for address in (self.url, self._given_control_url or ""))
        self.database: str | None = None
        self._headers: dict[str, str] = {}
        self.use_database(database)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    def use_database(self, name: str | None) -> None:
        """Use another database from now on, if the key is for all of them; None for the default one."""
        self.database = name
        self._headers = {} if name is None else {"Tuplegate-Database": name}

    def _read_headers(self, positions: Positions, consistency: Consistency | None) -> dict[str, str]:
        """Return the headers of a request that a replica may answer."""
        consistency = self.consistency if consistency is None else check_consistency(consistency)
        return {**self._headers, **positions.headers(consistency)}
