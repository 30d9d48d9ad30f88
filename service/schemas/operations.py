"""Schemas of liveness and readiness."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class Live(BaseModel):
    """The process runs."""

    status: Literal["live"] = "live"


class ProviderShare(BaseModel):
    """The part of the encoder that one execution provider ran, in a profiled run at the start."""

    nodes: int
    share: float = Field(description="Of all nodes that ran.")


class ReadyGallery(BaseModel):
    """A gallery that has answered a recent canary."""

    name: str
    bundle_id: str
    encoder_fingerprint: str
    provider: str = Field(description="The execution provider that really runs.")
    placement: dict[str, ProviderShare] | None = Field(
        description="Which provider ran how much of the encoder; null where only the CPU could."
    )
    batch_size: int = Field(description="Maximum batch size, as measured at the start.")
    canary_ms: float = Field(description="What the last canary took to encode and search.")
    canary_age_s: float = Field(description="How long ago it was answered.")


class Ready(BaseModel):
    """The service can answer: a recent canary was encoded and searched in every gallery."""

    status: Literal["ready"] = "ready"
    galleries: list[ReadyGallery]
    cache: str = Field(description="`redis`, `redis (unreachable)` or `process`.")
    decoder_sandbox: list[str] = Field(
        description="What the kernel confines decoders by: `landlock`, `seccomp`; empty: nothing."
    )
    processes: int = Field(
        1, description="Processes of the service that answer; VOUCH_PROCESSES are wanted."
    )
