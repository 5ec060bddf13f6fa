"""Uses every route through the client that is made from the description. It is type-checked and never run."""

from control_client import AuthenticatedClient as ControlClient
from control_client.api.databases import (
    delete_v1_databases_name,
    get_v1_databases,
    get_v1_databases_name,
    get_v1_databases_name_dump,
    patch_v1_databases_name,
    post_v1_databases,
)
from control_client.api.engines_for_operators import (
    get_v1_engines,
    patch_v1_engines_name,
    post_v1_databases_name_move,
)
from control_client.api.keys import (
    delete_v1_keys_id,
    get_v1_keys,
    get_v1_keys_id,
    patch_v1_keys_id,
    post_v1_keys,
    post_v1_keys_id_rotate,
)
from control_client.api.organizations_for_operators import (
    delete_v1_organizations_id,
    get_v1_organizations,
    get_v1_organizations_id,
    patch_v1_organizations_id,
    post_v1_organizations,
)
from control_client.api.sessions import (
    delete_v1_session,
    delete_v1_sessions_id,
    get_v1_session,
    get_v1_sessions,
    post_v1_console_codes,
    post_v1_console_sessions,
    post_v1_session,
    post_v1_session_refresh,
)
from control_client.api.the_organization import get_v1_audit, get_v1_organization, get_v1_usage
from control_client.api.the_service import get_metrics
from control_client.models import (
    CodeMade,
    CodeRequest,
    ConsoleSessionRequest,
    DatabaseAnswer,
    DatabaseChange,
    DatabaseRequest,
    EngineChange,
    KeyChange,
    KeyList,
    KeyMade,
    KeyRequest,
    KeyRequestScopesItem,
    MoveRequest,
    OrganizationChange,
    OrganizationMade,
    OrganizationRequest,
    RotateRequest,
    SessionList,
    SessionOpened,
    SessionRequest,
)
from data_client import AuthenticatedClient as DataClient
from data_client.api.other_protocols import post_sql
from data_client.api.queries import post_v1_query
from data_client.api.the_database import (
    get_bench,
    get_capabilities,
    get_capabilities_name,
    get_storage_test,
    get_tables,
    post_admin_reset,
)
from data_client.api.the_service import get_banner, get_docs, get_health, get_openapi_json
from data_client.api.transactions import (
    get_v1_transaction_id,
    post_v1_transaction,
    post_v1_transaction_begin,
    post_v1_transaction_id_abort,
    post_v1_transaction_id_commit,
    post_v1_transaction_id_query,
    post_v1_transaction_id_rollback,
)
from data_client.models import (
    BeginRequest,
    CommitRequest,
    Health,
    InnerAnswer,
    InnerQueryRequest,
    OpenAnswer,
    QueryAnswer,
    QueryFailure,
    QueryRequest,
    SqlFailure,
    SqlRequest,
    SqlResult,
    StatementItem,
    TablesAnswer,
    TransactionAnswer,
    TransactionRequest,
)

data = DataClient("http://127.0.0.1:8080", token="svc_k_…")
control = ControlClient("http://127.0.0.1:8082", token="svc_k_…")


def queries() -> str:
    answer = post_v1_query.sync(client=data, body=QueryRequest("select $1", params=[1, "a", None]), idempotency_key="k")
    if isinstance(answer, QueryFailure):
        return f"{answer.error.code} {answer.error.position or 0} {answer.request_id}"
    if not isinstance(answer, QueryAnswer):
        return answer.error.message if answer is not None else ""
    row = answer.rows[0]
    value: object = row[0] if isinstance(row, list) else row["a"]
    return f"{value} {answer.columns[0]} {answer.timings.exec_us} {answer.affected_rows + 1}"


def transactions() -> None:
    statements: list[StatementItem | str] = ["select 1", StatementItem("select $1", params=[1])]
    done = post_v1_transaction.sync(client=data, body=TransactionRequest(statements, read_only=True))
    if isinstance(done, TransactionAnswer):
        get_v1_transaction_id.sync(done.transaction_id, client=data)
        post_v1_transaction_id_abort.sync(done.transaction_id, client=data)
        print(done.commit.value, done.results[0].affected_rows)


def other_protocols() -> str:
    answer = post_sql.sync(client=data, body=SqlRequest(query="select $1", params=["1"], array_mode=True))
    if isinstance(answer, SqlFailure):
        return f"{answer.code} {answer.position or 0} {answer.error.code}"
    return f"{answer.fields[0].name} {answer.row_count}" if isinstance(answer, SqlResult) else ""


def open_transactions() -> None:
    opened = post_v1_transaction_begin.sync(client=data, body=BeginRequest(statement="select 1", timeout_ms=1000))
    if not isinstance(opened, OpenAnswer):
        return
    id = opened.transaction_id
    inner = post_v1_transaction_id_query.sync(id, client=data, body=InnerQueryRequest("select 1", sequence=1))
    if isinstance(inner, InnerAnswer):
        print(inner.rows, inner.affected_rows, opened.expires_at)
    post_v1_transaction_id_commit.sync(id, client=data, body=CommitRequest(sequence=2))
    post_v1_transaction_id_rollback.sync(id, client=data)


def database() -> None:
    tables = get_tables.sync(client=data, tuplegate_database="main")
    if isinstance(tables, TablesAnswer):
        print(tables.tables[0].columns[0].nullable, tables.tables[0].size_bytes or 0)
    get_capabilities.sync(client=data)
    get_capabilities_name.sync("joins", client=data)
    get_bench.sync(client=data, seconds=1)
    get_storage_test.sync(client=data, bytes_=1000)
    post_admin_reset.sync(client=data)


def about() -> None:
    health = get_health.sync(client=data)
    if isinstance(health, Health):
        print(health.checks["engine"], health.status.value)
    get_banner.sync(client=data)
    get_openapi_json.sync(client=data)
    get_docs.sync(client=data)
    get_metrics.sync(client=control)


def sessions() -> None:
    opened = post_v1_session.sync(client=control, body=SessionRequest(database="main"))
    if isinstance(opened, SessionOpened):
        print(opened.token, opened.session.database or "all", opened.expires_at.year)
    get_v1_session.sync(client=control)
    post_v1_session_refresh.sync(client=control)
    delete_v1_session.sync(client=control)
    listed = get_v1_sessions.sync(client=control, limit=10)
    if isinstance(listed, SessionList):
        delete_v1_sessions_id.sync(listed.items[0].id, client=control)


def console() -> None:
    made = post_v1_console_codes.sync(client=control, body=CodeRequest(database="main"))
    if isinstance(made, CodeMade):
        print(made.url or "", made.expires_at.year)
        post_v1_console_sessions.sync(client=control, body=ConsoleSessionRequest(made.code))


def databases() -> None:
    made = post_v1_databases.sync(client=control, body=DatabaseRequest("staging"))
    if not isinstance(made, DatabaseAnswer):
        return
    get_v1_databases.sync(client=control, limit=10)
    get_v1_databases_name.sync(made.name, client=control)
    patch_v1_databases_name.sync(made.name, client=control, body=DatabaseChange(delete_protection=False))
    get_v1_databases_name_dump.sync_detailed(made.name, client=control)
    delete_v1_databases_name.sync(made.name, client=control)


def keys() -> None:
    wanted = KeyRequest("reports", [KeyRequestScopesItem.READ], expires_in=60)
    made = post_v1_keys.sync(client=control, body=wanted)
    if not isinstance(made, KeyMade):
        return
    found = get_v1_keys.sync(client=control)
    if isinstance(found, KeyList):
        print(made.key, found.items[0].expires_at, found.next_cursor or "")
    get_v1_keys_id.sync(made.id, client=control)
    patch_v1_keys_id.sync(made.id, client=control, body=KeyChange(expires_in=None))
    post_v1_keys_id_rotate.sync(made.id, client=control, body=RotateRequest(grace_seconds=5))
    delete_v1_keys_id.sync(made.id, client=control)


def organizations() -> None:
    get_v1_organization.sync(client=control)
    get_v1_usage.sync(client=control, since="2026-11-14T23:00:00Z")
    get_v1_audit.sync(client=control, limit=5)
    made = post_v1_organizations.sync(client=control, body=OrganizationRequest("acme"))
    if not isinstance(made, OrganizationMade):
        return
    get_v1_organizations.sync(client=control)
    get_v1_organizations_id.sync(made.id, client=control)
    patch_v1_organizations_id.sync(made.id, client=control, body=OrganizationChange(tier="pro"))
    delete_v1_organizations_id.sync(made.id, client=control)


def engines() -> None:
    get_v1_engines.sync(client=control)
    patch_v1_engines_name.sync("first", client=control, body=EngineChange(weight=2))
    post_v1_databases_name_move.sync("staging", client=control, body=MoveRequest("second"))
