"""Clients that others' tools make of the description: what they need of it, by rules, and two of them for real."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from bench.peers.install import NotInstalled, install

from tests.service import Service

GENERATORS = Path(__file__).parent.parent / "generators"
INSTALLED = Path.home() / ".cache" / "tuplegate" / "generators"
"""Outside of the repository: installing takes longer than all of these tests."""

PLANES = {"data": "url", "control": "control_url"}
WEBSOCKET = ("GET", "/v2")
"""What no client of OpenAPI calls: a WebSocket's opening."""
NOT_GENERATED = {"post_query", "get_v2"}
"""What openapi-python-client leaves out, with a warning: bodies of plain text. And the WebSocket."""
STRICT = ("--strict", "--no-warn-redundant-casts")
"""The generator casts for safety's sake."""

WITHOUT_SUCCESS = {"Banner", "Health", "OpenApi", "SqlResult", "SqlResults"}
"""Answers that are no success or failure of a request, but say something of the service; and those of a protocol that
has another way to tell."""


@pytest.fixture(scope="module")
def documents(service: Service) -> dict[str, dict[str, Any]]:
    """The descriptions of both planes."""
    urls = {name: f"{getattr(service, plane)}/openapi.json" for name, plane in PLANES.items()}
    return {name: httpx.get(url, trust_env=False, verify=False).json() for name, url in urls.items()}


@pytest.fixture(params=PLANES)
def document(request: pytest.FixtureRequest, documents: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return documents[request.param]


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method != "options":
                yield method.upper(), path, operation


def alternatives(schema: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = schema.get("oneOf") or schema.get("anyOf") or [schema]
    return found


def answers(document: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Of every JSON answer where it is given, and the names of its schemas."""
    for method, path, operation in operations(document):
        for status, answer in operation["responses"].items():
            if "application/json" in answer.get("content", {}):
                schemas = alternatives(answer["content"]["application/json"]["schema"])
                yield f"{method} {path} {status}", [one["$ref"].rpartition("/")[2] for one in schemas]


def named(schema: Any) -> set[str]:
    """Of all schemas inside of this one the names."""
    return set(re.findall(r"#/components/schemas/(\w+)", json.dumps(schema)))


def schemas_of(document: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """These schemas, and all that they name."""
    components = document["components"]["schemas"]
    while more := set().union(*(named(components[name]) for name in names)) - names:
        names = names | more
    return {name: components[name] for name in names}


def parts(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema within a schema, itself too."""
    if isinstance(schema, list):
        for one in schema:
            yield from parts(one)
    elif isinstance(schema, dict):
        yield schema
        for key, value in schema.items():
            for inner in value.values() if key == "properties" else [value]:
                yield from parts(inner)


def test_every_answer_says_by_a_constant_whether_it_is_a_success(document: dict[str, Any]) -> None:
    """So a client knows which fields there are, once it has looked at `success`: never two of one status alike."""
    components = document["components"]["schemas"]
    for where, names in answers(document):
        told = [components[name]["properties"]["success"] for name in names if name not in WITHOUT_SUCCESS]
        assert all(one["type"] == "boolean" for one in told), where
        assert len({one["const"] for one in told}) == len(told), where
        assert all("success" in components[name]["required"] for name in names if name not in WITHOUT_SUCCESS), where


def test_every_answer_lists_the_fields_that_are_always_there(document: dict[str, Any]) -> None:
    """A field that may be null is there all the same; one that may be missing is never null."""
    names = {name for _, names in answers(document) for name in names}
    for name, schema in schemas_of(document, names).items():
        assert schema["required"], name
        for field, value in schema["properties"].items():
            nullable = any(one.get("type") == "null" for one in alternatives(value))
            assert not nullable or field in schema["required"], f"{name}.{field}"


def test_a_request_needs_no_field_that_it_can_do_without(document: dict[str, Any]) -> None:
    """A default makes generators take a field for one that is always there."""
    bodies = named([operation.get("requestBody") for _, _, operation in operations(document)])
    for name, schema in schemas_of(document, bodies).items():
        assert schema["additionalProperties"] is False, name
    whole = [document["components"]["schemas"], [operation for _, _, operation in operations(document)]]
    assert not [part for part in parts(whole) if "default" in part and "properties" not in part]


def test_nothing_is_left_to_be_guessed(document: dict[str, Any]) -> None:
    """An object without a word on its fields is taken for one that has none, and rows would be of type never."""
    words = {"type", "const", "$ref", "anyOf", "oneOf"}
    for name, schema in document["components"]["schemas"].items():
        for part in parts(schema):
            kind = part.get("type")
            assert kind != "object" or "properties" in part or "additionalProperties" in part, (name, part)
            assert kind != "array" or "items" in part, (name, part)
            assert len(part.get("enum", [1, 2])) > 1, (name, part)
            assert all(words & set(value) for value in part.get("properties", {}).values()), (name, part)
    rows = documented_rows(document)
    assert all(one in ({"type": "object", "additionalProperties": {}}, {"type": "array", "items": {}}) for one in rows)


def documented_rows(document: dict[str, Any]) -> list[dict[str, Any]]:
    schemas = document["components"]["schemas"]
    answered = [schemas[name] for name in ("QueryAnswer", "StatementResult") if name in schemas]
    return [row for one in answered for row in alternatives(one["properties"]["rows"]["items"])]


# -- made by others' tools ----------------------------------------------------------------------------------------


def installed(generator: str) -> Path:
    try:
        return install(generator, INSTALLED, GENERATORS)
    except NotInstalled as exc:
        pytest.skip(f"the generator cannot be had: {exc}")


def run(where: Path, *command: str | Path) -> None:
    done = subprocess.run([str(part) for part in command], cwd=where, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def write_documents(documents: dict[str, dict[str, Any]], folder: Path) -> None:
    for name, document in documents.items():
        (folder / f"{name}.json").write_text(json.dumps(document))


def test_a_typescript_program_uses_every_route(documents: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    """By openapi-typescript and openapi-fetch; the compiler is as strict as it can be."""
    if shutil.which("node") is None:
        pytest.skip("there is no Node")
    place = installed("typescript")
    write_documents(documents, tmp_path)
    program = (GENERATORS / "typescript" / "program.ts").read_text()
    for name, document in documents.items():
        used = set(re.findall(rf'\b{name}\.([A-Z]+)\("([^"]+)"', program))
        assert used == {(method, path) for method, path, _ in operations(document)} - {WEBSOCKET}
        run(tmp_path, place / "node_modules/.bin/openapi-typescript", f"{name}.json", "-o", f"{name}.d.ts")
    for file in ("program.ts", "tsconfig.json", "package.json"):
        (tmp_path / file).write_text((GENERATORS / "typescript" / file).read_text())
    (tmp_path / "node_modules").symlink_to(place / "node_modules")
    run(tmp_path, place / "node_modules/.bin/tsc", "--project", ".")


def test_a_python_program_uses_every_route(documents: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    """By openapi-python-client, checked by mypy."""
    place = installed("python")
    write_documents(documents, tmp_path)
    source = GENERATORS / "python"
    program = (source / "program.py").read_text()
    for name, document in documents.items():
        used = set(re.findall(r"\b((?:get|post|patch|delete)_\w+)\.sync", program))
        assert {operation["operationId"] for _, _, operation in operations(document)} - NOT_GENERATED <= used
        made = ("--path", f"{name}.json", "--output-path", f"{name}_client", "--meta", "none")
        run(tmp_path, place / "bin/openapi-python-client", "generate", "--config", source / "config.yaml", *made)
    (tmp_path / "program.py").write_text(program)
    python = place / "bin/python"
    run(tmp_path, sys.executable, "-m", "mypy", *STRICT, "--python-executable", python, "program.py")
