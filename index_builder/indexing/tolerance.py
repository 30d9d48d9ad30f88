"""The maximum number or share of unreadable images."""

from __future__ import annotations

import re
from dataclasses import dataclass

from model_store.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The limit for unreadable images: either a ``share`` in [0, 1] or a ``count``.

    The field that is not used is None.
    """

    share: float | None = None
    count: int | None = None

    def allows(self, n_bad: int, n_images: int) -> bool:
        """Return whether ``n_bad`` unreadable images of ``n_images`` are accepted."""
        if self.count is not None:
            return n_bad <= self.count
        return n_bad <= (self.share or 0.0) * n_images

    def __str__(self) -> str:
        return f"{self.count}" if self.count is not None else f"{100 * (self.share or 0.0):g} %"


NONE = Tolerance(count=0)


def parse_tolerance(text: str) -> Tolerance:
    """Read ``1%`` or ``25``.

    Raises
    ------
    ConfigError
    """
    share = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text.strip())
    if share and float(share[1]) <= 100:
        return Tolerance(share=float(share[1]) / 100)
    if re.fullmatch(r"\d+", text.strip()):
        return Tolerance(count=int(text))
    raise ConfigError(f"--max-bad is {text!r}; wanted a share such as 1%, or a number such as 25.")
