# Made by tools/sync_client.py of asynchronous/control.py. Do not edit.
"""Calls of the control plane: databases, keys, organizations and engines."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any
from urllib.parse import quote

import httpx

from tuplegate.client.addresses import read_control_url
from tuplegate.client.errors import OutcomeUnknown, StreamCut
from tuplegate.client.records import (
    Database,
    Engine,
    Key,
    MovedDatabase,
    Organization,
    Session,
    make_record,
    make_records,
)
from tuplegate.client.requests import Call, drop_none, write_path
from tuplegate.client.retries import AnswerLost, Repeat
from tuplegate.client.synchronous.transport import Transport

_PAGE = 100

_List = list
"""Each collection has a method `list`, so within it the type needs another name."""


Progress = Callable[[int], None]
"""Called with the number of bytes so far."""


class Plane:
    """Sends requests to the control plane. A change is not repeated after a lost answer.

    `known` is its address: as given, or from the banner of the data plane, which is read once.
    """

    def __init__(self, transport: Transport, data_url: str, given: str | None, timeout_s: float) -> None:
        self._transport = transport
        self._data_url = data_url
        self._timeout_s = timeout_s
        self.known = given

    def find(self) -> str:
        """Return the address."""
        if self.known is None:
            call = Call("GET", f"{self._data_url}/", repeat=Repeat.HARMLESS)
            answer = self._transport.call(call, self._transport.start_course(self._timeout_s))
            self.known = read_control_url(answer.body, self._data_url)
        return self.known

    def get(self, path: str) -> Mapping[str, Any]:
        call = Call("GET", self.find() + path, repeat=Repeat.HARMLESS)
        return (self._transport.call(call, self._transport.start_course(self._timeout_s))).body

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        call = Call(method, self.find() + path, None if body is None else json.dumps(body))
        try:
            return (self._transport.call(call, self._transport.start_course(self._timeout_s))).body
        except AnswerLost as error:
            raise OutcomeUnknown(f"{error.message}; it may have been done") from error

    def write(self, path: str, file: IO[bytes], progress: Progress | None) -> int:
        """Write the answer to a file as it arrives, and return the number of bytes. Raise StreamCut if it ends
        early."""
        call = Call("GET", self.find() + path, repeat=Repeat.HARMLESS)
        response = self._transport.open(call, self._transport.start_course(self._timeout_s), "application/octet-stream")
        written = 0
        try:
            for block in response.iter_bytes():
                file.write(block)
                written += len(block)
                if progress is not None:
                    progress(written)
        except httpx.TransportError as exc:
            raise StreamCut("the answer was cut off: what was written is no whole file") from exc
        finally:
            response.close()
        return written

    def list(self, path: str, limit: int | None = None) -> _List[Mapping[str, Any]]:
        """Return the items of all pages, or the first `limit` of them."""
        items: _List[Mapping[str, Any]] = []
        cursor = ""
        while True:
            page = _PAGE if limit is None else min(limit - len(items), _PAGE)
            answer = self.get(f"{path}?limit={page}" + (f"&cursor={quote(cursor, safe='')}" if cursor else ""))
            items += answer["items"]
            cursor = answer.get("next_cursor") or ""
            if not cursor or (limit is not None and len(items) >= limit):
                return items


class Collection:
    """Things of one kind, which the control plane manages."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane


class Databases(Collection):
    """The databases of the organization. Needs the scope admin."""

    def list(self) -> _List[Database]:
        return make_records(Database, self._plane.list("/v1/databases"))

    def get(self, name: str) -> Database:
        return make_record(Database, self._plane.get(write_path("databases", name)))

    def create(self, name: str, *, clone_of: str | None = None) -> Database:
        """Create a database: empty, or as a copy of `clone_of`."""
        answer = self._plane.send("POST", "/v1/databases", drop_none(name=name, clone_of=clone_of))
        return make_record(Database, answer)

    def update(
        self,
        name: str,
        *,
        new_name: str | None = None,
        default: bool | None = None,
        delete_protection: bool | None = None,
    ) -> Database:
        """Change the given fields. `default=True` makes it the default database in place of the current one."""
        changes = drop_none(name=new_name, default=default, delete_protection=delete_protection)
        return make_record(Database, self._plane.send("PATCH", write_path("databases", name), changes))

    def dump(self, name: str, file: IO[bytes], *, progress: Progress | None = None) -> int:
        """Write a dump of the database to a binary file, for `pg_restore`, and return the number of bytes.

        Raises StreamCut if the dump ends early: the file is then useless.
        """
        return self._plane.write(write_path("databases", name) + "/dump", file, progress)

    def move(self, name: str, engine: str, *, organization: str | None = None) -> MovedDatabase:
        """Move the database to another engine. `organization` is the id of its organization, if it is not the key's
        own.

        Needs the scope operator. A move takes as long as its data needs. If the client stops waiting first, this raises
        OutcomeUnknown, and `get` tells the outcome.
        """
        body = drop_none(engine=engine, organization=organization)
        return make_record(MovedDatabase, self._plane.send("POST", write_path("databases", name) + "/move", body))

    def delete(self, name: str) -> None:
        """Delete the database and all its data."""
        self._plane.send("DELETE", write_path("databases", name))


class Keys(Collection):
    """The API keys of the organization. Needs the scope admin."""

    def list(self) -> _List[Key]:
        return make_records(Key, self._plane.list("/v1/keys"))

    def get(self, id: str) -> Key:
        return make_record(Key, self._plane.get(write_path("keys", id)))

    def create(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        database: str | None = None,
        expires_in: int | None = None,
        consistency: str | None = None,
    ) -> Key:
        """Create a key, for one database or for all. The record's `key` is shown only this once.

        With `consistency="snapshot"`, replicas may answer its reads.
        """
        fields = drop_none(
            name=name, scopes=list(scopes), database=database, expires_in=expires_in, consistency=consistency
        )
        return make_record(Key, self._plane.send("POST", "/v1/keys", fields))

    def update(
        self,
        id: str,
        *,
        name: str | None = None,
        scopes: Sequence[str] | None = None,
        expires_in: int | None = None,
        consistency: str | None = None,
    ) -> Key:
        """Change the given fields. `expires_in` is in seconds from now."""
        scopes = None if scopes is None else list(scopes)
        changes = drop_none(name=name, scopes=scopes, expires_in=expires_in, consistency=consistency)
        return make_record(Key, self._plane.send("PATCH", write_path("keys", id), changes))

    def rotate(self, id: str, *, grace_seconds: int | None = None) -> Key:
        """Give the key a new secret. The old one stays valid for `grace_seconds`."""
        answer = self._plane.send("POST", write_path("keys", id) + "/rotate", drop_none(grace_seconds=grace_seconds))
        return make_record(Key, answer)

    def revoke(self, id: str) -> None:
        """End the key and its sessions, everywhere within 5 seconds."""
        self._plane.send("DELETE", write_path("keys", id))


class Sessions(Collection):
    """Open sessions of the organization. Needs the scope admin."""

    def list(self) -> _List[Session]:
        return make_records(Session, self._plane.list("/v1/sessions"))

    def end(self, id: str) -> None:
        """End a session, everywhere within 5 seconds."""
        self._plane.send("DELETE", write_path("sessions", id))


class Organizations(Collection):
    """All organizations of the installation. Needs the scope operator."""

    def list(self) -> _List[Organization]:
        return make_records(Organization, self._plane.list("/v1/organizations"))

    def get(self, id: str) -> Organization:
        return make_record(Organization, self._plane.get(write_path("organizations", id)))

    def create(self, name: str, *, tier: str | None = None) -> Organization:
        """Create an organization with its first database and admin key. The record's `key` is shown only this once."""
        answer = self._plane.send("POST", "/v1/organizations", drop_none(name=name, tier=tier))
        return make_record(Organization, answer)

    def update(
        self,
        id: str,
        *,
        name: str | None = None,
        tier: str | None = None,
        limits: Mapping[str, int | None] | None = None,
    ) -> Organization:
        """Change the given fields. `limits` are changed one by one; None leaves one to the tier and the settings
        again."""
        body = drop_none(name=name, tier=tier, limits=None if limits is None else dict(limits))
        answer = self._plane.send("PATCH", write_path("organizations", id), body)
        return make_record(Organization, answer)

    def delete(self, id: str) -> None:
        self._plane.send("DELETE", write_path("organizations", id))


class Engines(Collection):
    """The engines that databases live on. Needs the scope operator."""

    def list(self) -> _List[Engine]:
        return make_records(Engine, (self._plane.get("/v1/engines"))["items"])

    def update(self, name: str, *, weight: int | None = None, state: str | None = None) -> Engine:
        """Change the share of new databases that the engine takes. With the state `draining` it takes none."""
        return make_record(
            Engine, self._plane.send("PATCH", write_path("engines", name), drop_none(weight=weight, state=state))
        )
