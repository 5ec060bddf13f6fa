"""Makes `clients/javascript/types/service.d.ts` of the OpenAPI documents of both planes; `--check` only says whether it
is current."""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tuplegate.admission.about import AboutRoutes
from tuplegate.control_plane.routes import build_control_routes
from tuplegate.data_plane.routes import list_data_routes
from tuplegate.protocol.errors import ERRORS
from tuplegate.settings import Settings

TARGET = Path(__file__).parent.parent / "clients" / "javascript" / "types" / "service.d.ts"

_HEAD = "// Made by tools/javascript_types.py of the OpenAPI documents of the service. Do not edit.\n"
_PRIMITIVES = {"integer": "number", "number": "number", "string": "string", "boolean": "boolean", "null": "null"}
_WIDTH = 116


class _Absent:
    """Stands for the parts of a service that only a request needs."""

    def __getattr__(self, name: str) -> "_Absent":
        return self

    def __iter__(self) -> Iterator["_Absent"]:
        return iter(())


def make_documents() -> list[dict[str, Any]]:
    """Return the documents that a service answers with. Nobody asks these routes, so no service is needed."""
    absent: Any = _Absent()
    settings = Settings()
    data = list_data_routes(absent, absent, absent, settings, b"", absent, absent)
    control = build_control_routes(
        absent, absent, absent, absent, absent, absent, absent, settings, {}, absent, absent, absent, None
    )
    abouts = [AboutRoutes(absent, absent, plane, "", {}) for plane in ("data", "control")]
    for about, table in zip(abouts, (data, control), strict=True):
        about.add_to(table)
    return [json.loads(about.document) for about in abouts]


def make_page(documents: list[dict[str, Any]]) -> str:
    """Return a type for every schema of the documents, and the codes of errors."""
    schemas: dict[str, Any] = {}
    for document in documents:
        for name, schema in document["components"]["schemas"].items():
            assert schemas.setdefault(name, schema) == schema, f"the planes describe {name} differently"
    codes = "".join(f"\n  | {json.dumps(code)}" for code in sorted(ERRORS))
    union = f"/** The codes of errors; docs/errors.md says what each means. */\nexport type ErrorCode ={codes};\n"
    return "\n".join([_HEAD, union, *(_declare(name, schema) for name, schema in sorted(schemas.items()))])


def _declare(name: str, schema: Mapping[str, Any]) -> str:
    comment = _comment(schema.get("description", ""), "")
    if "properties" not in schema:
        return f"{comment}export type {name} = {_write(schema)};\n"
    required = schema.get("required", [])
    fields = "".join(
        _comment(field.get("description", ""), "  ") + f"  {key}{'' if key in required else '?'}: {_write(field)};\n"
        for key, field in schema["properties"].items()
    )
    return f"{comment}export interface {name} {{\n{fields}}}\n"


def _comment(text: str, indent: str) -> str:
    text = " ".join(text.split())
    if not text:
        return ""
    if len(text) + len(indent) + 7 <= _WIDTH:
        return f"{indent}/** {text} */\n"
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) + len(indent) + 4 > _WIDTH:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return f"{indent}/**\n" + "".join(f"{indent} * {line}\n" for line in lines) + f"{indent} */\n"


def _write(schema: Mapping[str, Any]) -> str:
    """Return the type that a schema stands for."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return " | ".join(dict.fromkeys(_write(choice) for choice in choices))
    kind = schema.get("type")
    if kind == "array":
        item = _write(schema["items"])
        return f"({item})[]" if "|" in item else f"{item}[]"
    if kind == "object":
        return f"Record<string, {_write(schema['additionalProperties'])}>"
    return "unknown" if kind is None else _PRIMITIVES[kind]


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        sys.stderr.write("usage: python tools/javascript_types.py [--check]\n")
        return 2
    page = make_page(make_documents())
    if not arguments:
        TARGET.write_text(page, "utf-8")
        return 0
    if TARGET.exists() and TARGET.read_text("utf-8") == page:
        return 0
    sys.stderr.write("service.d.ts is not what the routes describe: run `python tools/javascript_types.py`\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
