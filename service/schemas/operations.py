"""Schemas of liveness and readiness."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class Live(BaseModel):
    """The process runs."""

    status: Literal["live"] = "live"


class ProviderShare(BaseModel):
    """The number of encoder nodes that one execution provider ran, measured at the start."""

    nodes: int
    share: float = Field(description="Share of these nodes among all nodes that ran.")


class ReadyGallery(BaseModel):
    """A gallery that has answered a recent canary."""

    name: str
    bundle_id: str
    encoder_fingerprint: str
    provider: str = Field(description="Execution provider in use.")
    placement: dict[str, ProviderShare] | None = Field(
        description="Encoder nodes that each provider ran; null if only the CPU is available."
    )
    batch_size: int = Field(description="Maximum batch size, as measured at the start.")
    canary_ms: float = Field(description="Milliseconds to encode and search the last canary query.")
    canary_age_s: float = Field(description="Seconds since the last canary query was answered.")


class Ready(BaseModel):
    """The service can answer: every gallery has answered a recent canary query."""

    status: Literal["ready"] = "ready"
    galleries: list[ReadyGallery]
    cache: str = Field(description="`redis`, `redis (unreachable)` or `process`.")
    decoder_sandbox: list[str] = Field(
        description="Kernel features that confine the decoders: `landlock`, `seccomp`; empty if "
        "none."
    )
    processes: int = Field(
        1,
        description="Number of worker processes that answer now; VOUCH_PROCESSES sets the wanted "
        "number.",
    )
