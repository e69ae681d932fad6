"""The OpenAPI 3.1 document, made from the table of routes and the fields of the JSON table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from walrq.errors import ERRORS, Code
from walrq.http.routes import READS, ROUTES, Route
from walrq.protocol.json_requests import OPERATIONS
from walrq.protocol.json_values import REQUIRED, Field

_OBJECT: Final = {"type": "object"}
_ERROR: Final[Mapping[str, Any]] = {
    "type": "object",
    "required": ["reply", "code", "name", "text", "definite", "retry", "request_id"],
    "properties": {
        "reply": {"const": "failed"},
        "code": {"type": "integer", "description": "stable number, see docs/errors.md"},
        "name": {"type": "string", "enum": [code.name for code in ERRORS]},
        "text": {"type": "string"},
        "definite": {"type": "boolean", "description": "the operation did not and will not happen"},
        "retry": {"type": "boolean", "description": "the unchanged request may succeed later"},
        "field": {"type": "string", "description": "which field is wrong"},
        "limit": {"description": "the bound that was met"},
        "details": _OBJECT,
        "request_id": {"type": "string"},
    },
}


def _schema(field: Field) -> dict[str, Any]:
    made = dict(field.schema)
    if field.about:
        made["description"] = field.about
    if field.default is not REQUIRED and isinstance(field.default, int | str | bool):
        made["default"] = field.default.name.lower() if hasattr(field.default, "name") else field.default
    return made


def _parameter(field: Field, where: str) -> dict[str, Any]:
    made: dict[str, Any] = {"name": field.name, "in": where, "required": field.default is REQUIRED or where == "path"}
    if field.about:
        made["description"] = field.about
    schema = _schema(field)
    schema.pop("description", None)
    if schema.get("type") == "object":
        return made | {"content": {"application/json": {"schema": schema}}}
    if schema.get("type") == "array":
        made |= {"style": "form", "explode": False}
    return made | {"schema": schema}


def _path_field(name: str, fields: tuple[Field, ...]) -> Field:
    return next(field for field in fields if field.name == name)


def _entry(route: Route) -> dict[str, Any]:
    if not route.op:
        return {
            "summary": route.about,
            "operationId": "request",
            "tags": [route.tag],
            "requestBody": {
                "required": True,
                "content": {
                    "application/json": {
                        "schema": {
                            "type": "object",
                            "required": ["op"],
                            "properties": {"op": {"enum": [each.name for each in OPERATIONS]}},
                        }
                    }
                },
            },
            "responses": _responses(("failed",)),
        }
    operation = route.operation
    captured = route.captured
    beside = [field for field in operation.fields if field.name not in captured]
    made: dict[str, Any] = {
        "summary": route.about or operation.about,
        "operationId": operation.name if "{queue}" in route.path or operation.name != "poll" else "poll_many",
        "tags": [route.tag],
        "parameters": [_parameter(_path_field(name, operation.fields), "path") for name in captured],
    }
    if route.method in READS or route.method == "DELETE":
        made["parameters"] += [_parameter(field, "query") for field in beside]
    elif beside:
        needed = [field.name for field in beside if field.default is REQUIRED]
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {field.name: _schema(field) for field in beside},
            "additionalProperties": False,
        }
        if needed:
            schema["required"] = needed
        made["requestBody"] = {
            "required": bool(needed),
            "content": {"application/json": {"schema": schema}},
        }
    made["responses"] = _responses(operation.replies)
    return made


def _responses(replies: tuple[str, ...]) -> dict[str, Any]:
    good = {
        "description": f"`reply` is {' or '.join(replies)}",
        "headers": {
            "x-request-id": {"schema": {"type": "string"}},
            "walrq-consistency": {"schema": {"enum": ["consistent", "local"]}},
        },
        "content": {"application/json": {"schema": _OBJECT}},
    }
    bad = {
        "description": "see `code`",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    return {"200": good, "default": bad}


def document(version: str) -> dict[str, Any]:
    """The whole document; `version` is walrq's."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _entry(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "walrq",
            "version": version,
            "description": (
                "Every operation of a node. Times are integer milliseconds. A follower passes a request on to the"
                " leader, one hop. Requests are JSON objects, as are all replies; an error's status follows from its"
                f" code, for example {ERRORS[Code.QUEUE_NOT_FOUND].http} for QUEUE_NOT_FOUND."
            ),
        },
        "paths": paths,
        "components": {
            "schemas": {"Error": dict(_ERROR)},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
