"""The base class of all tables of a configuration, and types for paths."""

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
"""Key in the JSON schema of a field. The value describes a default that depends on other keys."""

Contradiction = tuple[str, str]
"""A key, such as ``epochs`` or ``training.epochs``, and the reason why the key's value is
refused."""


class Contradictions(ValueError):
    """Values that contradict each other.

    Attributes
    ----------
    found : keys with contradictory values, each with the reason.
    """

    def __init__(self, found: Iterable[Contradiction]) -> None:
        self.found = tuple(found)
        super().__init__(" ".join(f"{key}: {why}" for key, why in self.found))


class Section(BaseModel):
    """An immutable table of the file. Unknown keys are errors, so misspelt keys are found."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield the keys of this table with contradictory values."""
        yield from ()

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        found = list(self.contradictions())
        if found:
            raise Contradictions(found)
        return self


def derived(default: Any, rule: str, **constraints: Any) -> Any:  # noqa: ANN401 - a field's
    """Return a field with a default that depends on other keys; see `configuration.defaults`.

    Parameters
    ----------
    default : default value if no other key determines it; ``...`` if another key always determines
        the value.
    rule : text that describes the default.
    constraints : arguments of pydantic's ``Field``.
    """
    return Field(default, json_schema_extra={RULE: rule}, **constraints)


def as_text(value: object) -> object:
    """Return a path as text, and any other value unchanged."""
    return str(value) if isinstance(value, Path) else value


def absolute(path: str | Path, info: ValidationInfo) -> str:
    """Return an absolute path.

    Parameters
    ----------
    info : validation info; its context has the ``folder`` of the configuration file. Paths in a
        file are relative to this folder, other paths to the working directory.
    """
    return str((folder_of(info) / Path(path).expanduser()).absolute())


def folder_of(info: ValidationInfo) -> Path:
    """Return the folder that relative paths start from."""
    folder: Path | None = (info.context or {}).get("folder")
    return folder or Path()


def _absolute_path(path: Path, info: ValidationInfo) -> Path:
    return Path(absolute(path, info))


FilePath = Annotated[Path, AfterValidator(_absolute_path)]
"""A path that is converted to an absolute path."""
