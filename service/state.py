"""What the application holds while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from model_store.feedback import FeedbackLog
from service.cache import Cache
from service.engine import SearchEngine
from service.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class State:
    """Engines by gallery name, and what they share."""

    engines: Mapping[str, SearchEngine]
    cache: Cache
    telemetry: Telemetry
    feedback: FeedbackLog | None
