"""The time between a signal to end and the end, in which load balancers look elsewhere."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(slots=True)
class Drain:
    """The end of a service, from the signal on.

    While it drains, ``/readyz`` says 503 and every answer closes its connection.

    Attributes
    ----------
    seconds : between the signal and the moment when no connection is accepted any more.
    """

    seconds: float = 0.0
    _began: float | None = None

    @property
    def begun(self) -> bool:
        """True after the signal."""
        return self._began is not None

    @property
    def is_over(self) -> bool:
        """True when the service has drained for long enough."""
        return self._began is not None and time.monotonic() >= self._began + self.seconds

    def begin(self) -> None:
        """Note the signal."""
        self._began = time.monotonic()
