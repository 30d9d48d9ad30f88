"""The base of all tables of a configuration, and the paths in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    model_validator,
)

RULE = "rule"
"""The key in a field's JSON schema of the rule that its default follows."""

Contradiction = tuple[str, str]
"""A key within its table, such as ``epochs`` or ``training.epochs``, and why it cannot stay so."""


class Contradictions(ValueError):
    """Values that are allowed alone and not together.

    Attributes
    ----------
    found : each with its key.
    """

    def __init__(self, found: Iterable[Contradiction]) -> None:
        self.found = tuple(found)
        super().__init__(" ".join(f"{key}: {why}" for key, why in self.found))


class Section(BaseModel):
    """A frozen table of the file; unknown keys are errors, so a typing slip is not ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def contradictions(self) -> Iterator[Contradiction]:
        """Give the keys of this table whose values contradict each other."""
        yield from ()

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        found = list(self.contradictions())
        if found:
            raise Contradictions(found)
        return self


def derived(default: Any, rule: str, **constraints: Any) -> Any:  # noqa: ANN401 - a field's
    """Return a field whose default follows from other keys; see `configuration.defaults`.

    Parameters
    ----------
    default : of the key; ``...`` where something always is.
    rule : the default in words, for people.
    constraints : as pydantic's ``Field`` takes them.
    """
    return Field(default, json_schema_extra={RULE: rule}, **constraints)


def as_text(value: object) -> object:
    """Return a path as text, and anything else unchanged."""
    return str(value) if isinstance(value, Path) else value


def absolute(path: str | Path, info: ValidationInfo) -> str:
    """Return a path that means the same in any working directory.

    Parameters
    ----------
    info : of the validation, whose context has the ``folder`` of the file that is read. Paths of a
        file are relative to its folder, others to the working directory.
    """
    return str((folder_of(info) / Path(path).expanduser()).absolute())


def folder_of(info: ValidationInfo) -> Path:
    """Return the folder that relative paths start from."""
    folder: Path | None = (info.context or {}).get("folder")
    return folder or Path()


def _absolute_path(path: Path, info: ValidationInfo) -> Path:
    return Path(absolute(path, info))


FilePath = Annotated[Path, AfterValidator(_absolute_path)]
"""A path that is made absolute."""
