"""The gauges of several processes, told by any of them."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from service.serving.siblings import Siblings

SERVED = "0f2c"


class Gauges(Collector):
    """Gauges that are as they were set."""

    def __init__(self, bundle: str, waiting: float, age: float, items: float) -> None:
        self._bundle, self._values = bundle, (waiting, age, items)

    def collect(self) -> Iterator[Metric]:
        names = ("vouch_queue_length", "vouch_canary_age_seconds", "vouch_gallery_items")
        for name, value in zip(names, self._values, strict=True):
            family = GaugeMetricFamily(name, name, labels=["gallery"])
            family.add_metric(["digits"], value)
            yield family
        info = GaugeMetricFamily("vouch_bundle_info", "1", labels=["gallery", "bundle"])
        info.add_metric(["digits", self._bundle], 1)
        yield info


def tell(directory: Path, own: Collector, pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a process tell of itself once."""

    async def once() -> None:
        telling = asyncio.create_task(Siblings(directory).tell(own))
        await asyncio.sleep(0)
        telling.cancel()

    with monkeypatch.context() as patch:
        patch.setattr("service.serving.siblings.os.getpid", lambda: pid)
        asyncio.run(once())


def told(directory: Path | None, own: Collector) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(Siblings(directory).join(own))
    labelled = [
        (sample.name + "".join(v for k, v in sample.labels.items() if k == "bundle"), sample.value)
        for family in registry.collect()
        for sample in family.samples
    ]
    assert len({name for name, _ in labelled}) == len(labelled)
    return dict(labelled)


def test_parts_are_added_and_of_others_the_largest_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Gauges(SERVED, 2, 1, 100)
    tell(tmp_path, Gauges(SERVED, 3, 9, 101), 1, monkeypatch)
    tell(tmp_path, Gauges("other", 4, math.inf, 99), 2, monkeypatch)
    tell(tmp_path, own, os.getpid(), monkeypatch)
    assert told(tmp_path, own) == {
        "vouch_queue_length": 9,
        "vouch_canary_age_seconds": math.inf,
        "vouch_gallery_items": 101,
        f"vouch_bundle_info{SERVED}": 1,
        "vouch_bundle_infoother": 1,
    }
    assert Siblings(tmp_path).n == 3


def test_an_age_grows_while_its_process_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(tmp_path, Gauges(SERVED, 0, 1, 5), 1, monkeypatch)
    long_ago = time.time() - 50
    [file] = tmp_path.iterdir()
    os.utime(file, (long_ago, long_ago))
    found = told(tmp_path, Gauges(SERVED, 0, 1, 5))
    assert 51 <= found["vouch_canary_age_seconds"] < 60
    assert found["vouch_gallery_items"] == 5


def test_one_alone_tells_its_own_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = Gauges(SERVED, 2, 1, 100)
    asyncio.run(Siblings().tell(own))
    assert Siblings().n == 1
    assert told(None, own)["vouch_queue_length"] == 2
    assert list(tmp_path.iterdir()) == []
