"""The OpenAPI document as clients need it."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from service.schemas import Problem


def document(app: FastAPI) -> dict[str, Any]:
    """What FastAPI writes, with three things put right.

    Errors are problem documents and nothing else; FastAPI's own validation error, which no path
    answers with, is gone; an upload is typed for generators that know OpenAPI 3.0's ``format`` as
    well as for those that know 3.1's ``contentMediaType``.
    """
    if app.openapi_schema:
        return app.openapi_schema
    found = FastAPI.openapi(app)
    schemas = found["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(problem.pop("$defs", {}))
    schemas["Problem"] = problem
    for methods in found["paths"].values():
        for operation in methods.values():
            _only_own_errors(operation["responses"])
    _type_uploads(found)
    return found


def _type_uploads(node: object) -> None:
    """Say of every upload, wherever it stands, that it is binary."""
    if isinstance(node, dict):
        if node.get("contentMediaType") == "application/octet-stream":
            node["format"] = "binary"
        for child in node.values():
            _type_uploads(child)
    elif isinstance(node, list):
        for child in node:
            _type_uploads(child)


def _only_own_errors(responses: dict[str, Any]) -> None:
    automatic = "#/components/schemas/HTTPValidationError"
    for status, response in list(responses.items()):
        content = response.get("content", {})
        if content.get("application/json", {}).get("schema", {}).get("$ref") == automatic:
            del responses[status]
