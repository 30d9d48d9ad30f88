"""The base class of requests, which refuses unknown fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError


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
        return field is not None and bool({int, float} & _kinds(field.annotation))


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return a suggestion: the ``known`` name closest to ``name``, or else all known names."""
    names = sorted(known)
    close = get_close_matches(name.lower(), names, n=1)
    if close:
        return f"did you mean `{close[0]}`?"
    return f"known: {', '.join(names)}" if names else "nothing can be set here"


def _kinds(annotation: Any) -> set[Any]:  # noqa: ANN401 - any type
    """Return the members of an optional type; return any other type as the only member."""
    members = get_args(annotation)
    return set(members) if type(None) in members else {annotation}
