"""The state that the application holds while it runs."""

from __future__ import annotations

from dataclasses import dataclass

from model_store.feedback import FeedbackLog
from service.encoding.cache import Cache
from service.observability.metrics import Telemetry
from service.serving.registry import Galleries
from service.serving.writer import ItemWriter


@dataclass(frozen=True, slots=True)
class State:
    """The galleries, and what they share.

    Attributes
    ----------
    max_image_bytes : of one image file.
    sandbox : what the kernel confines decoders by.
    """

    galleries: Galleries
    writer: ItemWriter
    cache: Cache
    telemetry: Telemetry
    feedback: FeedbackLog | None
    max_image_bytes: int
    sandbox: tuple[str, ...]
