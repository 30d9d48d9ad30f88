"""The address of what the page shows can be reloaded and shared; one that leads nowhere says so."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.end_to_end.shown_page import Shown
from tests.end_to_end.stage import ORIGIN

pytestmark = pytest.mark.browser

A_PHOTO_IS_KEPT = """() => new Promise((resolve) => {
    const opening = indexedDB.open("vouch");
    opening.onsuccess = () => {
        const { result } = opening;
        if (!result.objectStoreNames.contains("queries")) { result.close(); return resolve(false); }
        const counted = result.transaction("queries").objectStore("queries").count();
        counted.onsuccess = () => { result.close(); resolve(counted.result > 0); };
    };
})"""


def test_an_answer_is_there_after_a_reload(shown: Shown) -> None:
    shown.ask()
    assert shown.page.url == f"{ORIGIN}/#/shoes/query/query-1"
    n_asked = len(shown.asked)
    shown.page.wait_for_function(A_PHOTO_IS_KEPT)
    shown.page.reload()
    expect(shown.found("verdict")).to_be_visible()
    sent = [body for _, path, body in shown.asked[n_asked:] if path.endswith("/search")]
    assert len(sent) == 1
    assert b'filename="my %22shoe%22.png"' in sent[0]


def test_options_are_there_after_a_reload(shown: Shown) -> None:
    shown.ask()
    with shown.page.expect_response("**/search"):
        shown.found("group_by").check()
    expect(shown.page).to_have_url(f"{ORIGIN}/#/shoes/query/query-1/group_by")
    shown.page.wait_for_function(A_PHOTO_IS_KEPT)
    n_asked = len(shown.asked)
    shown.page.reload()
    expect(shown.found("group_by")).to_be_checked()
    [sent] = [body for _, path, body in shown.asked[n_asked:] if path.endswith("/search")]
    assert b'name="group_by"' in sent


def test_a_sample_chosen_while_the_photo_of_an_address_is_fetched_takes_its_place(
    shown: Shown,
) -> None:
    sample = {"id": "1", "image_url": "/v1/sample", "caption": "A shoe", "belongs": True}
    shown.gallery = {**shown.gallery, "samples": [sample]}
    shown.ask()
    n_asked = len(shown.asked)
    with shown.page.expect_response("**/search"):
        shown.page.evaluate("""() => {
            const sample = document.querySelector("[data-testid=sample]");
            addEventListener("hashchange", () => sample.click());
            location.hash = "#/shoes/query/query-1/";
        }""")
    shown.page.wait_for_timeout(300)
    sent = [body for _, path, body in shown.asked[n_asked:] if path.endswith("/search")]
    assert [b'filename="sample-1"' in body for body in sent] == [True]


def test_an_answer_of_another_browser_says_that_the_photo_is_not_kept(shown: Shown) -> None:
    shown.page.goto(f"{ORIGIN}/#/shoes/query/{'0' * 64}")
    expect(shown.found("problem").locator("h2")).to_have_text(
        "The photo of this address is not kept"
    )


def test_an_answer_of_another_browser_is_shown_by_the_review_queue(shown: Shown) -> None:
    """Where the service keeps the photograph, reviewers see it by its address."""
    shown.report = {**shown.report, "errors_over_time": {"n_asked": 0}}
    shown.page.goto(f"{ORIGIN}/#/shoes/query/{'0' * 64}")
    expect(shown.found("verdict")).to_be_visible()
    assert ("GET", f"/v1/galleries/shoes/review/{'0' * 64}/image", b"") in shown.asked


@pytest.mark.parametrize(
    ("room", "dialog"), [("report", "accuracy"), ("items", "browse"), ("decisions", "decided-list")]
)
def test_a_dialog_has_an_address(shown: Shown, room: str, dialog: str) -> None:
    shown.replies["/v1/galleries/shoes/items"] = {"items": [], "n_items": 0, "next_cursor": None}
    shown.replies["/v1/galleries/shoes/feedback"] = {"decisions": [], "next_after": None}
    shown.report = {
        **shown.report,
        "status": "missing",
        "risk_coverage": [],
        "reliability": [],
        "errors_over_time": {"n_asked": 0},
    }
    shown.page.goto(f"{ORIGIN}/#/shoes/{room}")
    expect(shown.found(dialog)).to_be_visible()
    shown.page.keyboard.press("Escape")
    expect(shown.page).to_have_url(f"{ORIGIN}/#/shoes")


def test_the_way_back_closes_the_dialog_of_an_address(shown: Shown) -> None:
    shown.replies["/v1/galleries/shoes/items"] = {"items": [], "n_items": 0, "next_cursor": None}
    shown.replies["/v1/galleries/shoes/feedback"] = {"decisions": [], "next_after": None}
    shown.report = {**shown.report, "errors_over_time": {"n_asked": 0}}
    shown.ask()
    answer = shown.page.url
    shown.page.evaluate("location.hash = '#/shoes/items'")
    expect(shown.found("browse")).to_be_visible()
    shown.page.go_back()
    expect(shown.found("browse")).to_have_count(0)
    expect(shown.found("verdict")).to_be_visible()
    assert shown.page.url == answer
    for address, dialog in (("items", "browse"), ("decisions", "decided-list")):
        shown.page.evaluate("address => { location.hash = `#/shoes/${address}`; }", address)
        expect(shown.found(dialog)).to_be_visible()
    expect(shown.found("browse")).to_have_count(0)
    shown.page.keyboard.press("Escape")
    expect(shown.found("decided-list")).to_have_count(0)
    expect(shown.page).to_have_url(answer)


def test_the_address_of_an_answer_comes_back_after_a_row_of_dialogs(shown: Shown) -> None:
    shown.replies["/v1/galleries/shoes/items"] = {"items": [], "n_items": 0, "next_cursor": None}
    found = {"duplicates": [], "items": [], "n_checked": 0, "next_cursor": None}
    shown.replies["/v1/galleries/shoes/near-duplicates"] = found
    summary = {"counts": [], "reviewers": 1}
    shown.replies["/v1/galleries/shoes/review/summary"] = summary
    shown.replies["/v1/galleries/shoes/review/leases"] = {"leases": []}
    shown.report = {**shown.report, "errors_over_time": {"n_reviewed": 0, "n_wrong": 0}}
    shown.ask()
    answer = shown.page.url
    shown.found("open-review").click()
    expect(shown.found("reviewed")).to_be_visible()
    expect(shown.page).to_have_url(f"{ORIGIN}/#/shoes/review")
    shown.page.keyboard.press("Escape")
    expect(shown.page.locator("dialog")).to_have_count(0)
    expect(shown.page).to_have_url(answer)
    shown.found("open-browse").click()
    shown.found("to-near-duplicates").click()
    expect(shown.page).to_have_url(f"{ORIGIN}/#/shoes/near-duplicates")
    expect(shown.page.locator("dialog")).to_have_count(1)
    shown.page.keyboard.press("Escape")
    expect(shown.page.locator("dialog")).to_have_count(0)
    expect(shown.page).to_have_url(answer)


def test_an_unknown_gallery_is_named_and_no_other_opened(shown: Shown) -> None:
    shown.page.goto(f"{ORIGIN}/#/bo%6Fts")
    problem = shown.found("problem")
    expect(problem.locator("h2")).to_have_text("There is no gallery “boots”")
    expect(problem).to_contain_text("Galleries of this service: “shoes”.")
    expect(shown.page.locator("#gallery-about")).to_be_empty()
    shown.found("gallery-picker").select_option("shoes")
    expect(shown.page.locator("#gallery-about")).to_contain_text("1,500 items")
    assert shown.page.url == f"{ORIGIN}/#/shoes"


def test_an_address_that_cannot_be_read_is_named(shown: Shown) -> None:
    shown.page.goto(f"{ORIGIN}/#%")
    expect(shown.found("problem").locator("h2")).to_have_text("There is no gallery “%”")


@pytest.mark.parametrize("room", ["nosuch", "toString"])
def test_an_unknown_page_of_a_gallery_is_named(shown: Shown, room: str) -> None:
    shown.page.goto(f"{ORIGIN}/#/shoes/{room}")
    expect(shown.found("problem")).to_contain_text(f"The gallery “shoes” has no page “{room}”.")
    expect(shown.page.locator("#gallery-about")).to_contain_text("1,500 items")


def test_an_address_of_an_earlier_release_still_opens_its_gallery(shown: Shown) -> None:
    names = [{"name": name, "n_items": 1} for name in ("bags", "shoes")]
    shown.replies["/v1/galleries"] = {"galleries": names}
    shown.page.goto(f"{ORIGIN}/#shoes")
    expect(shown.page.locator("#gallery-about")).to_contain_text("1,500 items")
    expect(shown.found("gallery-picker")).to_have_value("shoes")
