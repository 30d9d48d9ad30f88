"""The map of a gallery over HTTP: arrays, items by number, and changes of the gallery."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from model_store.bundles.bundle import Bundle, open_bundle
from model_store.bundles.directory import activate
from model_store.gallery_map import MAX_COLOURS, Plane, points_of
from service.http.routes.curation import MAX_ROWS
from tests.support.bundle_copies import copied

StartClient = Callable[..., TestClient]

MAP = "/v1/galleries/digits/map"


@pytest.fixture
def live(tmp_path: Path, digits_bundle: Path, start: StartClient) -> TestClient:
    """A service whose gallery is written to."""
    copied(digits_bundle, tmp_path / "bundles" / digits_bundle.name)
    activate(tmp_path / "bundles", digits_bundle.name)
    return start(open_bundle(tmp_path / "bundles", "cpu", threads=1))


def arrays(found: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    kinds = {"rows": "<u4", "x": "<u2", "y": "<u2", "codes": "u1"}
    return {
        name: np.frombuffer(base64.b64decode(found[name]), kind) for name, kind in kinds.items()
    }


def test_map_over_http_equals_the_map_of_the_gallery(client: TestClient, bundle: Bundle) -> None:
    found = client.get(MAP).json()
    gallery = bundle.retriever.gallery
    plane = Plane.of(gallery)
    points = points_of(gallery, plane)
    drawn = arrays(found)
    assert np.array_equal(drawn["rows"], points.rows)
    assert np.array_equal(np.stack([drawn["x"], drawn["y"]], 1), points.positions)
    assert found["variance_shares"] == pytest.approx(plane.shares)
    assert found["n_shown"] == found["n_passing"] == found["n_items"] == gallery.n_items
    assert len(found["colours"]) == min(MAX_COLOURS, len(gallery.labels))
    of_first = found["colours"][0]
    assert (drawn["codes"] == 0).sum() == of_first["n_items"]
    only = client.get(MAP, params={"filter": f'{{"label": "{of_first["value"]}"}}'}).json()
    assert only["n_passing"] == of_first["n_items"]
    assert np.array_equal(arrays(only)["x"], drawn["x"][drawn["codes"] == 0])


def test_items_of_the_map_are_listed_by_number(client: TestClient, bundle: Bundle) -> None:
    found = client.get(MAP).json()
    rows = arrays(found)["rows"][[3, 1]].tolist()
    sent = {"bundle_id": found["bundle_id"], "rows": ",".join(map(str, [*rows, 2**31]))}
    items = client.get(f"{MAP}/items", params=sent).json()["items"]
    wanted = bundle.retriever.gallery.items(np.array(sorted(rows)))
    assert [(item["row"], item["id"]) for item in items] == [
        (row, item.id) for row, item in zip(sorted(rows), wanted, strict=True)
    ]
    detail = client.get(f"/v1/galleries/digits/items/{items[0]['id']}").json()
    assert {**detail, "row": items[0]["row"]} == items[0]
    many = {"bundle_id": found["bundle_id"], "rows": ",".join(["1"] * (MAX_ROWS + 1))}
    assert client.get(f"{MAP}/items", params=many).status_code == 422
    served = found["bundle_id"]
    for another in ("another", f"{served}0", f"0{served}", served[:-1], served[1:]):
        outdated = client.get(f"{MAP}/items", params={**sent, "bundle_id": another})
        assert outdated.status_code == 409
        assert "Request the map again" in outdated.json()["detail"]


def test_map_follows_each_write(live: TestClient, digit: bytes) -> None:
    before = live.get(MAP).json()
    written = live.put(
        "/v1/galleries/digits/items/new",
        files={"image": ("i", digit)},
        data={"label": "a new label"},
    )
    assert written.status_code == 200
    after = live.get(MAP).json()
    assert after["n_shown"] == before["n_shown"] + 1
    new = int(arrays(after)["rows"][-1])
    sent = {"bundle_id": before["bundle_id"], "rows": str(new)}
    [item] = live.get(f"{MAP}/items", params=sent).json()["items"]
    assert (item["id"], item["label"]) == ("new", "a new label")
    assert live.delete("/v1/galleries/digits/items/new").status_code == 200
    assert live.get(f"{MAP}/items", params=sent).json()["items"] == []
    assert live.get(MAP).json() == before
