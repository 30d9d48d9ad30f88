"""Near duplicates and possible label errors over HTTP, in bounded pages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from model_store.bundles.bundle import Bundle, open_bundle
from model_store.bundles.directory import activate
from model_store.curation import label_errors, near_duplicates
from service.serving import curation
from tests.end_to_end.questions import picture
from tests.support.bundle_copies import copied

StartClient = Callable[..., TestClient]

GALLERY = "/v1/galleries/digits"


@pytest.fixture
def live(tmp_path: Path, digits_bundle: Path, start: StartClient) -> TestClient:
    copied(digits_bundle, tmp_path / "bundles" / digits_bundle.name)
    activate(tmp_path / "bundles", digits_bundle.name)
    return start(open_bundle(tmp_path / "bundles", "cpu", threads=1))


def found(client: TestClient, check: str, **options: Any) -> list[dict[str, Any]]:
    """What all pages of a check list; together they examine each item once."""
    listed: list[dict[str, Any]] = []
    n_examined, cursor = 0, dict[str, str]()
    while True:
        answer = client.get(f"{GALLERY}/{check}", params={**options, **cursor})
        answer.raise_for_status()
        page = answer.json()
        listed += page["items"]
        n_examined += page["n_examined"]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert n_examined == page["n_items"]
    return listed


@pytest.mark.parametrize("limit", [1, 100])
def test_label_errors_are_those_of_the_library(
    client: TestClient, bundle: Bundle, limit: int
) -> None:
    gallery = bundle.retriever.gallery
    wanted = label_errors(gallery, gallery.rows(), 0.6)
    listed = found(client, "label-errors", confidence=0.6, limit=limit)
    assert len(listed) == len(wanted) > 0
    for one, error in zip(listed, wanted, strict=True):
        assert one["item"] == client.get(f"{GALLERY}/items/{one['item']['id']}").json()
        assert gallery.row(one["item"]["id"]) == error.row
        assert one["suggested_label"] == gallery.labels[error.suggested]
        assert one["confidence"] == pytest.approx(error.confidence)
        assert [gallery.row(near["id"]) for near in one["neighbours"]] == error.neighbours.tolist()


def test_near_duplicates_are_those_of_the_library(client: TestClient, bundle: Bundle) -> None:
    gallery = bundle.retriever.gallery
    wanted = near_duplicates(gallery, gallery.rows(), 0.9)
    listed = found(client, "near-duplicates", threshold=0.9, limit=7)
    assert len(listed) == len(wanted) > 0
    for one, near in zip(listed, wanted, strict=True):
        assert gallery.row(one["item"]["id"]) == near.row
        similarities = [duplicate["similarity"] for duplicate in one["duplicates"]]
        np.testing.assert_allclose(similarities, near.similarities)


def test_written_items_are_checked_and_corrected_ones_are_not_listed(live: TestClient) -> None:
    sample = live.get(f"{GALLERY}/items").json()["items"][0]
    for item_id in ("copy 1", "copy 2"):
        live.put(
            f"{GALLERY}/items/{item_id}",
            files={"image": ("i", picture("PNG"))},
            data={"label": sample["label"]},
        ).raise_for_status()
    pairs = {
        one["item"]["id"]: [near["id"] for near in one["duplicates"]]
        for one in found(live, "near-duplicates", threshold=0.9999)
    }
    assert "copy 2" in pairs["copy 1"]
    assert "copy 1" in pairs["copy 2"]
    item_id, label = sample["id"], sample["label"]
    for said, suggestions in (("another", [label]), (label, [])):
        live.patch(f"{GALLERY}/items/{item_id}", json={"label": said}).raise_for_status()
        listed = found(live, "label-errors", confidence=0.8)
        wanted = [one["suggested_label"] for one in listed if one["item"]["id"] == item_id]
        assert wanted == suggestions


@pytest.mark.parametrize(
    ("check", "order", "least", "strength_of"),
    [
        ("label-errors", "confidence", {"confidence": 0.6}, lambda one: one["confidence"]),
        (
            "near-duplicates",
            "similarity",
            {"threshold": 0.9},
            lambda one: one["duplicates"][0]["similarity"],
        ),
    ],
)
def test_clearest_findings_of_the_whole_gallery_come_first(
    client: TestClient,
    monkeypatch: pytest.MonkeyPatch,
    check: str,
    order: str,
    least: dict[str, float],
    strength_of: Callable[[dict[str, Any]], float],
) -> None:
    """Requests of limited time examine the gallery first; the next list finds their result."""
    by_id = found(client, check, **least)
    monkeypatch.setattr(curation, "BUDGET_S", 0.0)
    n_items = client.get(f"{GALLERY}/items").json()["n_items"]
    listed, cursor, lefts = [], dict[str, str](), []
    while True:
        params: dict[str, Any] = {"order": order, "limit": 100, **least, **cursor}
        page = client.get(f"{GALLERY}/{check}", params=params).json()
        lefts.append(page["n_unranked"])
        assert not (page["items"] and page["n_unranked"])
        listed += page["items"]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert lefts[0] == n_items - 64
    assert lefts == sorted(lefts, reverse=True)
    strengths = [strength_of(one) for one in listed]
    assert strengths == sorted(strengths, reverse=True)
    assert sorted(one["item"]["id"] for one in listed) == [one["item"]["id"] for one in by_id]
    monkeypatch.undo()
    first = client.get(f"{GALLERY}/{check}", params={"order": order, "limit": 5, **least}).json()
    assert (first["n_examined"], first["n_unranked"]) == (0, 0)
    assert first["items"] == listed[:5]


def test_ranking_is_made_anew_after_its_life(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def n_examined() -> int:
        page = client.get(f"{GALLERY}/label-errors", params={"order": "confidence"}).json()
        n: int = page["n_examined"]
        return n

    n_examined()
    assert n_examined() == 0
    monkeypatch.setattr(curation, "RANKING_LIFE_S", -1.0)
    assert n_examined() > 0


def test_corrected_item_leaves_the_ranking(live: TestClient) -> None:
    sample = live.get(f"{GALLERY}/items").json()["items"][0]
    for label, is_listed in (("another", True), (sample["label"], False)):
        change = live.patch(f"{GALLERY}/items/{sample['id']}", json={"label": label})
        change.raise_for_status()
        listed = found_ranked(live)
        assert (sample["id"] in listed) == is_listed


def test_item_that_is_edited_between_pages_can_be_listed_again_as_documented(
    live: TestClient,
) -> None:
    """A pair has one strength, so the new row of its first item comes after the second item."""
    copy = picture("PNG")
    for name in ("copy/1", "copy/2"):
        live.put(f"{GALLERY}/items/{name}", files={"image": copy}).raise_for_status()
    path = f"{GALLERY}/near-duplicates"
    params: dict[str, Any] = {"threshold": 0.9999, "order": "similarity", "limit": 1}
    listed: list[str] = []
    while True:
        page = live.get(path, params=params).json()
        listed += [one["item"]["id"] for one in page["items"]]
        if listed.count("copy/1") == 1:
            change = {"metadata": {"n": len(listed)}}
            live.patch(f"{GALLERY}/items/copy/1", json=change).raise_for_status()
        if page["next_cursor"] is None or listed.count("copy/1") == 2:
            break
        params["cursor"] = page["next_cursor"]
    assert listed.count("copy/1") == 2
    paths = live.get("/openapi.json").json()["paths"]
    for check in ("label-errors", "near-duplicates"):
        described = paths[f"/v1/galleries/{{gallery}}/{check}"]["get"]["description"]
        assert "can be listed again" in " ".join(described.split())


def found_ranked(client: TestClient) -> list[str]:
    """The ids of possible label errors, the clearest first."""
    ids: list[str] = []
    cursor = dict[str, str]()
    while True:
        params = {"order": "confidence", **cursor}
        page = client.get(f"{GALLERY}/label-errors", params=params).json()
        ids += [one["item"]["id"] for one in page["items"]]
        if page["next_cursor"] is None:
            return ids
        cursor = {"cursor": page["next_cursor"]}


def test_page_ends_when_its_time_is_used_up(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = found(client, "near-duplicates", threshold=0.99)
    monkeypatch.setattr(curation, "BUDGET_S", 0.0)
    page = client.get(f"{GALLERY}/near-duplicates", params={"threshold": 0.99}).json()
    assert page["n_examined"] == 64
    assert page["next_cursor"] is not None
    assert found(client, "near-duplicates", threshold=0.99) == whole


def test_cursor_of_another_list_is_refused(client: TestClient) -> None:
    page = client.get(f"{GALLERY}/near-duplicates", params={"threshold": 0.5, "limit": 1}).json()
    cursor = page["next_cursor"]
    ranked: dict[str, Any] = {"threshold": 0.5, "order": "similarity"}
    for check, options, text in (
        ("near-duplicates", {"threshold": 0.9}, "belongs to a list with another `threshold`."),
        ("near-duplicates", ranked, "does not belong to this list."),
        ("label-errors", {}, "does not belong to this list."),
        ("items", {}, "does not belong to this list."),
    ):
        answer = client.get(f"{GALLERY}/{check}", params={**options, "cursor": cursor})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_cursor")
        assert f"The cursor {text}" in answer.json()["detail"]
