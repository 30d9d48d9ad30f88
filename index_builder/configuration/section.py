"""The base of all tables of a configuration, and the paths in them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationInfo


class Section(BaseModel):
    """A frozen table of the file; unknown keys are errors, so a typing slip is not ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _from_the_file(path: Path, info: ValidationInfo) -> Path:
    """Return a path of a file from the working directory; any other stays as it is."""
    folder: Path | None = (info.context or {}).get("folder")
    return path if folder is None else folder / path.expanduser()


FilePath = Annotated[Path, AfterValidator(_from_the_file)]
"""A path, which a configuration file gives from its own folder."""
