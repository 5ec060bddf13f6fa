"""Makes the OpenAPI 3.1 document of a plane from its route table and the message types: nothing is described twice.

Errors of a route are listed by their status, from the table of errors.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from inspect import cleandoc
from typing import Any

import msgspec

from tuplegate import __version__
from tuplegate.protocol.answers import ErrorAnswer
from tuplegate.protocol.errors import ERRORS

_ALWAYS = ("malformed_request", "internal", "busy", "engine_unavailable", "shutting_down", "request_timeout")
"""Errors that every route can return."""

_WITH_TOKEN = ("unauthenticated", "forbidden", "rate_limited")
_WITH_BODY = ("body_too_large", "unsupported_media_type")
_SAFE_METHODS = ("GET", "OPTIONS")
_BYTES = "application/octet-stream"

# Python and JSON Schema spell the end of a text differently in regular expressions.
_END_OF_TEXT = re.compile(r"\\Z$")

_HEADERS: dict[str, tuple[str, dict[str, Any]]] = {
    "X-Request-Id": ("Names this exchange; the log has it where the service failed.", {"type": "string"}),
    "RateLimit-Policy": ("Where a limit applies: requests, and seconds of the window.", {"type": "string"}),
    "RateLimit": ("Where a limit applies: requests left, and seconds until there are more.", {"type": "string"}),
    "Retry-After": ("Seconds to wait before trying again.", {"type": "string", "pattern": "^[0-9]+$"}),
    "WWW-Authenticate": ("How to authenticate.", {"type": "string", "const": "Bearer"}),
    "Allow": ("The methods that the path takes.", {"type": "string"}),
    "Tuplegate-Position": ("Where there are replicas: how far the engine was, to be sent back.", {"type": "string"}),
    "Tuplegate-Served-By": ("Of a read with `snapshot`: who answered it.", {"enum": ["primary", "replica"]}),
    "Idempotency-Replayed": ("It is the answer of an earlier request.", {"type": "string", "const": "true"}),
    "Neon-Batch-Isolation-Level": ("The level that the batch ran at.", {"enum": ["RepeatableRead", "Serializable"]}),
    "Neon-Batch-Read-Only": ("As it was sent.", {"type": "string", "const": "true"}),
    "Neon-Batch-Deferrable": ("As it was sent.", {"type": "string", "const": "true"}),
    "Tuplegate-Replayed": ("It is the answer of an earlier request.", {"type": "string", "const": "true"}),
}  # fmt: skip
_ALWAYS_THERE = frozenset({"X-Request-Id", "Retry-After", "WWW-Authenticate", "Allow"})
"""Headers that are always in an answer that lists them; the others are optional."""

_OF_STATUS = {204: ("Allow",), 401: ("WWW-Authenticate",), 429: ("Retry-After",), 503: ("Retry-After",)}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the query string, or a header of the request."""

    name: str
    schema: Mapping[str, Any]
    meaning: str
    place: str = "query"


@dataclass(frozen=True, slots=True)
class OwnProtocol:
    """Describes how a route with a protocol of its own differs from the others.

    `alternative` is another type of its answer, `error` its type of errors, and `statuses` are instead of those of the
    table of errors. `has_token` says that the token can come as a parameter of the route's own.
    """

    alternative: type[msgspec.Struct] | None = None
    error: type[msgspec.Struct] = ErrorAnswer
    statuses: Mapping[int, int] = field(default_factory=dict)
    has_token: bool = False


@dataclass(frozen=True, slots=True)
class Description:
    """The description of a route's request and answer, beyond its path and its scope.

    `answer` is the type of the answer's JSON, sent with `status`, or its media type if it is not JSON. `also` are other
    media types of the answer, each with an example. `body` describes the request in the same way. `errors` are codes of
    this route; those with the status of the answer come as a `failure` in its place. `other` are types of answers with
    other statuses. `headers` are those that the answer may have.
    """

    answer: type[msgspec.Struct] | str = ""
    status: int = 200
    failure: type[msgspec.Struct] = ErrorAnswer
    body: type[msgspec.Struct] | str = ""
    body_required: bool = True
    parameters: tuple[Parameter, ...] = ()
    errors: tuple[str, ...] = ()
    also: tuple[tuple[str, str], ...] = ()
    other: tuple[tuple[int, type[msgspec.Struct]], ...] = ()
    headers: tuple[str, ...] = ()
    own: OwnProtocol = OwnProtocol()
    text: str = ""
    example: Any = None
    """An example of the body."""


@dataclass(frozen=True, slots=True)
class Operation:
    """A row of a route table, as far as it is described. `scope` is None if any token suffices."""

    method: str
    path: str
    summary: str
    scope: str | None
    guarded: bool
    description: Description
    group: str


def write_document(title: str, text: str, operations: list[Operation]) -> bytes:
    """Return the whole document as JSON. Its server is the address it was fetched from."""
    schemas, components = _schemas(operations)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schemas)
    for path, group in {operation.path: operation.group for operation in operations}.items():
        options = Operation("OPTIONS", path, "The methods of the path.", None, False, Description(status=204), group)
        paths[path]["options"] = _operation(options, schemas)
    body = {
        "openapi": "3.1.0",
        "info": {
            "title": title,
            "version": __version__,
            "description": text,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": group} for group in dict.fromkeys(operation.group for operation in operations)],
        "paths": paths,
        "components": {
            "schemas": components,
            "headers": {
                name: {"description": meaning, "required": name in _ALWAYS_THERE, "schema": schema}
                for name, (meaning, schema) in _HEADERS.items()
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "svc_k_… or svc_s_…"}},
        },
    }
    return msgspec.json.encode(body)


def _schemas(operations: Iterable[Operation]) -> tuple[dict[type, Any], dict[str, Any]]:
    """Return a reference to the schema of every message type, and the schemas by name."""
    types: set[type] = {ErrorAnswer}
    for one in (operation.description for operation in operations):
        types.update(kind for kind in (one.answer, one.failure, one.body, one.own.error) if not isinstance(kind, str))
        types.update([one.own.alternative] if one.own.alternative is not None else [])
        types.update(kind for _, kind in one.other)
    known = sorted(types, key=lambda kind: kind.__name__)
    refs, components = msgspec.json.schema_components(known, ref_template="#/components/schemas/{name}")
    return dict(zip(known, refs, strict=True)), {name: _portable(schema) for name, schema in components.items()}


def _portable(schema: Any) -> Any:
    """Return the schema in words that all client generators understand alike, with the same meaning.

    Generators take a field with a default for one that is always there, an object without described fields for one that
    has none, and a list of one allowed value for an enumeration.
    """
    if isinstance(schema, list):
        return [_portable(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _portable(value) for key, value in schema.items() if key not in ("default", "enum", "properties")}
    if "properties" in schema:
        made["properties"] = {name: _portable(value) for name, value in schema["properties"].items()}
    elif made.get("type") == "object":
        made.setdefault("additionalProperties", {})
    if made.get("type") == "array":
        made.setdefault("items", {})
    if isinstance(made.get("pattern"), str):
        made["pattern"] = _END_OF_TEXT.sub("$", made["pattern"])
    if "enum" in schema:
        made |= _choice(schema["enum"])
    if "description" in made:
        made["description"] = cleandoc(made["description"])
    if schema.get("default") is not None:
        default = f"Without it: `{msgspec.json.encode(schema['default']).decode()}`."
        made["description"] = f"{made['description']} {default}" if "description" in made else default
    return made


def _choice(values: list[Any]) -> dict[str, Any]:
    kind = {bool: "boolean", str: "string", int: "integer"}[type(values[0])]
    return {"type": kind, "const": values[0]} if len(values) == 1 else {"type": kind, "enum": values}


def _operation(operation: Operation, schemas: Mapping[type, Any]) -> dict[str, Any]:
    described = operation.description
    name = re.sub(r"[^a-z0-9]+", "_", operation.path.lower()).strip("_") or "banner"
    made: dict[str, Any] = {
        "operationId": f"{operation.method.lower()}_{name}",
        "tags": [operation.group],
        "summary": operation.summary,
    }
    text = [described.text] if described.text else []
    if operation.guarded:
        made["security"] = [{"token": []}, {}] if described.own.has_token else [{"token": []}]
        text.append(f"Needs the scope `{operation.scope}`." if operation.scope else "Any token will do.")
    else:
        made["security"] = [{"token": []}, {}] if "unauthenticated" in described.errors else []
    if text:
        made["description"] = "\n\n".join(text)
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"{(\w+)}", operation.path)
    ]
    parameters += [
        {"name": one.name, "in": one.place, "description": one.meaning, "schema": _portable(dict(one.schema))}
        for one in described.parameters
    ]
    if parameters:
        made["parameters"] = parameters
    if described.body:
        content = _content(described.body, schemas)
        if described.example is not None:
            next(iter(content.values()))["example"] = described.example
        made["requestBody"] = {"required": described.body_required, "content": content}
    made["responses"] = _responses(operation, schemas)
    return made


def _content(kind: type | str, schemas: Mapping[type, Any], *others: type) -> dict[str, Any]:
    if isinstance(kind, str):
        schema = {"type": "string", "format": "binary"} if kind == _BYTES else {"type": "string"}
        return {kind: {"schema": schema}} if kind else {}
    kinds = [schemas[one] for one in (kind, *others)]
    return {"application/json": {"schema": kinds[0] if len(kinds) == 1 else {"oneOf": kinds}}}


def _responses(operation: Operation, schemas: Mapping[type, Any]) -> dict[str, Any]:
    described = operation.description
    by_status: dict[int, list[str]] = {described.status: []}
    for code in dict.fromkeys(_codes(operation)):
        status = ERRORS[code].status
        by_status.setdefault(described.own.statuses.get(status, status), []).append(code)
    alternatives = [] if described.own.alternative is None else [described.own.alternative]
    other = dict(described.other)
    with_token = operation.guarded or "unauthenticated" in described.errors
    responses: dict[str, Any] = {}
    for status, codes in sorted(by_status.items()):
        headers = ["X-Request-Id", *_OF_STATUS.get(status, ())]
        if with_token:
            headers += ["RateLimit-Policy", "RateLimit"]
        if status == described.status:
            content = _content(described.answer, schemas, *alternatives, *([described.failure] if codes else []))
            content |= {media: {"example": example} for media, example in described.also}
            headers += described.headers
        else:
            error = described.own.error
            content = _content(other.get(status, error), schemas, *([error] if status in other else []))
        meaning = "\n".join(f"- `{code}`: {ERRORS[code].meaning}" for code in codes)
        done = "Done." if not codes else 'Done; or, with `"success": false`:\n'
        responses[str(status)] = {
            "description": (done if status == described.status else "") + meaning,
            "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in headers},
            **({"content": content} if content else {}),
        }
    return responses


def _codes(operation: Operation) -> list[str]:
    described = operation.description
    codes = [*described.errors, *_ALWAYS]
    if operation.guarded:
        codes += _WITH_TOKEN
    if described.body:
        codes += _WITH_BODY
    if "{" in operation.path:
        codes.append("not_found")
    if operation.method not in _SAFE_METHODS:
        codes.append("outcome_unknown")
    return codes
