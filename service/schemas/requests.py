"""The base of what clients send: nothing that it holds is passed over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError


class RequestModel(BaseModel):
    """A part of a request: a field that it does not declare is refused by name.

    A field that is left out in silence would change the answer: without a misspelt filter all items
    are found. A truth value is no number: `true` is not a limit of 1.
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
            name: "should be a number, not a truth value"
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
    """Return which of the ``known`` names was probably meant, or which there are."""
    names = sorted(known)
    close = get_close_matches(name.lower(), names, n=1)
    if close:
        return f"did you mean `{close[0]}`?"
    return f"known: {', '.join(names)}" if names else "nothing can be set here"


def _kinds(annotation: Any) -> set[Any]:  # noqa: ANN401 - any type
    """Return a type and the members of a union; containers are separate types."""
    members = get_args(annotation)
    return set(members) if type(None) in members else {annotation}
