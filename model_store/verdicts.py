"""What answers say in one word; imports nothing, so that a client of the service needs no more."""

from __future__ import annotations

from typing import Literal

Verdict = Literal["match", "ambiguous", "no_match", "out_of_distribution", "not_calibrated"]
Level = Literal["low", "medium", "high"]
