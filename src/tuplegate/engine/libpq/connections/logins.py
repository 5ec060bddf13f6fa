"""Logins at the engine: conninfos and passwords of the service's own roles, and of those of tenants' databases.

A conninfo consists of libpq's keywords; a later keyword overrides an earlier one. The roles' passwords are derived from
the installation's secret, so they are stored only as the engine's own SCRAM verifiers.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from psycopg import OperationalError, pq

from tuplegate.engine.port import Access, BadUrl

_REFUSED = frozenset({b"options", b"service", b"client_encoding", b"application_name", b"replication"})
_OWN = frozenset({b"target_session_attrs", b"load_balance_hosts"})
"""Options by which libpq would choose among several hosts; the service chooses itself."""
_KEYS = frozenset({b"scram_client_key", b"scram_server_key"})
_LOGIN = frozenset({b"user", b"password", b"passfile"}) | _KEYS
_VERSION_WITH_KEYS = 180000
_SALT_BYTES, _ROUNDS = 16, 4096

_WATCHED = "keepalives_idle=5 keepalives_interval=5 keepalives_count=3 tcp_user_timeout=20000"
"""Notice within seconds, not hours, that the other end of a network connection is gone."""


def read_url(url: str) -> str:
    """Return the conninfo for an engine's URL, or for keywords as libpq takes them."""
    try:
        given = _list_given(url)
    except OperationalError:
        # libpq's own words would repeat the URL, and the password with it.
        raise BadUrl("it is not of the form postgresql://user:password@host:port/database") from None
    hosts, addresses, ports = (len(_find_value(url, keyword).split(",")) for keyword in (b"host", b"hostaddr", b"port"))
    if ports not in (1, max(hosts, addresses)):
        raise BadUrl("it must have one port for all hosts, or one for each")
    refused = sorted(option.keyword.decode() for option in given if option.keyword in _REFUSED)
    if refused:
        raise BadUrl(f"it must not have {refused[0]}: the service sets that itself")
    return _write_options(option for option in given if option.keyword not in _OWN)


def has_password(conninfo: str) -> bool:
    return bool(_find_value(conninfo, b"password"))


class Place(NamedTuple):
    """The address of one server. `host` is a name, an address, the directory of a socket, or empty for the default;
    `address` is the numeric address, if the conninfo has one."""

    host: str
    port: str
    address: str

    @property
    def is_socket(self) -> bool:
        return not self.address and (not self.host or self.host[0] in "/@")

    def at(self, address: str) -> str:
        """Return options to append to a conninfo, so that it leads only to this address of the place."""
        host = f"host='{_quote(self.host)}' " if self.host else ""
        port = f" port={self.port}" if self.port else ""
        return f"{host}hostaddr='{address}'{port} target_session_attrs=any"

    def __str__(self) -> str:
        host = self.host or self.address or "its default socket"
        return f"{host}:{self.port}" if self.port else host


def list_places(conninfo: str) -> list[Place]:
    """Return the places that a conninfo names. There can be several, by libpq's rules: `host=a,b port=1,2`."""
    hosts, addresses, ports = (_find_value(conninfo, keyword).split(",") for keyword in (b"host", b"hostaddr", b"port"))
    count = max(len(hosts), len(addresses))
    if len(ports) == 1:
        ports *= count
    hosts += [""] * (count - len(hosts))
    addresses += [""] * (count - len(addresses))
    return [Place(*place) for place in zip(hosts, ports, addresses, strict=False)]


def where(conninfo: str) -> str:
    """Return the engine's address, for people."""
    return ", ".join(map(str, list_places(conninfo)))


def find_database_name(conninfo: str) -> str:
    """Return the database that the conninfo names, or nothing."""
    return _find_value(conninfo, b"dbname")


def _find_value(conninfo: str, keyword: bytes) -> str:
    values = {option.keyword: option.val for option in pq.Conninfo.parse(conninfo.encode())}
    return (values.get(keyword) or b"").decode()


def add_settings(conninfo: str, database: str, settings: Mapping[str, str], application: str = "tuplegate") -> str:
    """Return a conninfo for one database, with settings in the start-up packet, where neither role nor database
    overrides them."""
    flags = " ".join(f"-c {name}={_escape(value)}" for name, value in settings.items())
    encoding = settings.get("client_encoding", "UTF8")
    return (
        f"{_WATCHED} {conninfo} dbname='{_quote(database)}' client_encoding='{_quote(encoding)}'"
        f" application_name='{_quote(application)}' options='{_quote(flags)}'"
    )


def name_role(database: str, access: Access) -> str:
    """Return the role that runs a tenant's statements: the one that writes, or the one that only reads."""
    return f"{database}_{'r' if access is Access.READ else 'w'}"


def as_tenant(conninfo: str, secret: bytes, database: str, access: Access) -> str:
    """Turn the service's conninfo into that of a role of a tenant's database."""
    return as_role(conninfo, secret, name_role(database, access))


def as_role(conninfo: str, secret: bytes, role: str) -> str:
    """Turn a conninfo into that of a role of the same server; drop the former login."""
    keys = write_keys(secret, role) if _find_value(conninfo, b"scram_client_key") else ""
    password = derive_password(secret, role)
    return f"{strip_login(conninfo)} user='{_quote(role)}' password={password} passfile='' {keys}"


def write_keys(secret: bytes, role: str) -> str:
    """Return options to log in by a role's keys instead of its password, if this libpq has such options.

    Keys are for a server that may be hostile. It could demand so many rounds of hashing of a password that libpq
    computes for an hour, while nothing else runs in this process.
    """
    if pq.version() < _VERSION_WITH_KEYS:
        return ""
    keys = derive_keys(secret, role)
    return f"scram_client_key='{keys.client}' scram_server_key='{keys.server}'"


def strip_login(conninfo: str) -> str:
    return _write_options([option for option in _list_given(conninfo) if option.keyword not in _LOGIN])


def copy_login(place: str, conninfo: str) -> str:
    """Return the conninfo of another server, with the login and the database of `conninfo`."""
    login = _LOGIN | {b"dbname"}
    options = [option for option in _list_given(place) if option.keyword not in login]
    return _write_options([*options, *(option for option in _list_given(conninfo) if option.keyword in login)])


def _list_given(conninfo: str) -> list[pq.ConninfoOption]:
    return [option for option in pq.Conninfo.parse(conninfo.encode()) if option.val is not None]


def _write_options(options: Iterable[pq.ConninfoOption]) -> str:
    return " ".join(f"{o.keyword.decode()}='{_quote((o.val or b'').decode())}'" for o in options)


def split_for_program(conninfo: str) -> tuple[dict[str, str], str]:
    """Return the login for one of the engine's programs: variables, and a conninfo for the rest, without the
    password."""
    given = _list_given(conninfo)
    variables = {(o.envvar or b"").decode(): (o.val or b"").decode() for o in given if o.envvar}
    rest = (o for o in given if not o.envvar and b"password" not in o.keyword and o.keyword not in _KEYS)
    return variables, _write_options(rest)


@lru_cache(maxsize=10_000)
def database_secret(secret: bytes, database: str) -> bytes:
    """Return the secret that signs the service's records in a tenant's database. Each database has its own, so one that
    leaks with a copy opens no other database."""
    return hmac.digest(secret, f"records/{database}".encode(), hashlib.sha256)


def derive_password(secret: bytes, role: str) -> str:
    return hmac.digest(secret, f"role/{role}".encode(), hashlib.sha256).hex()


class Keys(NamedTuple):
    """The forms of a role's password, as text: the verifier that a server stores, and the keys of both sides."""

    verifier: str
    client: str
    server: str


@lru_cache(maxsize=1000)
def derive_keys(secret: bytes, role: str) -> Keys:
    """Return the keys of a role. The salt is derived, too, so that they are the same each time."""
    salt = hmac.digest(secret, f"salt/{role}".encode(), hashlib.sha256)[:_SALT_BYTES]
    salted = hashlib.pbkdf2_hmac("sha256", derive_password(secret, role).encode(), salt, _ROUNDS)
    client, server = (hmac.digest(salted, name, hashlib.sha256) for name in (b"Client Key", b"Server Key"))
    stored = hashlib.sha256(client).digest()
    texts = [base64.b64encode(key).decode() for key in (salt, stored, server, client)]
    return Keys(f"SCRAM-SHA-256${_ROUNDS}:{texts[0]}${texts[1]}:{texts[2]}", texts[3], texts[2])


def _escape(value: str) -> str:
    """Escape a value for the options of a start-up packet, where any white space separates."""
    return re.sub(r"([\\\s])", r"\\\1", value)


def _quote(value: str) -> str:
    """Quote a value for libpq's connection string."""
    return value.replace("\\", "\\\\").replace("'", "\\'")
