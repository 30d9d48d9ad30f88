"""Circuit breaker: after a store has failed, no request waits for the store for one second."""

from __future__ import annotations

import time

REST_AFTER_FAILURE_S = 1.0


class Rest:
    """A circuit breaker: after a failure, attempts are skipped for `REST_AFTER_FAILURE_S`."""

    def __init__(self) -> None:
        self._until = 0.0

    @property
    def is_over(self) -> bool:
        """True if an attempt may be made now."""
        return time.monotonic() >= self._until

    @property
    def failed_last(self) -> bool:
        """True if the last attempt failed."""
        return self._until > 0

    def begin(self) -> bool:
        """Record a failure; return True for the first failure after a success."""
        first = not self.failed_last
        self._until = time.monotonic() + REST_AFTER_FAILURE_S
        return first

    def end(self) -> None:
        """Note a success."""
        self._until = 0.0
