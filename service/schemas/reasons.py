"""Codes and parameters of reasons, for programs and translations."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field, model_validator

from model_store.messages import Message


class ReasonCode(BaseModel):
    """A reason as a code with parameters, for programs and translations."""

    code: str = Field(description="Stable name of the reason, for programs.")
    parameters: dict[str, Any] = Field(
        description="Numbers and texts that the reason's sentence contains. A nested reason has "
        "its own code and parameters."
    )


class HasReason(BaseModel):
    """A record with a ``reason``."""

    reason_code: ReasonCode | None = Field(
        None, description="Code and parameters of `reason`; null without a reason."
    )

    @model_validator(mode="before")
    @classmethod
    def _with_code(cls, values: Any) -> Any:  # noqa: ANN401 - pydantic's
        if isinstance(values, dict) and isinstance(reason := values.get("reason"), Message):
            return {**values, "reason_code": reason.as_json()}
        return values
