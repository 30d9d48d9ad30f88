"""The settings of a gallery, and the decisions of its operator: real Chromium."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.end_to_end.shown_page import GALLERY, Shown
from tests.end_to_end.stage import ORIGIN, Asked
from tests.end_to_end.test_page_accuracy import REPORT

pytestmark = pytest.mark.browser

CREATED = {**GALLERY, "title": "Shoes", "created_at": "2026-01-02T03:04:05Z"}
SHARE: dict[str, Any] = {
    "assumed": 0.1,
    "expected": None,
    "adopted": None,
    "adopted_at": None,
    "estimated": 0.2,
    "interval": [0.15, 0.25],
    "n_served": 900,
    "used": 0.1,
    "is_hint": False,
    "basis": "absent_labels",
    "warning": None,
}


@pytest.fixture
def opened(shown: Shown) -> Iterator[Shown]:
    """The settings, open."""
    shown.gallery = CREATED
    shown.open()
    shown.found("open-settings").click()
    expect(shown.found("settings")).to_be_visible()
    yield shown
    assert shown.complaints == []


def sent(shown: Shown, method: str) -> list[tuple[str, Any]]:
    return [
        (path, json.loads(body) if body else None)
        for one, path, body in shown.asked
        if one == method
    ]


def test_title_and_description_are_changed(opened: Shown) -> None:
    dialog = opened.found("settings")
    dialog.get_by_label("Title", exact=True).fill(" Boots ")
    dialog.get_by_label("Description").fill("All boots.")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_have_count(0)
    wanted = {"title": "Boots", "description": "All boots."}
    assert sent(opened, "PATCH") == [("/v1/galleries/shoes", wanted)]


def test_renamed_gallery_is_shown_under_its_new_name(opened: Shown) -> None:
    shown = opened
    renamed = {**CREATED, "name": "boots"}
    shown.replies |= {
        "/v1/galleries/shoes/rename": renamed,
        "/v1/galleries": {"galleries": [{"name": "boots", "n_items": 1}]},
        "/v1/galleries/boots": renamed,
        "/v1/galleries/boots/calibration": shown.report,
    }
    name = shown.found("settings").get_by_label("Small letters")
    name.fill("Boots!")
    name.press("Enter")
    assert sent(shown, "POST") == []  # a name like that is refused at once
    name.fill("boots")
    name.press("Enter")
    expect(shown.page).to_have_url(f"{ORIGIN}/#/boots")
    assert sent(shown, "POST") == [("/v1/galleries/shoes/rename", {"name": "boots"})]


def test_gallery_is_deleted_when_its_name_is_typed(opened: Shown) -> None:
    shown = opened
    dialog = shown.found("settings")
    erase = dialog.get_by_role("button", name="Delete the gallery")
    dialog.get_by_label("To confirm").fill("shoe")
    expect(erase).to_be_disabled()
    dialog.get_by_label("To confirm").fill("shoes")
    shown.replies["/v1/galleries"] = {"galleries": [{"name": "hats", "n_items": 1}]}
    shown.replies["/v1/galleries/hats"] = {**GALLERY, "name": "hats", "description": "Hats."}
    shown.replies["/v1/galleries/hats/calibration"] = shown.report
    erase.click()
    expect(shown.page.locator("#gallery-about")).to_contain_text("Hats.")
    assert sent(shown, "DELETE") == [("/v1/galleries/shoes", None)]
    expect(shown.page).to_have_url(f"{ORIGIN}/#/")


def test_refused_change_is_reported_and_the_dialog_stays(opened: Shown) -> None:
    opened.page.route(
        "**/shoes/rename",
        lambda route: route.fulfill(status=409, json={"title": "No", "detail": "It exists."}),
    )
    opened.found("settings").get_by_role("button", name="Rename").click()
    expect(opened.found("settings-status")).to_have_text("It exists.")


@pytest.mark.parametrize(
    ("scope", "created_at", "offered"),
    [("write", "2026-01-02", False), ("admin", None, False), ("admin", "2026-01-02", True)],
)
def test_settings_are_for_operators_and_for_galleries_made_over_http(
    shown: Shown, scope: str, created_at: str | None, *, offered: bool
) -> None:
    shown.gallery = {**CREATED, "created_at": created_at}
    shown.replies["/v1/usage"] = {"scope": scope, "key": "k"}
    shown.open()
    expect(shown.page.locator("#gallery-about")).to_contain_text("Shoes of a shop.")
    expect(shown.found("open-settings")).to_have_count(int(offered))


def test_operator_adopts_the_estimated_share_and_takes_it_back(shown: Shown) -> None:
    shown.report = {**REPORT, "absent": SHARE}

    def decide(request: Asked) -> dict[str, Any]:
        adopted = 0.2 if request.method == "POST" else None
        shown.report = {**REPORT, "absent": {**SHARE, "adopted": adopted, "used": adopted or 0.1}}
        return {}

    shown.replies["/v1/galleries/shoes/calibration/absent-share"] = decide
    shown.open()
    shown.found("open-report").click()
    adopt, reset = shown.found("adopt-share"), shown.found("reset-share")
    expect(adopt).to_have_text("Assume 20\u00a0% from now on")
    expect(reset).to_have_count(0)
    adopt.click()
    expect(reset).to_be_visible()
    expect(adopt).to_have_count(0)
    expect(shown.found("accuracy")).to_contain_text("(set by the operator)")
    assert sent(shown, "POST")[-1][1] == {"share": 0.2}
    reset.click()
    expect(adopt).to_be_visible()


def test_rough_estimate_and_reader_get_no_button(shown: Shown) -> None:
    shown.report = {**REPORT, "absent": {**SHARE, "is_hint": True}}
    shown.open()
    shown.found("open-report").click()
    expect(shown.found("accuracy")).to_be_visible()
    expect(shown.found("adopt-share")).to_have_count(0)
    shown.report = {**REPORT, "absent": SHARE}
    shown.replies["/v1/usage"] = {"scope": "read", "key": "k"}
    shown.page.reload()
    expect(shown.found("accuracy")).to_be_visible()
    expect(shown.found("adopt-share")).to_have_count(0)
