"""What is decided of PostgreSQL's protocol without an engine: start-ups, texts, and what is asked and answered."""

import struct

import pytest

from tuplegate.data_plane.wire.dumps import replace_question
from tuplegate.data_plane.wire.flow import FAILED, HIDDEN, IDLE, IN_BLOCK, ClientMessages, EngineMessages, Flow, Shown
from tuplegate.data_plane.wire.messages import (
    COPY_DATA,
    COPY_DONE,
    ERROR,
    EXECUTE,
    PARSE,
    QUERY,
    READY,
    SYNC,
    WireError,
    read_fields,
    write_message,
    write_query,
)
from tuplegate.data_plane.wire.startup import (
    AskEncryption,
    CancelRequest,
    Startup,
    check_length,
    read_packet,
    read_wishes,
)
from tuplegate.data_plane.wire.texts import check_reads, judge_text

TIMEOUT_MS = 30_000


def packet(*names_and_values: str, minor: int = 0, major: int = 3) -> bytes:
    return struct.pack(">i", major << 16 | minor) + b"".join(f"{part}\0".encode() for part in names_and_values) + b"\0"


# -- the start --------------------------------------------------------------------------------------------------------


def test_the_packets_that_a_connection_begins_with() -> None:
    assert read_packet(struct.pack(">i", 80877103)) == AskEncryption()
    assert read_packet(struct.pack(">i", 80877104)) == AskEncryption()
    assert read_packet(struct.pack(">ii", 80877102, 77) + b"key.") == CancelRequest(77, b"key.")
    assert read_packet(packet("user", "me", "database", "main")) == Startup(0, {"user": "me", "database": "main"}, [])
    later = read_packet(packet("user", "me", "_pq_.x", "1", minor=9))
    assert later == Startup(9, {"user": "me"}, [b"_pq_.x"])
    assert isinstance(later, Startup)
    assert later.must_negotiate


@pytest.mark.parametrize(
    "body",
    [
        packet("user"),
        packet("", "x"),
        packet("user", "me")[:-1],
        packet("user", "me") + b"\0",
        struct.pack(">i", 3 << 16),
        struct.pack(">ii", 80877102, 77),
        struct.pack(">ii", 80877102, 77) + 300 * b"x",
        packet("user", "me", major=2),
        packet("user", "me", major=-1),
    ],
)
def test_a_start_that_is_none(body: bytes) -> None:
    with pytest.raises(WireError) as refused:
        read_packet(body)
    assert refused.value.sqlstate in ("08P01", "0A000")


@pytest.mark.parametrize("length", [-1, 0, 7, 10_001, 2**30, -(2**31)])
def test_a_length_that_there_cannot_be(length: int) -> None:
    with pytest.raises(WireError, match="8 to 10000"):
        check_length(length, 8, 10_000, "it")


def test_settings_that_do_no_harm_are_taken() -> None:
    wishes = read_wishes(
        {
            "user": "anybody",
            "database": "shop",
            "application_name": "psql",
            "timezone": "Europe/Berlin",
            "options": r"-c search_path=a,b -cDateStyle=ISO\,\ DMY --statement-timeout=5s",
            "replication": "false",
        },
        TIMEOUT_MS,
    )
    assert (wishes.application, wishes.timeout_ms) == ("psql", 5000)
    assert wishes.settings == {
        "TimeZone": "Europe/Berlin",
        "search_path": "a,b",
        "DateStyle": "ISO, DMY",
        "statement_timeout": "5s",
    }


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("replication", "database", "replication"),
        ("replication", "true", "replication"),
        ("role", "tuplegate", "'role' is not taken"),
        ("session_authorization", "x", "not taken"),
        ("default_transaction_read_only", "off", "not taken"),
        ("default_transaction_isolation", "read committed", "not taken"),
        ("options", "-c role=x", "not taken"),
        ("options", "-c work_mem=1GB", "not taken"),
        ("options", "-d 5", "-c name=value"),
        ("options", "-c", "-c name=value"),
        ("options", "-B 100", "-c name=value"),
        ("statement_timeout", "0", "30000 ms at most"),
        ("statement_timeout", "31s", "30000 ms at most"),
        ("statement_timeout", "-1", "30000 ms at most"),
        ("TimeZone", "x" * 2000, "longer"),
    ],
)
def test_settings_that_are_refused(name: str, value: str, says: str) -> None:
    """By their name, with what to do instead."""
    with pytest.raises(WireError, match=says) as refused:
        read_wishes({"user": "me", name: value}, TIMEOUT_MS)
    assert refused.value.sqlstate in ("0A000", "22023")


# -- texts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "begins", "kind"),
    [
        (b"select 1", 1, ""),
        (b"select 1; commit; begin; select 2", 2, ""),
        (b"/* a */ -- b\n do $$ begin commit; end $$", 2, "code"),
        (b";;CALL p()", 1, "code"),
        (b"vacuum", 1, "steps alone"),
        (b"VACUUM (ANALYZE) t ;\n", 1, "steps alone"),
        (b"analyze; insert into t values (1)", 1, "steps"),
        (b"vacuum -- a;b", 1, "steps"),
        (b"Reindex schema public", 1, "steps alone"),
        (b"create index concurrently on t (n)", 1, "more"),
        (b"select pg_notify('a', 'b'); NOTIFY c", 1, ""),
        (b"insert into t values ('prepare transaction')", 1, ""),
        (b"commit", 1, ""),
        (b"", 1, ""),
        ("select 'ä€'".encode(), 1, ""),
        (b"select 'a;b;c;d'; select ';;;'", 1, ""),
        (b"Commit;Rollback;abort and chain;end;end /* a */;select case when true then 1 end, 2", 6, ""),
    ],
)
def test_what_a_text_can_begin(text: bytes, begins: int, kind: str) -> None:
    judged = judge_text(text)
    assert judged.begins == begins
    assert (judged.is_code, judged.has_steps) == (kind == "code", kind.startswith("steps"))
    assert bool(judged.more) == (kind == "more")
    assert judged.is_alone or "alone" not in kind
    assert kind != "steps" or not judged.is_alone


def test_a_text_that_could_end_too_many_transactions() -> None:
    """It would be charged for all of them."""
    for text in (b"select 1;" + b"rollback;" * 1000, b"select 1;" + b"end end " * 40_000):
        with pytest.raises(WireError, match="at most 999 are taken"):
            judge_text(text)


def test_only_one_statement_is_the_end_of_a_transaction() -> None:
    assert judge_text(b"/* a */ Rollback ;").only_ends
    assert not judge_text(b"rollback; insert into t values (1)").only_ends
    assert not judge_text(b"select 1").only_ends


def test_questions_of_pg_dump_are_replaced_by_others_with_the_same_columns() -> None:
    """And nothing else is, however much it looks like one."""
    settings = b"SELECT unnest(setconfig) FROM pg_db_role_setting WHERE setrole = 0 AND setdatabase = '16384'::oid"
    assert replace_question(settings) == b"SELECT NULL::text AS unnest WHERE false"
    of_roles = (
        b"SELECT rolname, unnest(setconfig) FROM pg_db_role_setting s, pg_roles r"
        b" WHERE setrole = r.oid AND setdatabase = '16384'::oid"
    )
    assert replace_question(of_roles) == b"SELECT NULL::name AS rolname, NULL::text AS unnest WHERE false"
    schemas = (
        b"SELECT n.tableoid, n.oid, n.nspname, n.nspowner, n.nspacl, acldefault('n', n.nspowner) AS acldefault"
        b" FROM pg_namespace n"
    )
    assert b"'pg_tuplegate' ELSE n.nspname END AS nspname, n.nspowner" in replace_question(schemas)
    for text in (
        settings + b" ",
        settings + b"\n",
        settings.lower(),
        schemas + b" WHERE true",
        b"select 1",
        settings[1:],
    ):
        assert replace_question(text) is text


@pytest.mark.parametrize(
    "text",
    [
        b"prepare transaction 'x'",
        b"PREPARE /* a /* b */ */ TRANSACTION 'x'",
        b"commit prepared 'x'",
        b"rollback\nprepared 'x'",
        b"select 1; -- a\ncommit--b\nprepared 'x'",
        b";prepare\x0btransaction 'x'",
    ],
)
def test_prepared_transactions_are_the_services_own(text: bytes) -> None:
    with pytest.raises(WireError, match="the service's own"):
        judge_text(text)


def test_comments_that_would_keep_the_engine_busy() -> None:
    with pytest.raises(WireError, match="comments") as refused:
        judge_text(b"/**/" * 20_000 + b"select 1")
    assert refused.value.sqlstate == "54000"


@pytest.mark.parametrize("comment", [b"commit --", b"commit /*"])
def test_comments_are_not_read_again_for_each_word_in_them(comment: bytes) -> None:
    """The event loop waits while a text is looked at, so all looks together go over it once."""
    with pytest.raises(WireError, match="too many words"):
        judge_text(comment * 100 + b"x" * 100_000 + b"\n;")
    judge_text(b"commit; -- then commit -- again\n" * 100)


def runs(flow: Flow) -> bool:
    return flow.is_running


def waits(flow: Flow) -> bool:
    return flow.waits_for_client


# -- what is asked, and what is answered ------------------------------------------------------------------------------


def test_each_query_and_each_sync_is_answered_once() -> None:
    flow = Flow()
    assert not runs(flow)
    for kind in (QUERY, PARSE, EXECUTE, SYNC, PARSE):
        flow.sent(kind)
    flow.note_ready(IDLE)
    assert runs(flow)
    flow.note_ready(IN_BLOCK)
    assert runs(flow)
    assert waits(flow)
    flow.sent(SYNC)
    flow.note_ready(FAILED)
    assert not runs(flow)
    assert flow.status == FAILED


def test_rows_for_a_query() -> None:
    flow = Flow()
    flow.sent(QUERY)
    assert not waits(flow)
    flow.note_rows_wanted()
    assert waits(flow)
    flow.sent(COPY_DATA)
    flow.sent(COPY_DONE)
    assert runs(flow)
    flow.note_ready(IDLE)
    assert not runs(flow)


@pytest.mark.parametrize("early", [False, True], ids=["after the engine asked", "before"])
def test_rows_for_the_extended_protocol(early: bool) -> None:
    """The first Sync is skipped by the engine, and the one behind the rows is answered."""
    flow = Flow()
    for kind in (PARSE, EXECUTE, SYNC):
        flow.sent(kind)
    if not early:
        flow.note_rows_wanted()
    flow.sent(COPY_DATA)
    flow.sent(COPY_DONE)
    flow.sent(SYNC)
    if early:
        flow.note_rows_wanted()
    assert runs(flow)
    flow.note_ready(IDLE)
    assert not runs(flow)


def test_rows_that_the_engine_refuses() -> None:
    """Their end may be on its way already; the engine skips it."""
    flow = Flow()
    flow.sent(QUERY)
    flow.note_rows_wanted()
    flow.note_error()
    flow.note_ready(IDLE)
    flow.sent(COPY_DONE)
    assert not runs(flow)
    flow.sent(QUERY)
    assert runs(flow)
    flow.note_ready(IDLE)
    assert not runs(flow)


def test_messages_of_a_client_however_they_are_cut() -> None:
    sent = [write_query(b"select 1"), write_message(SYNC, b""), write_message(COPY_DATA, b"x" * 1000)]
    whole = b"".join(sent)
    assert ClientMessages(2000).feed(whole) == sent
    one_by_one = ClientMessages(2000)
    assert [message for byte in whole for message in one_by_one.feed(bytes([byte]))] == sent
    assert one_by_one.held == 0


@pytest.mark.parametrize(("size", "count"), [(0, 10_000), (1000, 1_000), (40_000, 20)])
def test_messages_that_come_at_once_are_cut_by_turns(size: int, count: int) -> None:
    """One turn cuts few messages, and few bytes; the rest is counted until it is cut."""
    message = write_message(COPY_DATA, b"x" * size)
    messages = ClientMessages(100_000)
    cut = messages.feed(message * count)
    turns = 1
    while messages.has_more:
        assert messages.held == (count - len(cut)) * len(message)
        more = messages.feed(b"")
        assert len(more) <= 128
        assert sum(map(len, more)) <= 64 * 1024 + len(message)
        cut += more
        turns += 1
    assert (cut, messages.held) == ([message] * count, 0)
    assert turns >= max(count // 128, count * size // 2**17)


@pytest.mark.parametrize(
    ("data", "sqlstate"),
    [
        (b"Q" + struct.pack(">i", 3), "08P01"),
        (b"Q" + struct.pack(">i", -5), "08P01"),
        (b"Q" + struct.pack(">i", 2**30), "54000"),
        (b"p" + struct.pack(">i", 8) + b"abc\0", "08P01"),
        (b"GET / HTTP/1.1\r\n", "08P01"),
        (b"\0\0\0\0\0", "08P01"),
    ],
)
def test_bytes_that_are_no_message(data: bytes, sqlstate: str) -> None:
    with pytest.raises(WireError) as refused:
        ClientMessages(2000).feed(data)
    assert refused.value.sqlstate == sqlstate


def test_answers_are_passed_on_and_some_are_shown() -> None:
    """However they are cut, nothing is lost and nothing is shown twice."""
    row = write_message(ord("D"), bytes(range(256)) * 40)
    error = WireError("12345", "told", "hint").write("ERROR")
    done, hidden = write_message(ord("C"), b"SELECT 1\0"), write_message(ord("C"), b"UNLISTEN\0")
    whole = row + done + hidden + error + row + write_message(READY, b"I")
    for size in (1, 2, 5, 6, 100, len(whole)):
        seen: list[int] = []

        def look(kind: int, message: bytes, seen: list[int] = seen) -> bytes | None:
            seen.append(kind)
            return b"" if message == hidden else b"instead" if message == error else None

        messages = EngineMessages(look, Shown())
        passed = b"".join(messages.feed(whole[at : at + size]) for at in range(0, len(whole), size))
        assert passed == row + done + b"instead" + row + write_message(READY, b"I")
        assert bytes(seen) == b"CCEZ"


def test_an_error_as_the_engine_writes_it() -> None:
    written = WireError("53400", "too many\0", "wait").write("FATAL")
    assert read_fields(written) == {"S": b"FATAL", "V": b"FATAL", "C": b"53400", "M": b"too many", "H": b"wait"}
    assert written[-2:] == b"\0\0"


def test_a_statement_of_the_services_own_is_hidden_until_it_is_answered() -> None:
    flow = Flow()
    flow.sent(QUERY)
    flow.sent(HIDDEN)
    assert (flow.hides, flow.is_running) == (False, True)
    flow.note_ready(IDLE)
    assert (flow.hides, flow.is_running) == (True, True)
    flow.note_ready(IDLE)
    assert (flow.hides, flow.is_running) == (False, False)


# -- what a client sends that nobody asked for -------------------------------------------------------------------------


def test_ends_of_rows_that_nobody_wants_are_bounded() -> None:
    """Outside of statements the engine ignores them; behind one they are counted."""
    flow = Flow()
    for _ in range(5000):
        flow.sent(COPY_DONE)
    assert not flow.is_running
    flow.sent(QUERY)
    for _ in range(1000):
        flow.sent(COPY_DONE)
    with pytest.raises(WireError, match="1000 times"):
        flow.sent(COPY_DONE)
    flow.note_ready(IDLE)
    assert not flow.is_running


def test_more_answers_than_questions_end_the_connection() -> None:
    """What is known of the connection would be wrong from then on."""
    with pytest.raises(WireError, match="more than it was asked"):
        Flow().note_ready(IDLE)


def test_the_type_of_a_long_error_is_seen() -> None:
    """Its text is passed on as it is."""
    seen: list[tuple[int, int]] = []
    messages = EngineMessages(lambda kind, message: seen.append((kind, len(message))), Shown())
    error = write_message(ERROR, b"SERROR\0M" + b"x" * 20_000 + b"\0\0")
    assert b"".join(messages.feed(error[at : at + 1000]) for at in range(0, len(error), 1000)) == error
    assert messages.feed(write_message(READY, b"I")) == write_message(READY, b"I")
    assert seen == [(ERROR, 0), (READY, 6)]


@pytest.mark.parametrize(
    ("text", "copies", "alone"),
    [
        (b"copy t from stdin", 1, True),
        (b'COPY "Odd; ""schema"""."a FROM stdin; \\" ("x, y", "(", ";") FROM stdin;', 1, True),
        (b'copy "stdin" to stdout;', 0, True),
        (b"copy t from stdin; copy u from stdin", 2, False),
        (b"copy t from stdin -- ; copy u from stdin", 2, False),
        (b"copy t from stdin delimiter ';' null 'stdin'", 2, False),
        (b'copy "t from stdin; copy u from stdin', 2, False),
        (b"select 1; copy t from stdin", 1, False),
    ],
)
def test_rows_that_a_text_can_take(text: bytes, copies: int, alone: bool) -> None:
    """A name may hold anything. Where something else is quoted too, the worse is taken."""
    judged = judge_text(text)
    assert (judged.copies, judged.is_alone) == (copies, alone)


@pytest.mark.parametrize("blank", [b" ", b"\n", b" ,"])
def test_a_reader_of_texts_takes_time_by_their_length(blank: bytes) -> None:
    """With time by the square of the length, this would not end."""
    text = b"set session characteristics " + 1_000_000 * blank + b'"'
    check_reads(text, judge_text(text))
