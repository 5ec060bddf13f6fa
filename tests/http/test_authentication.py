"""Who may ask: tokens, and what a key that only reads cannot do."""

import os
import subprocess
import sys
from collections.abc import Iterator

import httpx
import psycopg
import pytest

from tests.needs import Abilities, by_words, needs
from tests.service import Service, Sql
from tests.waiting import eventually
from tuplegate.access.tokens import RANDOM_BYTES, TokenKind, make_token, read_token


def token_id(token: str) -> str:
    """The public id of a well-formed token."""
    known = read_token(token.encode())
    assert known is not None
    return known[1]


def ask(service: Service, authorization: str | None, path: str = "/query") -> httpx.Response:
    headers = {"Content-Type": "text/plain"} | ({} if authorization is None else {"Authorization": authorization})
    return httpx.post(service.url + path, content="select 1", headers=headers, trust_env=False, verify=False)


def check_unauthenticated(answer: httpx.Response) -> None:
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    body = answer.json()
    assert body["success"] is False
    assert body["error"]["code"] == "unauthenticated"
    assert body["request_id"] == answer.headers["X-Request-Id"]


def new_key(service: Service, *scopes: str) -> str:
    command = [
        sys.executable,
        "-m",
        "tuplegate",
        "key",
        "create",
        "--data-dir",
        str(service.data_dir),
        "--name",
        "test",
    ]
    command += [f"--scope={scope}" for scope in scopes]
    made = subprocess.run(command, capture_output=True, text=True, check=True, env=service.environment)
    return made.stdout.removeprefix("key: ").strip()


# -- tokens ------------------------------------------------------------------------------------------------------


def test_a_request_without_a_token_is_unauthenticated(service: Service) -> None:
    """The hint shows the header to send."""
    answer = ask(service, None)
    check_unauthenticated(answer)
    assert "Authorization: Bearer" in answer.json()["error"]["hint"]


@pytest.mark.parametrize(
    "header",
    [
        "", "Bearer", "Bearer x", "Bearer svc_k_", "Basic c3ZjOng=", "{key}", "Bearer{key}",
        "Bearer {key}x", "Bearer {key} x", "Bearer {key},", "Bearer \"{key}\"", "Token {key}", "Bearer Bearer {key}",
        "Bearer {key}, Bearer {key}", "Bearer svc_s_{tail}", "Bearer SVC_K_{tail}", "Bearer {key}{key}", "Bearer {cut}",
    ],
)  # fmt: skip
def test_a_malformed_token_is_unauthenticated_and_never_echoed(service: Service, header: str) -> None:
    """Whatever is around the key, it is not in the answer."""
    key = service.key
    answer = ask(service, header.format(key=key, tail=key[6:], cut=key[:-1]))
    check_unauthenticated(answer)
    assert key[6:-1] not in answer.text


def test_bytes_that_are_no_text_are_unauthenticated(service: Service) -> None:
    """A token of any bytes gets an answer."""
    headers = {b"Authorization": b"Bearer \xff\xfe\x80", b"Content-Type": b"text/plain"}
    check_unauthenticated(
        httpx.post(service.url + "/query", content="select 1", headers=headers, trust_env=False, verify=False)
    )


def test_an_unknown_key_is_unauthenticated(service: Service) -> None:
    """Well formed, checksum right, made by nobody here; also the second time, when the answer is remembered."""
    unknown = make_token(TokenKind.KEY, os.urandom(RANDOM_BYTES)).text
    for _ in range(2):
        check_unauthenticated(ask(service, f"Bearer {unknown}"))


def test_a_known_id_with_another_secret_is_unauthenticated(service: Service) -> None:
    """The public id alone opens nothing."""
    real = token_id(service.key)
    number = 0
    for letter in real + "A" * 33:
        number = number * 62 + "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz".index(letter)
    forged = make_token(TokenKind.KEY, number.to_bytes(RANDOM_BYTES, "big"))
    assert forged.id == real
    check_unauthenticated(ask(service, f"Bearer {forged.text}"))


@pytest.mark.parametrize("position", [0, 6, 20, 40, -1])
def test_a_typo_is_unauthenticated(service: Service, position: int) -> None:
    """One wrong letter anywhere."""
    letters = list(service.key)
    letters[position] = "x" if letters[position] != "x" else "y"
    check_unauthenticated(ask(service, f"Bearer {''.join(letters)}"))


@pytest.mark.parametrize("header", ["bearer {}", "BEARER {}", "Bearer   {}"])
def test_the_scheme_is_read_as_http_says(service: Service, header: str) -> None:
    """RFC 9110 §11.1: the scheme's case does not matter, nor how many blanks follow it."""
    assert ask(service, header.format(service.key)).status_code == 200


@pytest.mark.parametrize("path", ["/", "/health"])
def test_banner_and_health_need_no_key(service: Service, path: str) -> None:
    """Nor does a bad key do them harm."""
    for headers in ({}, {"Authorization": "Bearer nonsense"}):
        answer = httpx.get(service.url + path, headers=headers, trust_env=False, verify=False)
        assert answer.status_code == 200
        assert answer.json()["version"] == "0.61.0"
        assert answer.headers["X-Request-Id"].startswith("req_")


def test_the_banner_lists_the_routes(service: Service) -> None:
    """With one line each."""
    endpoints = httpx.get(service.url + "/", trust_env=False, verify=False).json()["endpoints"]
    assert {"POST /v1/query", "POST /query", "GET /health", "GET /"} <= set(endpoints)
    assert all(endpoints.values())


def test_health_names_engine_and_checks(service: Service) -> None:
    """A person sees at a glance what is running."""
    body = httpx.get(service.url + "/health", trust_env=False, verify=False).json()
    assert body["status"] == "ok"
    kind, version = body["engine"]["kind"], body["engine"]["version"]
    assert (kind, version[:3]) == ("postgresql", "18.") or (service.engine and kind in ("postgresql", "cockroachdb"))
    assert set(body["checks"].values()) == {"ok"}


# -- databases ---------------------------------------------------------------------------------------------------


def test_the_database_can_be_named(sql: Sql) -> None:
    """`main` is the default database, so both ways lead to the same."""
    default = sql.value("select current_database()")
    sql.client.headers["Tuplegate-Database"] = "main"
    assert sql.value("select current_database()") == default


@pytest.mark.parametrize(
    "name", ["nowhere", "MAIN", "postgres", "template1", "tuplegate", "", "main'; --", "main, main", "x" * 5000]
)
def test_an_unknown_database_is_not_found(sql: Sql, name: str) -> None:
    """Names of the engine's own databases among them."""
    sql.client.headers["Tuplegate-Database"] = name
    answer = sql.answer("select 1")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"


def test_the_id_that_the_engine_uses_is_no_name(sql: Sql) -> None:
    """What `current_database()` shows cannot be used to choose."""
    sql.client.headers["Tuplegate-Database"] = sql.value("select current_database()")
    assert sql.answer("select 1").status_code == 404


# -- keys that only read -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(service: Service, read_key: str, abilities: Abilities) -> Iterator[Sql]:
    """The reader's client, over a schema with everything it might try to write through; nothing gets written."""
    insert = "insert into guarded.t values (1)"
    moved = f"select {'is_called' if abilities.can('postgresql') else 'last_value'} from guarded.s"
    with service.client() as client, service.client(read_key) as reader:
        sql = Sql(client)
        sql("create schema guarded")
        sql("create table guarded.t (a int)")
        sql("create sequence guarded.s")
        sql("create view guarded.v as select a from guarded.t")
        if abilities.can("function_plpgsql"):
            sql(f"create function guarded.f() returns void language sql security definer as $$ {insert} $$")
            sql(
                "create procedure guarded.p() language plpgsql security definer as"
                f" $$ begin commit; set transaction read write; {insert}; end $$"
            )
        before = sql.value(moved)
        yield Sql(reader)
        assert sql.value("select count(*) from guarded.t") == 0
        assert sql.value(moved) == before
        sql("drop schema guarded cascade")


def test_a_read_key_reads(guarded: Sql) -> None:
    """Tables, views and functions that write nothing."""
    assert guarded.rows("select * from guarded.t") == []
    assert guarded.rows("select * from guarded.v") == []
    assert guarded.value("select set_config('a.b', 'c', false)") == "c"
    assert guarded.value("show transaction_read_only") == "on"


_writes = needs("function_plpgsql")


@pytest.mark.parametrize(
    "statement",
    by_words([
        "insert into guarded.t values (1)",
        "update guarded.t set a = 1",
        "delete from guarded.t",
        "merge into guarded.t using (select 1 b) x on a = b when not matched then insert values (1)",
        "truncate guarded.t",
        "with x as (insert into guarded.t values (1) returning 1) select * from x",
        pytest.param("select guarded.f()", marks=_writes),
        pytest.param("select guarded.f(), set_config('a.b', 'c', false)", marks=_writes),
        "do $$ begin insert into guarded.t values (1); end $$",
        "do $$ begin perform guarded.f(); end $$",
        "explain analyze insert into guarded.t values (1)",
        "select nextval('guarded.s')",
        "select setval('guarded.s', 5)",
        "create temp table x (a int)",
        "select 1 into temp x",
        "create table guarded.x (a int)",
        "create table x as select 1",
        "drop table guarded.t",
        "comment on table guarded.t is 'x'",
        "grant select on guarded.t to public",
        "select * from guarded.t for update",
        "select lo_create(0)",
        "select lo_from_bytea(0, 'x')",
        pytest.param("copy guarded.t from stdin", marks=needs("copy_query")),
        "create extension hstore",
        "alter role current_user set default_transaction_read_only = off",
        "alter system set work_mem = '1GB'",
        "select pg_cancel_backend(pg_backend_pid())",
        "reindex table guarded.t",
        "checkpoint",
    ]),
)  # fmt: skip
def test_a_read_key_cannot_write(guarded: Sql, statement: str) -> None:
    """The engine itself refuses, so it is 200 and no success."""
    assert guarded.fails(statement)["sqlstate"] in ("25006", "42501")


@pytest.mark.parametrize(
    ("statement", "sqlstates"),
    by_words([
        ("select set_config('transaction_read_only', 'off', false)", {"25001", "25006"}),
        ("select set_config('transaction_read_only', 'off', true), guarded.f()", {"25001", "25006"}),
        ("do $$ begin set transaction read write; insert into guarded.t values (1); end $$", {"25001", "25006"}),
        ("do $$ begin set local transaction_read_only = off; perform guarded.f(); end $$", {"25001", "25006"}),
        ("do $$ begin commit; set transaction read write; insert into guarded.t values (1); end $$", {"2D000"}),
        ("do $$ begin rollback; set transaction read write; insert into guarded.t values (1); end $$", {"2D000"}),
        ("call guarded.p()", {"2D000"}),
        ("do $$ begin call guarded.p(); end $$", {"2D000"}),
    ]),
)  # fmt: skip
def test_a_read_key_cannot_make_itself_write(guarded: Sql, statement: str, sqlstates: set[str]) -> None:
    """Read-only cannot be switched off from inside a statement."""
    assert guarded.fails(statement)["sqlstate"] in sqlstates


def test_read_only_cannot_be_switched_off_for_the_next_statement(guarded: Sql, abilities: Abilities) -> None:
    """Settings that would do it last only as long as their own request."""
    statements = (
        "set default_transaction_read_only = off",
        "select set_config('default_transaction_read_only', 'off', false)",
        "do $$ begin perform set_config('default_transaction_read_only', 'off', false); end $$",
    )
    for statement in filter(abilities.can_run, statements):
        guarded(statement)
        assert guarded.fails("insert into guarded.t values (1)")["sqlstate"] in ("25006", "42501")
    answer = guarded.answer("set transaction read write")
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "transaction_control"


def test_a_read_key_cannot_become_the_writer(guarded: Sql, sql: Sql, abilities: Abilities) -> None:
    """The roles of one database cannot be switched between."""
    writer = sql.value("select current_user")
    statements = (
        f"set role {writer}",
        f"set session authorization {writer}",
        f"select set_config('role', '{writer}', false)",
    )
    for statement in filter(abilities.can_run, statements):
        assert guarded.fails(statement)["sqlstate"] in ("42501", "22023", "0A000")
    assert guarded.value("select current_user") != writer


@pytest.mark.parametrize("accept", ["text/event-stream", "application/x-ndjson"])
def test_a_read_key_cannot_write_in_a_stream(guarded: Sql, accept: str, abilities: Abilities) -> None:
    """The refusal is the stream's error."""
    statements = ["insert into guarded.t values (1) returning a"]
    if abilities.can("function_plpgsql"):
        statements.append("select guarded.f()")
    for statement in statements:
        text = guarded.client.post(
            "/query", content=statement, headers={"Accept": accept, "Content-Type": "text/plain"}
        ).text
        assert "25006" in text or "42501" in text
        assert '"success":true' not in text


def test_a_write_key_writes(service: Service, sql: Sql) -> None:
    """Scope `write` includes reading; admin is not needed."""
    with service.client(new_key(service, "write")) as client:
        writer = Sql(client)
        writer("create table written (a int)")
        assert writer("insert into written values (1)")["affected_rows"] == 1
        assert writer.value("select count(*) from written") == 1
    sql("drop table written")


def test_an_operator_key_alone_may_not_query(service: Service) -> None:
    """It manages the installation; the route needs `read`, which it lacks."""
    answer = ask(service, f"Bearer {new_key(service, 'operator')}")
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "forbidden"


# -- the end of a key, and secrecy -------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["revoked_at = now()", "expires_at = now()"])
def test_a_key_that_ends_is_refused_soon(service: Service, change: str) -> None:
    """Revoked or expired in the catalog while it is in use."""
    key = new_key(service, "read")
    assert ask(service, f"Bearer {key}").status_code == 200
    with psycopg.connect(service.conninfo("tuplegate")) as catalog:
        catalog.isolation_level = psycopg.IsolationLevel.READ_COMMITTED  # the service notes its use at the same time
        done = catalog.execute(f"update api_key set {change} where id = %s", [token_id(key)])
        assert done.rowcount == 1
    eventually(lambda: ask(service, f"Bearer {key}").status_code != 200)
    check_unauthenticated(ask(service, f"Bearer {key}"))


def test_only_a_digest_of_a_key_is_stored(service: Service) -> None:
    """Nothing in the catalog's records holds the secret."""
    with psycopg.connect(service.conninfo("tuplegate")) as catalog:
        rows = str(catalog.execute("select api_key::text from api_key").fetchall())
    assert service.key[:10] in rows  # the hint
    assert service.key[12:-6] not in rows


def test_no_key_is_in_a_log_or_in_the_process_list(service: Service, read_key: str) -> None:
    """Not after successes, refusals, typos and failures of all kinds."""
    for key in (service.key, read_key):
        for authorization in (f"Bearer {key}", f"Bearer {key}x", key, f"Basic {key}"):
            ask(service, authorization)
            ask(service, authorization, "/nowhere")
        with service.client(key) as client:
            Sql(client).answer("select 1/0")
    written = service.log
    for file in [*service.data_dir.rglob("*.log"), *service.data_dir.rglob("log/*")]:
        written += file.read_text(errors="replace")
    processes = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    for key in (service.key, read_key):
        assert key[6:-1] not in written
        assert key[6:-1] not in processes


def test_no_statement_or_value_is_in_the_log(service: Service, sql: Sql) -> None:
    """Literals and parameters stay out of it, also when the engine refuses them."""
    secret = "c0ffee5ecret"
    sql(f"select '{secret}'")
    sql.fails(f"select '{secret}'::int")
    sql.fails("select $1::int", [secret])
    sql.answer(f"selec '{secret}'")
    sql.answer(f"do $$ begin raise log '{secret}'; end $$")
    sql.answer(f"copy (select '{secret}') to stdout")
    written = service.log
    for file in [*service.data_dir.rglob("*.log"), *service.data_dir.rglob("log/*")]:
        written += file.read_text(errors="replace")
    assert secret not in written
