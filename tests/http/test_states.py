"""The lives of keys, sessions and databases against a model of them: random walks over HTTP, checked on both planes.

The model says what must happen by the tables of `tuplegate.access.states`. What a request has changed must hold within
five seconds, on both planes, and until then nothing else is done; what expires is waited for by asking the service.
"""

from dataclasses import dataclass, field
from itertools import count
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from tests.control import Control, new_organization
from tests.service import Service
from tests.waiting import eventually
from tuplegate.access.states import DATABASE, GONE, KEY, SESSION, IllegalTransition, Life

RIGHTS = {
    "read": frozenset({"read"}),
    "write": frozenset({"read", "write"}),
    "admin": frozenset({"read", "write", "admin"}),
}
SCOPES = st.sampled_from(sorted(RIGHTS))
ANY = st.integers(0, 1000)
"""Chooses one of those that there are, by the remainder."""

DATABASES_MAX, DELETIONS_MAX = 3, 1
_numbers = count(1)


@dataclass
class Database:
    id: str
    name: str
    state: str = "active"
    default: bool = False
    protected: bool = False


@dataclass
class Key:
    """`secrets` are those that work, `former` those that do not any more."""

    id: str
    scope: str
    database: Database | None
    secrets: list[str]
    former: list[str] = field(default_factory=list)
    state: str = "active"

    @property
    def lives(self) -> bool:
        return self.state == "active"


@dataclass
class Session:
    """It lives as long as `secret`, which has opened it."""

    token: str
    key: Key
    secret: str
    scope: str
    database: Database | None
    state: str = "active"

    @property
    def lives(self) -> bool:
        if self.state != "active" or not self.key.lives or self.secret not in self.key.secrets:
            return False
        return self.database is None or self.database.state == "active"


@dataclass(frozen=True)
class Expected:
    """What a token must be good for: nothing, or these rights on this database."""

    rights: frozenset[str]
    database: str


def next_state(life: Life, state: str, event: str) -> str | None:
    try:
        return life.after(state, event)
    except IllegalTransition:
        return None


class Lives(RuleBasedStateMachine):
    """One walk: an organization of its own, with its first key to manage everything."""

    service: Service

    def __init__(self) -> None:
        super().__init__()
        self.control: Control = new_organization(self.service).control
        main = self.control.get("/v1/databases/main")
        self.databases = [Database(main["id"], "main", default=True)]
        self.keys: list[Key] = []
        self.sessions: list[Session] = []
        self.deletions = 0
        # Enough to begin with that every rule has something to happen to.
        self.make_database(copy=False, which=0)
        for scope, bound in (("admin", False), ("write", True)):
            self.make_key(scope, bound, 1, expires=False)
            self.open_session(len(self.keys) - 1, None, False, 0)
            self.open_session(len(self.keys) - 1, "read", bound, 1)

    # -- databases ----------------------------------------------------------------------------------------------

    @property
    def active(self) -> list[Database]:
        return [database for database in self.databases if database.state == "active"]

    @precondition(lambda self: len(self.databases) < DATABASES_MAX)
    @rule(copy=st.booleans(), which=ANY)
    def make_database(self, copy: bool, which: int) -> None:
        body = {"name": f"d{next(_numbers)}"}
        if copy:
            body["clone_of"] = pick(self.active, which).name
        made = self.control.post("/v1/databases", body)
        assert made["state"] == DATABASE.after(DATABASE.first, "be made")
        self.databases.append(Database(made["id"], made["name"]))

    @rule(which=ANY)
    def rename_database(self, which: int) -> None:
        self._change_database(pick(self.databases, which), {"name": f"d{next(_numbers)}"})

    @rule(which=ANY, protected=st.booleans())
    def protect_database(self, which: int, protected: bool) -> None:
        self._change_database(pick(self.databases, which), {"delete_protection": protected})

    @rule(which=ANY)
    def move_default(self, which: int) -> None:
        self._change_database(pick(self.databases, which), {"default": True})

    def _change_database(self, database: Database, change: dict[str, Any]) -> None:
        path = f"/v1/databases/{database.name}"
        if database.state == GONE:
            self.control.refused(404, "not_found", "PATCH", path, change)
            return
        database.state = DATABASE.after(database.state, "change")
        self.control.patch(path, change)
        database.name = change.get("name", database.name)
        database.protected = change.get("delete_protection", database.protected)
        if "default" in change:
            for other in self.databases:
                other.default = other is database

    @precondition(lambda self: self.deletions < DELETIONS_MAX and len(self.databases) > 1)
    @rule(which=ANY)
    def delete_database(self, which: int) -> None:
        database = pick(self.databases, which)
        path = f"/v1/databases/{database.name}"
        if database.state == GONE:
            self.control.refused(404, "not_found", "DELETE", path)
        elif database.default:
            self.control.refused(409, "wrong_state", "DELETE", path)
        elif database.protected:
            self.control.refused(409, "delete_protected", "DELETE", path)
        else:
            self.deletions += 1
            database.state = DATABASE.after(DATABASE.after(database.state, "be deleted"), "be removed")
            assert self.control.delete(path)["state"] == database.state
            for key in self.keys:
                if key.database is database:
                    key.state = GONE

    # -- keys ---------------------------------------------------------------------------------------------------

    @rule(scope=SCOPES, bound=st.booleans(), which=ANY, expires=st.booleans())
    def make_key(self, scope: str, bound: bool, which: int, expires: bool) -> None:
        database = pick(self.databases, which) if bound else None
        body: dict[str, Any] = {"name": "k", "scopes": [scope]}
        if database is not None:
            body["database"] = database.name
        if expires:
            body["expires_in"] = 3600
        if database is not None and database.state == GONE:
            self.control.refused(404, "not_found", "POST", "/v1/keys", body)
            return
        made = self.control.post("/v1/keys", body)
        assert made["state"] == KEY.first
        self.keys.append(Key(made["id"], scope, database, [made["key"]]))

    @precondition(lambda self: self.keys)
    @rule(which=ANY, scope=SCOPES)
    def change_key(self, which: int, scope: str) -> None:
        key = pick(self.keys, which)
        if self._happens(key, "change", "PATCH", "", {"scopes": [scope]}) is not None:
            key.scope = scope

    @precondition(lambda self: self.keys)
    @rule(which=ANY, grace=st.sampled_from([0, 600]))
    def rotate_key(self, which: int, grace: int) -> None:
        key = pick(self.keys, which)
        rotated = self._happens(key, "rotate", "POST", "/rotate", {"grace_seconds": grace})
        if rotated is not None:
            kept = key.secrets[-1:] if grace else []
            key.former += [secret for secret in key.secrets if secret not in kept]
            key.secrets = [*kept, rotated["key"]]

    @precondition(lambda self: self.keys)
    @rule(which=ANY)
    def revoke_key(self, which: int) -> None:
        self._happens(pick(self.keys, which), "be revoked", "DELETE", "", None)

    @precondition(lambda self: any(key.lives for key in self.keys))
    @rule(which=ANY)
    def let_key_expire(self, which: int) -> None:
        key = pick([key for key in self.keys if key.lives], which)
        self.control.patch(f"/v1/keys/{key.id}", {"expires_in": 1})
        eventually(lambda: self.control.get(f"/v1/keys/{key.id}")["state"] != "active")
        key.state = KEY.after(key.state, "reach its time")
        self._check_key(key)

    def _happens(self, key: Key, event: str, method: str, path: str, body: Any) -> dict[str, Any] | None:
        """Does to a key what the table allows or not; the answer where it does."""
        path = f"/v1/keys/{key.id}{path}"
        after = next_state(KEY, key.state, event)
        if key.state == GONE:
            self.control.refused(404, "not_found", method, path, body)
            return None
        if after is None:
            self.control.refused(409, "wrong_state", method, path, body)
            return None
        key.state = after
        answer = self.control.ask(method, path, body).json()
        assert answer["success"], answer
        assert answer["state"] == after
        return dict(answer)

    def _check_key(self, key: Key) -> None:
        if key.state == GONE:
            self.control.refused(404, "not_found", "GET", f"/v1/keys/{key.id}")
            return
        shown = self.control.get(f"/v1/keys/{key.id}")
        assert (shown["state"], shown["scopes"]) == (key.state, [key.scope])
        assert shown["database"] == (None if key.database is None else key.database.name)

    # -- sessions -----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.keys)
    @rule(which=ANY, scope=st.none() | SCOPES, bound=st.booleans(), database=ANY)
    def open_session(self, which: int, scope: str | None, bound: bool, database: int) -> None:
        key = pick(self.keys, which)
        wanted = pick(self.databases, database) if bound else None
        body: dict[str, Any] = {} if scope is None else {"scopes": [scope]}
        if wanted is not None:
            body["database"] = wanted.name
        secret = (key.secrets or key.former)[-1]
        asker = self.control.with_token(secret)
        if not key.lives:
            eventually(lambda: asker.ask("POST", "/v1/session", body).status_code == 401)
        elif scope is not None and not RIGHTS[scope] <= RIGHTS[key.scope]:
            asker.refused(403, "forbidden", "POST", "/v1/session", body)
        elif wanted is not None and (wanted.state == GONE or key.database not in (None, wanted)):
            asker.refused(404, "not_found", "POST", "/v1/session", body)
        else:
            made = asker.post("/v1/session", body)
            assert made["session"]["scopes"] == [scope or key.scope]
            self.sessions.append(Session(made["token"], key, secret, scope or key.scope, wanted or key.database))

    @precondition(lambda self: self.sessions)
    @rule(which=ANY)
    def refresh_session(self, which: int) -> None:
        session = pick(self.sessions, which)
        asker = self.control.with_token(session.token)
        if not session.lives:
            eventually(lambda: asker.ask("POST", "/v1/session/refresh").status_code == 401)
            return
        before = asker.get("/v1/session")["session"]["expires_at"]
        session.state = SESSION.after(session.state, "refresh")
        assert asker.post("/v1/session/refresh", status=200)["expires_at"] > before

    @precondition(lambda self: self.sessions)
    @rule(which=ANY)
    def log_out(self, which: int) -> None:
        session = pick(self.sessions, which)
        asker = self.control.with_token(session.token)
        if not session.lives:
            eventually(lambda: asker.ask("DELETE", "/v1/session").status_code == 401)
            return
        session.state = SESSION.after(session.state, "log out")
        assert asker.delete("/v1/session")["state"] == session.state

    # -- what every token is good for ---------------------------------------------------------------------------

    def _expected(self) -> dict[str, Expected | None]:
        """By token; None where it must be refused."""
        [default] = [database for database in self.databases if database.default]
        tokens: dict[str, Expected | None] = {}
        for key in self.keys:
            good = Expected(RIGHTS[key.scope], (key.database or default).id)
            tokens |= dict.fromkeys(key.secrets, good if key.lives else None)
            tokens |= dict.fromkeys(key.former)
        for session in self.sessions:
            rights = RIGHTS[session.scope] & RIGHTS[session.key.scope]
            good = Expected(rights, (session.database or default).id)
            tokens[session.token] = good if session.lives else None
        return tokens

    def _is_good_for(self, token: str, expected: Expected | None) -> bool:
        """Whether both planes do with it what they must."""
        answer = self.control.sql(token).answer("select current_database() as name")
        managed = self.control.with_token(token).ask("GET", "/v1/databases")
        if expected is None:
            return (answer.status_code, managed.status_code) == (401, 401)
        return (
            answer.status_code == 200
            and answer.json()["rows"] == [{"name": expected.database}]
            and managed.status_code == (200 if "admin" in expected.rights else 403)
        )

    @precondition(lambda self: self.keys)
    @rule(which=ANY)
    def use(self, which: int) -> None:
        token, expected = pick(list(self._expected().items()), which)
        eventually(lambda: self._is_good_for(token, expected))

    def teardown(self) -> None:
        """In the end everything is as the model has it."""
        listed = {item["id"]: item for item in self.control.all("/v1/databases")}
        assert set(listed) == {database.id for database in self.active}
        for database in self.active:
            item = listed[database.id]
            assert (item["name"], item["state"], item["default"], item["delete_protection"]) == (
                database.name,
                database.state,
                database.default,
                database.protected,
            )
        for key in self.keys:
            self._check_key(key)
        for token, expected in self._expected().items():
            eventually(lambda token=token, expected=expected: self._is_good_for(token, expected))  # type: ignore[misc]


def pick(things: list[Any], which: int) -> Any:
    return things[which % len(things)]


def test_keys_sessions_and_databases_live_as_their_tables_say(service: Service) -> None:
    """Random walks, the same ones every time. tests/extended walks more, and others."""
    run_walks(service, 4, derandomize=True)


def run_walks(service: Service, count: int, *, derandomize: bool) -> None:
    walk = type("Walk", (Lives,), {"service": service})
    run_state_machine_as_test(
        walk,
        settings=settings(
            max_examples=count,
            stateful_step_count=30,
            deadline=None,
            database=None,
            derandomize=derandomize,
            print_blob=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
