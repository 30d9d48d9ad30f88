"""The form of the busiest path, read without what FastAPI makes of forms in general.

FastAPI takes a form apart by the annotations of its model, anew for each request; beside the lease
of an engine as a dependency that is a quarter of what the event loop computes for a search.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fastapi import Request
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile

from service.uploads import MULTIPART, body_of

FormT = TypeVar("FormT", bound=BaseModel)

_check_media_type = body_of(MULTIPART)

REFERENCES = "#/components/schemas/"


def form_body(model: type[BaseModel]) -> dict[str, Any]:
    """What the OpenAPI document says of a path that reads ``model`` with `form_of`."""
    schema = {"$ref": f"{REFERENCES}{model.__name__}"}
    return {"requestBody": {"required": True, "content": {MULTIPART: {"schema": schema}}}}


def form_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The schema that `form_body` refers to."""
    schema: dict[str, Any] = jsonable_encoder(model.model_json_schema(), exclude_none=True)
    return schema


@asynccontextmanager
async def form_of(request: Request, model: type[FormT]) -> AsyncIterator[FormT]:
    """The body of a request as ``model``, whose files are closed in the end.

    As from FastAPI, what was left empty was not sent, and of what was sent twice the last counts.

    Raises
    ------
    UnsupportedMediaType : it says itself that it is no form.
    RequestValidationError : it is not a ``model``.
    HTTPException : it is no form.
    """
    await _check_media_type(request)
    async with request.form() as form:
        sent = {name: value for name, value in form.items() if not _is_empty(value)}
        try:
            read = model.model_validate(sent)
        except ValidationError as error:
            raise RequestValidationError(
                [
                    {**entry, "loc": ("body", *entry["loc"])}
                    for entry in error.errors(include_url=False)
                ]
            ) from None
        yield read


def _is_empty(value: UploadFile | str) -> bool:
    if isinstance(value, str):
        return value == ""
    return value.filename == "" and value.size == 0  # what a browser sends of no file
