"""The base classes of requests and of answers with reasons; errors in the format of RFC 9457."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Annotated, Any, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from model_store.messages import Message


def _moment(value: object) -> object:
    return datetime.fromtimestamp(value, UTC) if isinstance(value, float) else value


Moment = Annotated[datetime, BeforeValidator(_moment)]
"""A time; the service also creates it from seconds since 1970."""


class FieldError(BaseModel):
    """A wrong field of a request."""

    pointer: str
    detail: str


class Problem(BaseModel):
    """An error in the format of RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str = Field(description="Stable name of the kind of error, for programs.")
    request_id: str
    errors: list[FieldError] | None = None


class RequestModel(BaseModel):
    """A part of a request; an unknown field is an error that names the field.

    If unknown fields were ignored, a search with a misspelt filter would find all items. A boolean
    is not a number: `true` is not a limit of 1.
    """

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _holds_known_fields(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        problems = {
            name: f"is not a field here; {suggestion(str(name), cls.model_fields)}"
            for name in value
            if name not in cls.model_fields
        } | {
            name: "should be a number, not true or false"
            for name, one in value.items()
            if isinstance(one, bool) and cls._takes_no_truth(str(name))
        }
        if problems:
            raise ValidationError.from_exception_data(
                cls.__name__,
                [
                    InitErrorDetails(
                        type=PydanticCustomError("not_understood", "{text}", {"text": text}),
                        loc=(name,),
                        input=value[name],
                    )
                    for name, text in problems.items()
                ],
            )
        return value

    @classmethod
    def _takes_no_truth(cls, name: str) -> bool:
        field = cls.model_fields.get(name)
        return field is not None and is_number(field.annotation)


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return a suggestion: the ``known`` name closest to ``name``, or else all known names."""
    names = sorted(known)
    close = get_close_matches(name.lower(), names, n=1)
    if close:
        return f"did you mean `{close[0]}`?"
    return f"known: {', '.join(names)}" if names else "nothing can be set here"


def is_number(annotation: Any) -> bool:  # noqa: ANN401 - any type
    """Return whether a type is a number, or an optional type can be one."""
    members = get_args(annotation)
    kinds = set(members) if type(None) in members else {annotation}
    return not kinds.isdisjoint({int, float})


class ReasonCode(BaseModel):
    """A reason as a code with parameters, for programs and translations."""

    code: str = Field(description="Stable name of the reason, for programs.")
    parameters: dict[str, Any] = Field(
        description="Numbers and texts that the reason's sentence contains. A nested reason has "
        "its own code and parameters."
    )


class HasReason(BaseModel):
    """A record with a ``reason``."""

    reason_code: ReasonCode | None = Field(
        None, description="Code and parameters of `reason`; null without a reason."
    )

    @model_validator(mode="before")
    @classmethod
    def _with_code(cls, values: Any) -> Any:  # noqa: ANN401 - pydantic's
        if isinstance(values, dict) and isinstance(reason := values.get("reason"), Message):
            return {**values, "reason_code": reason.as_json()}
        return values
