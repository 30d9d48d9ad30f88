"""The base of all tables of a configuration."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen table of the file; unknown keys are errors, so a typing slip is not ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")
