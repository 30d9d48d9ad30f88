"""Schemas of calibrations that a client starts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from service.schemas.requests import RequestModel

Share = Annotated[float | None, Field(gt=0, lt=1)]


class CalibrationWanted(RequestModel):
    """Error bounds of the new calibration.

    An omitted bound keeps its value. In the first calibration, it gets its default.
    """

    max_error: Share = Field(
        None, description="Maximum share of `match` verdicts that are wrong. Default: 0.05."
    )
    max_false_match_rate: Share = Field(
        None,
        description="Maximum share of `match` verdicts among queries without a match in the "
        "gallery. Default: no bound.",
    )
    expected_absent: Share = Field(
        None, description="Assumed share of queries without a match in the gallery."
    )
    alpha: Share = Field(
        None,
        description="Share of ordinary queries that are flagged as out of distribution. Default: "
        "0.05.",
    )
    coverage: Share = Field(
        None,
        description="Minimum share of result sets that contain a match, if there is one. Default: "
        "0.95.",
    )


class CalibrationRun(BaseModel):
    """The last calibration that was started over HTTP, and the items that can be queries."""

    state: Literal["none", "running", "succeeded", "failed"] = Field(
        description="`none`: no calibration was started over HTTP."
    )
    started_at: str | None = Field(description="ISO 8601.")
    ended_at: str | None = Field(description="ISO 8601.")
    bundle_id: str | None = Field(description="The new bundle; null unless the run succeeded.")
    reason: str | None = Field(description="Why the run failed, and what to do.")
    n_item_queries: int | None = Field(
        description="Number of items that share their label with another item. Each can be a query "
        "of the first calibration, which needs at least 50; copies do not count there. Null for a "
        "gallery that cannot be calibrated over HTTP."
    )
