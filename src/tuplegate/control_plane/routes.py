"""The route table of the control plane: path, summary, scope and description of each route."""

from tuplegate.access.quotas import Tier
from tuplegate.access.scopes import Scope
from tuplegate.admission.fair_use.allowances import Allowances
from tuplegate.admission.identity import IdentityCache
from tuplegate.admission.long_answers import LongAnswers
from tuplegate.admission.metrics import Metrics
from tuplegate.admission.openapi import Description, Parameter
from tuplegate.admission.plane import Route, RouteTable, put_in_group
from tuplegate.catalog.catalog import Catalog
from tuplegate.control_plane.common import LIMIT_MAX
from tuplegate.control_plane.console_codes import ConsoleCodeRoutes
from tuplegate.control_plane.databases import DatabaseRoutes
from tuplegate.control_plane.dumps import DUMP_TYPE, DumpBounds, DumpRoute
from tuplegate.control_plane.engines import EngineRoutes
from tuplegate.control_plane.keys import KeyRoutes
from tuplegate.control_plane.organizations import OrganizationRoutes
from tuplegate.control_plane.sessions import SessionBounds, SessionRoutes
from tuplegate.engine.port import AllDatabases, DatabaseSizes, Engine
from tuplegate.http.origins import Origin
from tuplegate.protocol import control
from tuplegate.settings import Settings
from tuplegate.tenancy.lifecycle import Lifecycle
from tuplegate.tenancy.moves import Mover

ABOUT = """Sessions, databases, keys and organizations: what is managed rather than queried.

An error has one shape, whatever its status. A field or a parameter that a route does not know is 400. A thing of
another organization is 404. `HEAD` works where `GET` does; other methods are 405.
"""


def build_control_routes(
    catalog: Catalog,
    engine: Engine,
    identities: IdentityCache,
    lifecycle: Lifecycle,
    mover: Mover,
    databases: AllDatabases,
    sizes: DatabaseSizes,
    settings: Settings,
    tiers: dict[str, Tier],
    allowances: Allowances,
    metrics: Metrics,
    long_answers: LongAnswers,
    address: Origin | None,
) -> RouteTable:
    """Return the routes, in the order of the banner. `address` is the plane's own, as others reach it."""
    bounds = SessionBounds(settings.session_lifetime_s, settings.session_cap_s or None)
    sessions = SessionRoutes(catalog, identities, bounds)
    limits = {
        "transaction_statements": settings.transaction_statements_max,
        "body_bytes": settings.body_bytes_max,
        "answer_bytes": settings.answer_bytes_max,
    }
    engines = EngineRoutes(catalog, databases, sizes, identities, mover)
    dump_bounds = DumpBounds(settings.dump_timeout_s, settings.reader_timeout_s, settings.dump_kib_s_min * 1024)
    accepted = settings.accept_weaker_walls
    unaccepted = [] if accepted else [weakness for weakness in engine.weaknesses if weakness.reaches_others]
    organizations = OrganizationRoutes(
        catalog, lifecycle, identities, tiers, allowances, settings.default_tier, limits, unaccepted
    )
    return {
        **put_in_group("Sessions", _build_sessions(sessions)),
        **put_in_group("Sessions", _build_console_codes(ConsoleCodeRoutes(catalog, sessions, address))),
        **put_in_group(
            "Databases",
            _build_databases(DatabaseRoutes(catalog, lifecycle, sizes, identities)),
        ),
        **put_in_group("Databases", _build_dumps(DumpRoute(catalog, engine, dump_bounds, long_answers))),
        **put_in_group("Keys", _build_keys(KeyRoutes(catalog, identities))),
        **put_in_group("The organization", _build_own_organization(organizations)),
        **put_in_group("Organizations, for operators", _build_organizations(organizations)),
        **put_in_group("Engines, for operators", _build_engines(engines)),
        ("GET", "/metrics"): Route(
            "What the service counts, for Prometheus.",
            Scope.OPERATOR,
            guarded=metrics.guarded,
            describes=Description("text/plain"),
        ),
    }


_LIMIT = Parameter("limit", {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX}, "How many at most.")
_PAGE = (_LIMIT, Parameter("cursor", {"type": "string"}, "The `next_cursor` of the page before."))
_TIME = {"type": "string", "examples": ["2026-11-14T23:00:00Z"]}


def _build_sessions(of: SessionRoutes) -> RouteTable:
    opens = Description(
        control.SessionOpened,
        201,
        body=control.SessionRequest,
        body_required=False,
        errors=("unauthenticated", "forbidden", "rate_limited", "not_found"),
        text="The API key comes as Bearer or in the body. A session has its rights, or fewer, and lives for 24 hours or"
        " less.",
        example={"scopes": ["read"], "expires_in": 900},
    )
    shows, refreshes = Description(control.SessionAnswer), Description(control.SessionRefreshed)
    destroys = Description(control.SessionDestroyed)
    lists = Description(control.SessionList, parameters=_PAGE)
    admin = Scope.ADMIN
    return {
        ("POST", "/v1/session"): Route("Open a session with an API key.", None, open=of.create, describes=opens),
        ("GET", "/v1/session"): Route("The session that the token is for.", None, guarded=of.show, describes=shows),
        ("POST", "/v1/session/refresh"): Route("Extend the session.", None, guarded=of.refresh, describes=refreshes),
        ("DELETE", "/v1/session"): Route("Log out.", None, guarded=of.destroy, describes=destroys),
        ("GET", "/v1/sessions"): Route("List open sessions.", admin, guarded=of.index, describes=lists),
        ("DELETE", "/v1/sessions/{id}"): Route("End a session.", admin, guarded=of.end, describes=destroys),
    }


def _build_console_codes(of: ConsoleCodeRoutes) -> RouteTable:
    makes = Description(
        control.CodeMade,
        201,
        body=control.CodeRequest,
        body_required=False,
        errors=("forbidden", "not_found"),
        text="With an API key. The code is good for one session, for a minute; `url` opens the console with it.",
        example={"scopes": ["read"]},
    )
    opens = Description(
        control.SessionOpened,
        201,
        body=control.ConsoleSessionRequest,
        errors=("unauthenticated",),
        text="The code takes the place of a token. It is used up by this.",
        example={"code": "svc_c_…"},
    )
    return {
        ("POST", "/v1/console/codes"): Route(
            "Make a one-time code for the console.", None, guarded=of.create, describes=makes
        ),
        ("POST", "/v1/console/sessions"): Route(
            "Open a session with a one-time code.", None, open=of.exchange, describes=opens
        ),
    }


def _build_databases(of: DatabaseRoutes) -> RouteTable:
    lists = Description(control.DatabaseList, parameters=_PAGE)
    makes = Description(
        control.DatabaseAnswer,
        201,
        body=control.DatabaseRequest,
        errors=("already_exists", "wrong_state", "not_found", "too_many_databases", "organization_full"),
        example={"name": "staging", "clone_of": "main"},
    )
    shows = Description(control.DatabaseAnswer)
    changes = Description(
        control.DatabaseAnswer,
        body=control.DatabaseChange,
        body_required=False,
        errors=("already_exists", "wrong_state"),
        example={"delete_protection": True},
    )
    deletes = Description(control.Gone, errors=("wrong_state", "delete_protected"))
    admin = Scope.ADMIN
    return {
        ("GET", "/v1/databases"): Route("List databases.", admin, guarded=of.index, describes=lists),
        ("POST", "/v1/databases"): Route("Make a database, also as a copy.", admin, guarded=of.create, describes=makes),
        ("GET", "/v1/databases/{name}"): Route("One database.", admin, guarded=of.show, describes=shows),
        ("PATCH", "/v1/databases/{name}"): Route("Rename or protect it.", admin, guarded=of.change, describes=changes),
        ("DELETE", "/v1/databases/{name}"): Route("Delete it.", admin, guarded=of.delete, describes=deletes),
    }


def _build_dumps(of: DumpRoute) -> RouteTable:
    gives = Description(
        DUMP_TYPE,
        errors=("wrong_state", "already_running", "dump_failed", "not_supported"),
        text="The file is what `pg_restore` reads. An answer that is cut off, without the end that its transfer coding"
        " has, is no dump.",
    )
    dump = Route("Dump it into a file.", Scope.ADMIN, guarded=of.answer, describes=gives)
    return {("GET", "/v1/databases/{name}/dump"): dump}


def _build_keys(of: KeyRoutes) -> RouteTable:
    lists = Description(control.KeyList, parameters=_PAGE)
    makes = Description(
        control.KeyMade,
        201,
        body=control.KeyRequest,
        errors=("not_found",),
        example={"name": "reports", "scopes": ["read"]},
    )
    shows = Description(control.KeyAnswer)
    changes = Description(
        control.KeyAnswer,
        body=control.KeyChange,
        body_required=False,
        errors=("wrong_state",),
        example={"name": "weekly reports"},
    )
    revokes = Description(control.KeyAnswer, errors=("wrong_state",))
    rotates = Description(
        control.KeyMade,
        body=control.RotateRequest,
        body_required=False,
        errors=("wrong_state",),
        example={"grace_seconds": 3600},
    )
    admin = Scope.ADMIN
    return {
        ("GET", "/v1/keys"): Route("List API keys.", admin, guarded=of.index, describes=lists),
        ("POST", "/v1/keys"): Route("Make an API key.", admin, guarded=of.create, describes=makes),
        ("GET", "/v1/keys/{id}"): Route("One API key.", admin, guarded=of.show, describes=shows),
        ("PATCH", "/v1/keys/{id}"): Route(
            "Change its name, scopes or expiry.", admin, guarded=of.change, describes=changes
        ),
        ("DELETE", "/v1/keys/{id}"): Route("Revoke it.", admin, guarded=of.revoke, describes=revokes),
        ("POST", "/v1/keys/{id}/rotate"): Route("Give it a new secret.", admin, guarded=of.rotate, describes=rotates),
    }


def _build_own_organization(of: OrganizationRoutes) -> RouteTable:
    shows = Description(control.OwnOrganization, errors=("not_found",))
    used = Description(
        control.UsageList,
        parameters=(
            Parameter("since", _TIME, "The first hour; 24 hours ago without it."),
            Parameter("until", _TIME, "The hour behind the last."),
            Parameter("limit", {**_LIMIT.schema, "default": LIMIT_MAX}, _LIMIT.meaning),
            _PAGE[1],
        ),
    )
    audits = Description(control.AuditList, parameters=_PAGE)
    admin = Scope.ADMIN
    return {
        ("GET", "/v1/organization"): Route("The token's organization.", None, guarded=of.own, describes=shows),
        ("GET", "/v1/usage"): Route("What it used, by hour and database.", admin, guarded=of.usage, describes=used),
        ("GET", "/v1/audit"): Route("Who did what, newest first.", admin, guarded=of.audit, describes=audits),
    }


def _build_organizations(of: OrganizationRoutes) -> RouteTable:
    lists = Description(control.OrganizationList, parameters=_PAGE)
    makes = Description(
        control.OrganizationMade,
        201,
        body=control.OrganizationRequest,
        errors=("already_exists", "not_found", "weaker_walls"),
        example={"name": "acme"},
    )
    shows = Description(control.OrganizationAnswer)
    changes = Description(
        control.OrganizationAnswer,
        body=control.OrganizationChange,
        body_required=False,
        errors=("already_exists",),
        example={"tier": "pro"},
    )
    deletes = Description(control.Gone, errors=("wrong_state",))
    operator = Scope.OPERATOR
    one = "/v1/organizations/{id}"
    return {
        ("GET", "/v1/organizations"): Route("List organizations.", operator, guarded=of.index, describes=lists),
        ("POST", "/v1/organizations"): Route("Make an organization.", operator, guarded=of.create, describes=makes),
        ("GET", one): Route("One organization.", operator, guarded=of.show, describes=shows),
        ("PATCH", one): Route("Change it.", operator, guarded=of.change, describes=changes),
        ("DELETE", one): Route("Delete it.", operator, guarded=of.delete, describes=deletes),
    }


def _build_engines(of: EngineRoutes) -> RouteTable:
    lists = Description(control.EngineList)
    changes = Description(
        control.EngineAnswer,
        body=control.EngineChange,
        body_required=False,
        errors=("not_found",),
        example={"state": "draining"},
    )
    moves = Description(
        control.DatabaseMoved,
        body=control.MoveRequest,
        errors=("not_found", "wrong_state", "move_failed", "not_supported"),
        text="It is answered when the database has arrived. Requests are held at the end of the move, not refused, and"
        " `GET /v1/databases/{name}` shows the state `moving` meanwhile. A move that fails leaves the database where it"
        " was.",
        example={"engine": "second"},
    )
    operator = Scope.OPERATOR
    return {
        ("GET", "/v1/engines"): Route("List engines, with their load.", operator, guarded=of.index, describes=lists),
        ("PATCH", "/v1/engines/{name}"): Route(
            "Change how many databases it takes.", operator, guarded=of.change, describes=changes
        ),
        ("POST", "/v1/databases/{name}/move"): Route(
            "Move a database to another engine.", operator, guarded=of.move, describes=moves
        ),
    }
