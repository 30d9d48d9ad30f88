"""The objects that the application uses while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from model_store.feedback import FeedbackLog
from service.encoding.cache import Cache
from service.http.drain import Drain
from service.observability.metrics import Telemetry
from service.serving.calibration_runs import CalibrationRuns
from service.serving.created import CreatedGalleries
from service.serving.curation import GalleryPlanes, Rankings
from service.serving.registry import Galleries
from service.serving.shadows import Shadows
from service.serving.unknown import QueryGrouper
from service.serving.writer import ItemWriter
from service.settings import Settings


@dataclass(frozen=True, slots=True)
class ServiceState:
    """The galleries, and their shared resources.

    Attributes
    ----------
    calibrations : calibrations that clients start.
    sandbox : sandbox parts that confine the decoders.
    shadows : manager of the shadow bundles.
    n_workers : function that returns the number of worker processes.
    drain : state of the drain, which begins when the service stops.
    unknown : cache of the groups of stored queries without a match.
    planes : cache of the axes of the galleries' maps.
    rankings : cache of the rankings of what checks find in the galleries.
    """

    galleries: Galleries
    created: CreatedGalleries
    calibrations: CalibrationRuns
    shadows: Shadows
    writer: ItemWriter
    cache: Cache
    telemetry: Telemetry
    feedback: FeedbackLog | None
    sandbox: tuple[str, ...]
    settings: Settings
    n_workers: Callable[[], int]
    drain: Drain
    unknown: QueryGrouper = field(default_factory=QueryGrouper)
    planes: GalleryPlanes = field(default_factory=GalleryPlanes)
    rankings: Rankings = field(default_factory=Rankings)
