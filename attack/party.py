"""A tenant of the service as its own programs see it: keys, requests, and a record of what was sent and answered."""

import json
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from tests.service import Service

TIMEOUT_S = 120.0
"""Longer than any bound of the service: a request that takes so long hangs."""

_KEPT_MAX = 400
_SHOWN_MAX = 1500


@dataclass(frozen=True)
class Answer:
    """An answer as it came. `status` is 0 where the connection ended without one."""

    status: int
    text: str

    @property
    def body(self) -> dict[str, Any]:
        try:
            found = json.loads(self.text)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def succeeded(self) -> bool:
        return self.status in (200, 201) and self.body.get("success") is True

    @property
    def error(self) -> dict[str, Any]:
        found = self.body.get("error")
        return found if isinstance(found, dict) else {}

    @property
    def sqlstate(self) -> str | None:
        return self.error.get("sqlstate")

    @property
    def rows(self) -> list[dict[str, Any]]:
        return list(self.body.get("rows", []))


@dataclass
class Party:
    """An organization with its first database `main`. `answers` are the latest ones, with what they answer."""

    service: Service
    id: str
    name: str
    keys: dict[str, str]
    sent: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_MAX))
    texts: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_MAX))
    _clients: dict[tuple[str, str], httpx.Client] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, scope: str, method: str, path: str, *, control: bool = False, **more: Any) -> Answer:
        """Send a request with the key of that scope, to the data plane or the control plane."""
        shown = str(more.get("json") or more.get("content") or "")[:_SHOWN_MAX]
        try:
            got = self._client(scope, control).request(method, path, **more)
            answer = Answer(got.status_code, got.text)
        except httpx.HTTPError as exc:
            answer = Answer(0, f"{type(exc).__name__}: {exc}")
        self.sent.append(f"{scope} {method} {path} {shown} -> {answer.status} {answer.text[:300]}")
        self.texts.append(answer.text)
        return answer

    def query(self, sql: str, params: Sequence[Any] | None = None, *, scope: str = "write", **more: Any) -> Answer:
        headers = more.pop("headers", None)
        body = {"sql": sql, **more} if params is None else {"sql": sql, "params": list(params), **more}
        return self.ask(scope, "POST", "/v1/query", json=body, headers=headers)

    def transaction(self, *statements: str, scope: str = "write", **more: Any) -> Answer:
        headers = more.pop("headers", None)
        return self.ask(
            scope, "POST", "/v1/transaction", json={"statements": list(statements), **more}, headers=headers
        )

    def must(self, sql: str, params: Sequence[Any] | None = None, *, scope: str = "write") -> Answer:
        """Run a statement that prepares an attack; it is no finding that it fails, but the attack proves nothing."""
        answer = self.query(sql, params, scope=scope)
        assert answer.succeeded, f"the attack could not be prepared: {sql[:300]} -> {answer.text[:500]}"
        return answer

    def value(self, sql: str, *, scope: str = "write") -> Any:
        return next(iter(self.must(sql, scope=scope).rows[0].values()))

    @property
    def database(self) -> str:
        """The engine's name of its database, which any tenant can ask for."""
        return str(self.value("select pg_catalog.current_database() as name"))

    def _client(self, scope: str, control: bool) -> httpx.Client:
        url = self.service.control_url if control else self.service.url
        with self._lock:
            client = self._clients.get((scope, url))
            if client is None:
                headers = {"Authorization": f"Bearer {self.keys[scope]}"}
                limits = httpx.Limits(max_connections=200)
                client = httpx.Client(
                    base_url=url, headers=headers, timeout=TIMEOUT_S, trust_env=False, limits=limits, verify=False
                )
                self._clients[scope, url] = client
            return client

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


def new_party(service: Service, name: str, tier: str = "unlimited") -> Party:
    """Make an organization with an admin, a write and a read key."""
    with httpx.Client(base_url=service.control_url, timeout=TIMEOUT_S, trust_env=False, verify=False) as control:

        def post(path: str, key: str, body: dict[str, Any]) -> dict[str, Any]:
            made = control.post(path, json=body, headers={"Authorization": f"Bearer {key}"})
            assert made.status_code == 201, made.text
            found: dict[str, Any] = made.json()
            return found

        record = post("/v1/organizations", service.key, {"name": name, "tier": tier})
        keys = {"admin": str(record["key"])}
        for scope in ("write", "read"):
            keys[scope] = str(post("/v1/keys", keys["admin"], {"name": scope, "scopes": [scope]})["key"])
    return Party(service, str(record["id"]), name, keys)
