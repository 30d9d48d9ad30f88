"""The processes of one service, as each knows of the others: by what they write down of themselves.

Counters are in files of prometheus_client, which outlive a process. Gauges are computed when they
are asked for, which one process cannot do for another: each writes its own every second.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.core import Metric, Sample
from prometheus_client.registry import Collector

from service.processes.several import told_name

logger = logging.getLogger(__name__)

TOLD_EVERY_S = 1.0

_SUMMED = {"vouch_queue_length", "vouch_created_galleries_open", "vouch_processes"}
"""Gauges that each process has a part of. Of others, such as ages, the largest is told."""

_AGED = "vouch_canary_age_seconds"
"""A gauge that has grown since it was written down."""

_Key = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True, slots=True)
class Siblings:
    """The processes of a service.

    Attributes
    ----------
    directory : where they tell of themselves; None where there is one.
    """

    directory: Path | None = None

    @property
    def n(self) -> int:
        """The number of those that answer, this one included."""
        return 1 + len(self._others())

    def join(self, own: Collector) -> Collector:
        """Return what tells the gauges of all, where there are several."""
        return own if self.directory is None else _Joined(own, self.told)

    async def tell(self, own: Collector) -> None:
        """Write the gauges of this process down, for ever."""
        if self.directory is None:
            return
        file = self.directory / told_name(os.getpid())
        while True:
            samples = [(one.name, one.labels, one.value) for one in _samples(own.collect())]
            partial = file.with_suffix(".partial")
            try:
                partial.write_text(json.dumps(samples), encoding="utf-8")
                partial.replace(file)
            except OSError as error:
                logger.warning("nothing told to siblings", extra={"fields": {"why": str(error)}})
            await asyncio.sleep(TOLD_EVERY_S)

    def told(self) -> Iterator[tuple[_Key, float]]:
        """Return what the others have told."""
        for file in self._others():
            try:
                passed = max(0.0, time.time() - file.stat().st_mtime)
                samples = json.loads(file.read_text(encoding="utf-8"))
            except FileNotFoundError:  # it has just ended
                continue
            for name, labels, value in samples:
                yield _key(name, labels), value + passed * (name == _AGED)

    def _others(self) -> list[Path]:
        if self.directory is None:
            return []
        own = self.directory / told_name(os.getpid())
        return [file for file in self.directory.glob("told-*.json") if file != own]


class _Joined(Collector):
    """The gauges of this process and of others."""

    def __init__(self, own: Collector, told: Callable[[], Iterable[tuple[_Key, float]]]) -> None:
        self._own, self._told = own, told

    def collect(self) -> Iterator[Metric]:
        """The families, as things are now."""
        families = {family.name: family for family in self._own.collect()}
        values = {_key(one.name, one.labels): one.value for one in _samples(families.values())}
        for key, value in self._told():
            known = values.get(key)
            if known is None:
                values[key] = value
            else:
                values[key] = known + value if key[0] in _SUMMED else max(known, value)
        for family in families.values():
            family.samples.clear()
        for (name, labels), value in values.items():
            families[name].add_sample(name, dict(labels), value)
        yield from families.values()


def _samples(families: Iterable[Metric]) -> Iterator[Sample]:
    return (sample for family in families for sample in family.samples)


def _key(name: str, labels: Mapping[str, str]) -> _Key:
    return name, tuple(sorted(labels.items()))
