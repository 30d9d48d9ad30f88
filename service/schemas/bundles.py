"""Schemas of bundles and of the state of their calibration."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from model_store.records import OutcomeNumbers
from service.schemas.base import HasReason

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


class BundleCalibration(OutcomeNumbers):
    """The calibration of a bundle, and the quality that it measured."""

    written_at: datetime = Field(
        description="Time when the calibration file was written. In a copied bundle, this is the "
        "time of the copy."
    )
    queries: str = Field(
        description="Kind of the calibration queries, see `queries` in the calibration report."
    )
    delta: float = Field(
        description="Maximum probability that the guarantee is false because of random "
        "calibration data."
    )


class BundleRecord(HasReason):
    """A bundle of a gallery."""

    id: str = Field(description="Id of the bundle, to activate it.")
    published_at: datetime = Field(
        description="Time when the bundle was published. In a copied bundle, this is the time of "
        "the copy."
    )
    release: str | None = Field(
        description="Release of Vouch that built the bundle; null if it is unknown."
    )
    n_items: int | None = Field(
        description="Number of items when the bundle was published; null if it is unknown."
    )
    n_labels: int | None = Field(
        description="Number of labels of these items; null if it is unknown."
    )
    calibration: BundleCalibration | None = Field(
        description="Null if the bundle is not calibrated, or if it cannot be read."
    )
    reason: str | None = Field(
        description="Why the bundle cannot be read, and what to do. Null if it can be read."
    )


class BundleList(BaseModel):
    """The bundles of a gallery."""

    serving: str = Field(description="Id of the served bundle.")
    bundles: list[BundleRecord] = Field(description="The stored bundles, oldest first.")
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
