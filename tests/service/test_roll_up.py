"""Answers of a gallery whose labels have parents, over HTTP and in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from starlette.testclient import TestClient

from model_store.bundles.bundle import Bundle
from model_store.decision import Hierarchy, LevelEvidence
from service import schemas
from service.client.mcp_tools import search_in_words
from tests.end_to_end.questions import embed, search
from tests.service.test_calibration import of_calibration
from tests.support.narrowing import not_none

StartClient = Callable[..., TestClient]


@pytest.fixture
def rolling(start: StartClient, bundle: Bundle) -> TestClient:
    """The digits, of which no label can be promised, and every parent can."""
    labels = bundle.retriever.gallery.labels
    parents = {label: ["round" if label in {"0", "6", "9"} else "straight"] for label in labels}
    evidence = not_none(bundle.retriever.calibration).evidence
    present = ~evidence.absent
    sums = np.where(present, np.linspace(0.9, 1, len(evidence)), 0.0)[:, None]
    known = replace(
        evidence,
        correct=np.zeros(len(evidence), dtype=bool),
        levels=LevelEvidence(sums, present[:, None]),
    )
    return start(of_calibration(bundle, hierarchy=Hierarchy.of(["shape"], parents), evidence=known))


def test_an_ambiguous_answer_says_what_it_is_all_the_same(
    rolling: TestClient, digit: bytes
) -> None:
    answer = search(rolling, digit, limit=100).json()
    assert answer["verdict"] == "ambiguous"
    label = answer["results"][0]["label"]
    rolled = answer["roll_up"]
    assert rolled["level"] == "shape"
    assert rolled["label"] == ("round" if label in {"0", "6", "9"} else "straight")
    assert answer["results"][0]["match_probability"] <= rolled["probability"] <= 1
    words = search_in_words(schemas.SearchAnswer.model_validate(answer))
    assert f"its parent '{rolled['label']}' (shape) has the" in words


def test_it_says_so_of_the_neighbours_of_another_store(rolling: TestClient, digit: bytes) -> None:
    answer = search(rolling, digit, limit=100).json()
    embedded = embed(rolling, digit).json()
    more = answer
    listed = answer["results"]
    while more["next_cursor"]:
        path = "/v1/galleries/digits/search/next"
        more = rolling.get(path, params={"cursor": more["next_cursor"]}).json()
        listed += more["results"]
    decided = rolling.post(
        "/v1/galleries/digits/decide",
        json={
            "mean": embedded["direction"],
            "variance": embedded["variance"],
            "outlier_score": embedded["outlier_score"],
            "neighbours": [
                {name: one[name] for name in ("id", "label", "similarity")} for one in listed
            ],
        },
    ).json()
    assert decided["roll_up"]["label"] == answer["roll_up"]["label"]
    assert decided["roll_up"]["probability"] == pytest.approx(answer["roll_up"]["probability"])


def test_the_calibration_has_the_promise_of_each_level(
    rolling: TestClient, client: TestClient, digit: bytes
) -> None:
    report = rolling.get("/v1/galleries/digits/calibration").json()
    assert all(one["threshold"] is None for one in report["matches"])
    (level,) = report["levels"]
    (many,) = level["matches"]
    assert level["level"] == "shape"
    assert 0.5 <= many["threshold"] < 1
    assert many["point"]["error"] <= report["max_error"]
    assert client.get("/v1/galleries/digits/calibration").json()["levels"] == []
    assert search(client, digit).json()["roll_up"] is None
