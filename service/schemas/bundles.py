"""Schemas of bundles and of the state of their calibration."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from service.schemas.reasons import HasReason

CalibrationStatus = Literal["valid", "drifting", "stale", "missing"]
"""`drifting`: the caller's recent queries differ from the calibration queries, or a label has lost
its last item since; verdicts are given without a guarantee. `stale`: fitted for another gallery or
search than is served now, or reviews show too many errors; its numbers are shown without a
guarantee."""


class CalibrationState(HasReason):
    """The state of a bundle's calibration.

    A stale calibration still gives probabilities, but no verdict `match` and no guarantee. A
    missing one gives no probabilities. The status `drifting` is of the caller's own queries, or of
    a label that has lost its last item.
    """

    status: CalibrationStatus
    n_queries: int
    reason: str | None = Field(description="Why it is stale or drifting, and what to do.")


class BundleState(BaseModel):
    """The bundle that answered."""

    id: str
    calibration: CalibrationState


class BundleList(BaseModel):
    """The bundles of a gallery."""

    serving: str
    bundles: list[str] = Field(description="Those that can be activated, oldest first.")
    refused: str | None = Field(
        description="Why the bundle that `CURRENT` names is not served; null where it is."
    )


class Activation(BaseModel):
    """The bundle that is served from now on."""

    gallery: str
    bundle_id: str
    previous_id: str = Field(description="What was served before.")
    persisted: bool = Field(
        description="Whether a restart serves the same: `CURRENT` could be written."
    )
