"""Checks of a gallery on the page: possible label errors and near duplicates, in Chromium."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from model_store.bundles.directory import activate
from tests.end_to_end.processes import Service
from tests.end_to_end.shown_page import NBSP, Shown
from tests.end_to_end.stage import Asked
from tests.end_to_end.test_page_browsing import items, labels_sent
from tests.support.bundle_copies import copied

pytestmark = pytest.mark.browser

ALL_EXAMINED = "All 1,000 items examined. The clearest cases come first."


def named(item_id: str, label: str, **more: Any) -> dict[str, Any]:
    url = f"/v1/galleries/shoes/items/{item_id}/thumbnail"
    return {
        "id": item_id,
        "label": label,
        "metadata": {},
        "thumbnail_url": url,
        "preview_url": None,
        **more,
    }


def label_error(item_id: str) -> dict[str, Any]:
    neighbours = [named(f"near-{n}", "boot", similarity=0.9) for n in range(7)]
    return {
        "item": named(item_id, "clog"),
        "suggested_label": "boot",
        "confidence": 0.92,
        "neighbours": neighbours,
    }


def pair(one: str, other: str, label: str = "boot") -> dict[str, Any]:
    near = named(other, label, similarity=0.995)
    return {"item": named(one, "boot"), "duplicates": [near]}


def pages(*found: list[dict[str, Any]]) -> Any:
    """A check of 1,000 items in as many pages; those before the first finding examine items."""
    first = next((place for place, some in enumerate(found) if some), len(found))

    def reply(asked: Asked) -> dict[str, Any]:
        query = parse_qs(urlsplit(asked.url).query)
        assert query["order"] == ["confidence" if "/label-errors" in asked.url else "similarity"]
        place = int(query.get("cursor", ["0"])[0])
        after = str(place + 1) if place + 1 < len(found) else None
        left = 1000 * max(0, first - place) // (first + 1)
        return {
            "items": found[place],
            "n_items": 1000,
            "n_examined": 0,
            "n_unranked": left,
            "next_cursor": after,
        }

    return reply


def test_label_errors_are_corrected_or_kept(shown: Shown) -> None:
    first, second = [label_error("a"), label_error("b")], [label_error("c/d")]
    shown.replies["/v1/galleries/shoes/label-errors"] = pages([], first, second)
    shown.replies["/v1/galleries/shoes/items"] = items
    shown.open()
    shown.found("open-browse").click()
    shown.found("to-label-errors").click()
    expect(shown.page).to_have_url("http://vouch.test/#/shoes/label-errors")
    expect(shown.found("check-status")).to_have_text(ALL_EXAMINED)
    cards = shown.found("label-error")
    expect(cards).to_have_count(3)
    expect(cards.first).to_contain_text(f"Neighbours with “boot”: 92{NBSP}%")
    expect(cards.first.locator("img")).to_have_count(6)
    cards.first.get_by_test_id("take-suggestion").click()
    expect(cards.first.get_by_test_id("label-error-done")).to_have_text("Changed.")
    expect(cards.first.locator("b")).to_have_text("boot")
    expect(cards.nth(1).get_by_test_id("take-suggestion")).to_be_focused()
    cards.first.get_by_test_id("undo-decision").click()
    expect(cards.first.locator("b")).to_have_text("clog")
    cards.nth(1).get_by_test_id("keep-label").click()
    expect(cards.nth(1)).to_contain_text("This browser does not list it again.")
    detail = "The gallery is served from one bundle, which never changes."
    refusal = {"title": "No", "detail": detail}
    shown.page.route("**/items/c/d", lambda route: route.fulfill(status=409, json=refusal))
    cards.nth(2).get_by_test_id("take-suggestion").click()
    expect(cards.nth(2).get_by_test_id("label-error-done")).to_have_text(detail)
    assert labels_sent(shown) == [("a", "boot"), ("a", "clog")]
    shown.page.reload()  # the address leads to the check, and what was kept is not listed
    expect(cards).to_have_count(2)
    expect(cards.locator(".id")).to_have_text(["a", "c/d"])
    shown.page.get_by_label("List an item if its neighbours").select_option("0.6")
    expect(cards).to_have_count(2)
    asked = [path for _, path, _ in shown.asked if path.endswith("/label-errors")]
    assert len(asked) == 9
    assert shown.complaints == []


def test_all_listed_label_errors_are_changed_at_once(shown: Shown) -> None:
    three = [label_error("a"), label_error("b"), label_error("c")]
    shown.replies["/v1/galleries/shoes/label-errors"] = pages(three)
    shown.page.goto("http://vouch.test/#/shoes/label-errors")
    cards = shown.found("label-error")
    cards.nth(1).get_by_test_id("keep-label").click()
    button = shown.found("take-all")
    expect(button).to_have_text("Change all 2 to the suggested labels")
    button.click()
    expect(button).to_have_text("Press again to change all")
    assert labels_sent(shown) == []
    button.click()
    expect(cards.get_by_text("Changed.", exact=True)).to_have_count(2)
    expect(button).to_be_hidden()
    assert labels_sent(shown) == [("a", "boot"), ("c", "boot")]
    cards.nth(2).get_by_test_id("undo-decision").click()
    expect(cards.nth(2).locator("b")).to_have_text("clog")
    assert shown.complaints == []


def test_near_duplicates_are_grouped_and_deleted_or_kept(shown: Shown) -> None:
    shown.replies["/v1/galleries/shoes/near-duplicates"] = pages(
        [pair("a", "b"), pair("c", "d", "clog")], [pair("b", "a"), pair("b", "e"), pair("d", "c")]
    )
    shown.replies["/v1/galleries/shoes/items"] = items
    shown.replies |= {f"/v1/galleries/shoes/items/{item}": {} for item in "ae"}
    shown.open()
    shown.found("open-browse").click()
    shown.found("to-near-duplicates").click()
    expect(shown.found("check-status")).to_have_text(ALL_EXAMINED)
    groups = shown.found("duplicates")
    expect(groups).to_have_count(2)
    expect(groups.first.locator(".id")).to_have_text(["a", "b", "e"])
    expect(groups.first).to_contain_text("3 items, similarity 0.995 or more")
    expect(groups.first.get_by_test_id("labels-differ")).to_have_count(0)
    expect(groups.nth(1).get_by_test_id("labels-differ")).to_be_visible()
    marks = groups.first.get_by_test_id("mark-duplicate")
    for place in (0, 1, 2):
        marks.nth(place).click()
    expect(groups.first).to_contain_text("All items of this group are marked.")
    marks.nth(1).click()  # taken back
    expect(groups.first).not_to_contain_text("All items of this group are marked.")
    button = shown.found("delete-marked")
    expect(button).to_have_text("Delete 2 marked items")
    button.click()
    expect(button).to_have_text("Press again: 2 items are deleted, and it cannot be taken back")
    assert not [path for method, path, _ in shown.asked if method == "DELETE"]
    button.click()
    expect(shown.found("deleted")).to_have_text("2 of 2 deleted")
    for place in (0, 2):
        expect(groups.first.locator("figure").nth(place)).to_have_class("gone")
    deleted = [path.rpartition("/")[2] for method, path, _ in shown.asked if method == "DELETE"]
    assert deleted == ["a", "e"]
    expect(button).to_be_hidden()
    expect(groups.first.get_by_test_id("keep-all")).to_be_hidden()  # one is left
    groups.nth(1).get_by_test_id("keep-all").click()
    expect(groups.nth(1)).to_contain_text("This browser does not list it again.")
    shown.page.reload()
    expect(groups).to_have_count(1)
    expect(groups.locator(".id")).to_have_text(["a", "b", "e"])
    assert shown.complaints == []


def _wait_for(page: Page, check: str) -> None:
    """Wait until a check has ended; for a moment, both checks are in the page."""
    status = page.get_by_test_id(check).get_by_test_id("check-status")
    expect(status).to_contain_text("items examined.")


def test_label_error_of_a_served_gallery_is_corrected(
    browser: Browser, digits_bundle: Path, tmp_path: Path
) -> None:
    root = tmp_path / "bundles"
    copied(digits_bundle, root / digits_bundle.name)
    activate(root, digits_bundle.name)
    expect.set_options(timeout=20_000)
    with Service(root, tmp_path / "log") as service:
        base = "/v1/galleries/digits/items"
        [item, other] = service.http.get(base, params={"limit": 2}).json()["items"]
        changed = service.http.patch(f"{base}/{item['id']}", json={"label": "wrong"})
        changed.raise_for_status()
        page = browser.new_page()
        page.goto(f"{service.http.base_url}#/digits/label-errors")
        card = page.get_by_test_id("label-error").filter(has_text="wrong")
        _wait_for(page, "label-errors")
        card.get_by_test_id("take-suggestion").click()
        expect(page.get_by_text("Changed.", exact=True)).to_be_visible()
        assert service.http.get(f"{base}/{item['id']}").json()["label"] == item["label"]

        copy = {"image": ("i", service.http.get(other["thumbnail_url"]).content)}
        for name in ("copy/1", "copy/2"):
            service.http.put(f"{base}/{name}", files=copy).raise_for_status()
        page.goto(f"{service.http.base_url}#/digits/near-duplicates")
        group = page.get_by_test_id("duplicates").filter(has_text="copy/1")
        _wait_for(page, "near-duplicates")
        figure = group.locator("figure").filter(has_text="copy/2")
        figure.get_by_test_id("mark-duplicate").click()
        erase = page.get_by_test_id("delete-marked")
        erase.click()
        erase.click()
        expect(page.get_by_test_id("deleted")).to_have_text("1 of 1 deleted")
        assert service.http.get(f"{base}/copy/2").status_code == 404
        page.close()


def test_check_pauses_after_many_findings_and_goes_on(shown: Shown) -> None:
    many = [label_error(f"item-{n}") for n in range(60)]
    shown.replies["/v1/galleries/shoes/label-errors"] = pages(many, [label_error("last")])
    shown.replies["/v1/usage"] = {"scope": "read"}
    shown.page.goto("http://vouch.test/#/shoes/label-errors")
    expect(shown.found("label-error")).to_have_count(60)
    expect(shown.found("check-status")).to_have_text(ALL_EXAMINED)
    expect(shown.found("take-suggestion").first).to_be_hidden()
    expect(shown.found("label-errors")).to_contain_text("A key that may write is needed")
    shown.found("check-more").click()
    expect(shown.found("label-error")).to_have_count(61)
    expect(shown.found("check-more")).to_be_hidden()


def test_copies_of_each_group_are_marked_but_one(shown: Shown) -> None:
    """Groups whose labels differ, and kept groups, are left to a person."""
    shown.replies["/v1/galleries/shoes/near-duplicates"] = pages(
        [pair("a", "b"), pair("a", "c"), pair("d", "e", "clog"), pair("f", "g"), pair("h", "i")]
    )
    shown.page.goto("http://vouch.test/#/shoes/near-duplicates")
    groups = shown.found("duplicates")
    groups.nth(2).get_by_test_id("mark-duplicate").first.click()
    expect(shown.found("delete-marked")).to_have_text("Delete 1 marked item")
    groups.nth(2).get_by_test_id("keep-all").click()
    expect(shown.found("delete-marked")).to_be_hidden()
    shown.found("mark-copies").click()
    expect(shown.found("delete-marked")).to_have_text("Delete 3 marked items")
    detail = "It is gone."
    gone = {"title": "No", "detail": detail}
    shown.page.route("**/items/c", lambda route: route.fulfill(status=404, json=gone))
    shown.found("delete-marked").press("Enter")
    shown.found("delete-marked").press("Enter")
    expect(shown.found("deleted")).to_have_text(
        f"2 of 3 deleted. “c” could not be deleted: {detail}"
    )
    deleted = [path.rpartition("/")[2] for method, path, _ in shown.asked if method == "DELETE"]
    assert deleted == ["b", "i"]
    expect(shown.found("delete-marked")).to_have_text("Delete 1 marked item")
    assert shown.complaints == []


def test_check_says_how_far_the_gallery_is_examined(shown: Shown) -> None:
    waiting = {"items": [], "n_items": 1000, "n_unranked": 400, "next_cursor": "0"}
    shown.replies["/v1/galleries/shoes/label-errors"] = waiting
    shown.page.goto("http://vouch.test/#/shoes/label-errors")
    status = shown.found("check-status")
    expect(status).to_have_text("600 of 1,000 items examined")
    # Another worker of the service is not as far.
    n_asked = len(shown.asked)
    shown.replies["/v1/galleries/shoes/label-errors"] = {**waiting, "n_unranked": 900}
    shown.until(lambda: len(shown.asked) > n_asked + 2)
    expect(status).to_have_text("600 of 1,000 items examined")
    nothing = {**waiting, "n_unranked": 0, "next_cursor": None}
    shown.replies["/v1/galleries/shoes/label-errors"] = nothing
    expect(status).to_have_text("All 1,000 items examined: nothing found.")
