"""The state that the application holds while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from model_store.feedback import FeedbackLog
from service.encoding.cache import Cache
from service.http.drain import Drain
from service.observability.metrics import Telemetry
from service.serving.created import CreatedGalleries
from service.serving.registry import Galleries
from service.serving.shadows import Shadows
from service.serving.unknown import UnknownGroups
from service.serving.writer import ItemWriter
from service.settings import Settings


@dataclass(frozen=True, slots=True)
class State:
    """The galleries, and their shared resources.

    Attributes
    ----------
    sandbox : kernel confinement of the decoders.
    shadows : shadow bundles.
    n_workers : returns the number of worker processes.
    drain : begins when the service ends.
    unknown : cached groups of kept queries without a match.
    """

    galleries: Galleries
    created: CreatedGalleries
    shadows: Shadows
    writer: ItemWriter
    cache: Cache
    telemetry: Telemetry
    feedback: FeedbackLog | None
    sandbox: tuple[str, ...]
    settings: Settings
    n_workers: Callable[[], int]
    drain: Drain
    unknown: UnknownGroups = field(default_factory=UnknownGroups)
