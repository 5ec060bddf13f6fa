"""OpenAPI 3.1 of a plane, made from its route table and the message types: nothing is described twice.

An error that a route can answer with is listed by its status, from the one table of errors.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from querygate import __version__
from querygate.protocol.answers import ErrorAnswer
from querygate.protocol.errors import ERRORS

_ALWAYS = ("malformed_request", "internal", "busy", "engine_unavailable", "shutting_down", "request_timeout")
"""What every route can answer with."""

_WITH_TOKEN = ("unauthenticated", "forbidden", "rate_limited")
_WITH_BODY = ("body_too_large", "unsupported_media_type")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the URL's query, or a header of the request."""

    name: str
    schema: Mapping[str, Any]
    meaning: str
    place: str = "query"


@dataclass(frozen=True, slots=True)
class Description:
    """What a route takes and gives, beyond its path and its scope.

    `body` is the type of its JSON, or the media type of anything else; `answer` is the type of the answer with the
    status `status`, and `also` are other media types that it can come in. `errors` are codes of its own.
    """

    answer: type | None = None
    status: int = 200
    body: type | str | None = None
    body_required: bool = True
    parameters: tuple[Parameter, ...] = ()
    errors: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    example: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of a route table, as far as it is described. `scope` is None where any token will do."""

    method: str
    path: str
    summary: str
    scope: str | None
    guarded: bool
    description: Description


def document(title: str, url: str, operations: list[Operation]) -> bytes:
    """The whole document as JSON."""
    types = {operation.description.answer for operation in operations} | {
        operation.description.body for operation in operations if isinstance(operation.description.body, type)
    }
    known = sorted((t for t in types if isinstance(t, type)), key=lambda t: t.__name__)
    refs, components = msgspec.json.schema_components([*known, ErrorAnswer], ref_template="#/components/schemas/{name}")
    schemas = dict(zip([*known, ErrorAnswer], refs, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schemas)
    body = {
        "openapi": "3.1.0",
        "info": {"title": title, "version": __version__, "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"}},
        "servers": [{"url": url}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "svc_k_… or svc_s_…"}},
        },
    }
    return msgspec.json.encode(body)


def _operation(operation: Operation, schemas: Mapping[type, Any]) -> dict[str, Any]:
    described = operation.description
    made: dict[str, Any] = {
        "operationId": f"{operation.method.lower()}{re.sub(r'[^a-z0-9]+', '_', operation.path)}".rstrip("_"),
        "summary": operation.summary,
        "responses": _responses(operation, schemas),
    }
    if operation.guarded:
        made["security"] = [{"token": []}]
        made["description"] = f"Needs the scope `{operation.scope}`." if operation.scope else "Any token will do."
    else:
        made["security"] = []
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", operation.path)
    ]
    parameters += [
        {"name": one.name, "in": one.place, "description": one.meaning, "schema": one.schema}
        for one in described.parameters
    ]
    if parameters:
        made["parameters"] = parameters
    if described.body is not None:
        content = _content(described.body, schemas)
        made["requestBody"] = {"required": described.body_required, "content": content}
    return made


def _content(body: type | str, schemas: Mapping[type, Any]) -> dict[str, Any]:
    if isinstance(body, str):
        return {body: {"schema": {"type": "string"}}}
    return {"application/json": {"schema": schemas[body]}}


def _responses(operation: Operation, schemas: Mapping[type, Any]) -> dict[str, Any]:
    described = operation.description
    answer = {} if described.answer is None else _content(described.answer, schemas)
    for media in described.also:
        answer[media] = {"schema": {"type": "string"}}
    responses: dict[str, Any] = {str(described.status): {"description": "Done.", "content": answer}}
    codes = [*_ALWAYS, *described.errors]
    if operation.guarded or "unauthenticated" in described.errors:
        codes += _WITH_TOKEN
    if described.body is not None:
        codes += _WITH_BODY
    if "{" in operation.path:
        codes.append("not_found")
    by_status: dict[int, list[str]] = {}
    for code in dict.fromkeys(codes):
        by_status.setdefault(ERRORS[code].status, []).append(code)
    for status, names in sorted(by_status.items()):
        if str(status) not in responses:
            meaning = "\n".join(f"- `{name}`: {ERRORS[name].meaning}" for name in names)
            responses[str(status)] = {"description": meaning, "content": _content(ErrorAnswer, schemas)}
    return responses
