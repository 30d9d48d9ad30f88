"""Schemas of bundles and of the state of their calibration."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from service.schemas.reasons import HasReason

CalibrationStatus = Literal["valid", "drifting", "stale", "missing"]
"""`drifting`: the caller's recent queries differ from the calibration queries, or a label has lost
its last item since the calibration. Verdicts have no guarantee. `stale`: the calibration was fitted
for another gallery or search, or reviews show too many errors. Its numbers have no guarantee."""


class CalibrationState(HasReason):
    """The state of a bundle's calibration.

    A stale calibration still gives probabilities, but no verdict `match` and no guarantee. If the
    calibration is missing, there are no probabilities. The status `drifting` depends on the
    caller's own queries, or on a label that has lost its last item.
    """

    status: CalibrationStatus
    n_queries: int
    reason: str | None = Field(
        description="Why the calibration is stale or drifting, and what to do."
    )


class BundleState(BaseModel):
    """The bundle that answered."""

    id: str
    calibration: CalibrationState


class BundleList(BaseModel):
    """The bundles of a gallery."""

    serving: str
    bundles: list[str] = Field(description="Bundles that can be activated, oldest first.")
    refused: str | None = Field(
        description="Why the service refuses the bundle in `CURRENT`; null if it serves that "
        "bundle."
    )


class Activation(BaseModel):
    """The result of activating a bundle."""

    gallery: str
    bundle_id: str
    previous_id: str = Field(description="Bundle that was served before.")
    persisted: bool = Field(
        description="Whether the bundle's id was written to `CURRENT`. If so, the service also "
        "serves this bundle after a restart."
    )
