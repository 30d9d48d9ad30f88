"""What the application holds while it runs."""

from __future__ import annotations

from dataclasses import dataclass

from model_store.feedback import FeedbackLog
from service.cache import Cache
from service.galleries import Galleries
from service.telemetry import Telemetry
from service.writing import ItemWriter


@dataclass(frozen=True, slots=True)
class State:
    """The galleries, and what they share.

    Attributes
    ----------
    max_image_bytes : of one image file.
    """

    galleries: Galleries
    writer: ItemWriter
    cache: Cache
    telemetry: Telemetry
    feedback: FeedbackLog | None
    max_image_bytes: int
