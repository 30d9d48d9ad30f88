"""What comes late, twice or not at all, while a person goes on: real Chromium."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Route, expect

from tests.end_to_end.shown_page import ANSWER, GALLERY, PICTURE, Shown, look_closely, result
from tests.end_to_end.test_page_batch import OPERATING_POINTS, UNSURE, batch_of
from tests.end_to_end.test_page_browsing import items
from tests.end_to_end.test_page_looking import heard, listening, looked_at
from tests.support.image_files import encoded, picture

pytestmark = pytest.mark.browser

BOOTS = {**GALLERY, "name": "boots", "description": "Boots of a shop."}
DOUBLE_CLICK = "node => { node.click(); node.click(); }"
DECODES_ONE_AFTER_ANOTHER = """() => {
    const decode = window.createImageBitmap;
    let n = 0;
    window.createImageBitmap = async (...all) => {
        await new Promise((done) => setTimeout(done, 150 * (n += 1)));
        return decode(...all);
    };
}"""
BUSY = {"title": "Busy", "detail": "The service is busy."}


def two_galleries(shown: Shown) -> None:
    """Another gallery beside the first."""
    both = [{"name": name, "n_items": 1500} for name in ("shoes", "boots")]
    shown.replies["/v1/galleries"] = {"galleries": both}
    shown.replies["/v1/galleries/boots"] = BOOTS
    shown.replies["/v1/galleries/boots/calibration"] = shown.report


def held_back(shown: Shown, address: str) -> list[Route]:
    """The requests that are sent to an address from now on, unanswered."""
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    shown.page.route(address, hold)
    return held


def holds(shown: Shown, held: list[Route], n: int = 1) -> None:
    """Wait until ``n`` requests are held back."""
    shown.until(lambda: len(held) >= n)


def looked_at_in_boots(shown: Shown) -> None:
    """Ask the question that stands in the other gallery, and look at the one result there."""
    query = {**ANSWER["query"], "id": "query-2"}
    shown.answer = {**ANSWER, "gallery": "boots", "query": query, "results": [result(1, id="boot")]}
    with shown.page.expect_response("**/boots/search"):
        shown.found("gallery-picker").select_option("boots")
    expect(shown.found("neighbour")).to_have_count(1)
    look_closely(shown.page)


def test_a_question_in_another_gallery_is_decided_on_there(shown: Shown) -> None:
    listening(shown)
    two_galleries(shown)
    shown.replies["/v1/galleries/boots/feedback"] = {"number": 1}
    looked_at(shown)
    shown.page.keyboard.press("Escape")
    expect(shown.page.locator("dialog")).to_have_count(0)
    looked_at_in_boots(shown)
    shown.page.keyboard.press("y")
    expect(shown.found("decision")).to_contain_text("label-1")
    assert heard(shown, 1) == [("this_item", "boot")]
    assert shown.sent("/boots/feedback")[0]["query_id"] == "query-2"


def test_a_key_that_is_held_decides_once(shown: Shown) -> None:
    listening(shown)
    batch_of(shown, {"a.png": UNSURE, "b.png": UNSURE, "c.png": UNSURE}, 0.9)
    shown.found("go-through").click()
    expect(shown.page.get_by_role("dialog")).to_be_visible()
    for _ in range(3):
        shown.page.keyboard.down("y")
    shown.page.keyboard.up("y")
    assert len(heard(shown, 1)) == 1
    shown.page.wait_for_timeout(300)
    assert len(heard(shown, 1)) == 1


def test_a_double_click_decides_once(shown: Shown) -> None:
    listening(shown)
    batch_of(shown, {"a.png": UNSURE, "b.png": UNSURE, "c.png": UNSURE}, 0.9)
    shown.found("go-through").click()
    shown.found("decide-is").dblclick()
    shown.page.wait_for_timeout(300)
    assert len(heard(shown, 1)) == 1


def test_a_picture_that_comes_late_takes_the_place_of_no_other(shown: Shown) -> None:
    held = held_back(shown, "**/item-1/preview")
    large = encoded(picture(60, 40), "PNG")
    shown.page.route("**/item-2/preview", lambda route: route.fulfill(body=large))
    shown.open()
    shown.run("api", "m.key.set('secret')")
    results = [result(n, preview_url=f"/v1/galleries/shoes/items/item-{n}/preview") for n in (1, 2)]
    shown.answer = {**ANSWER, "results": results}
    shown.choose("a.png")
    shown.found("look").click()
    image = shown.found("pane-candidate").locator("img")
    holds(shown, held)
    shown.page.keyboard.press("ArrowRight")
    expect(image).to_have_js_property("naturalWidth", 60)  # the thumbnails come first
    before = image.get_attribute("src")
    [late] = held
    late.fulfill(body=PICTURE)
    shown.page.wait_for_timeout(500)
    assert image.get_attribute("src") == before


def test_items_that_are_found_late_are_shown_for_no_other_photograph(shown: Shown) -> None:
    listening(shown)
    batch_of(shown, {"a.png": UNSURE, "b.png": UNSURE}, 0.9)
    held = held_back(shown, "**/similar?*")
    shown.found("go-through").click()
    dialog = shown.page.get_by_role("dialog")
    shown.found("similar").click()
    holds(shown, held)
    shown.page.keyboard.press("y")
    expect(dialog.get_by_role("heading")).to_contain_text("label of b.png")
    held[0].fulfill(json={"results": [result(1, label="late")]})
    shown.page.wait_for_timeout(300)
    expect(dialog.get_by_role("heading")).to_contain_text("label of b.png")


def test_of_two_lists_that_are_asked_for_the_last_is_shown(shown: Shown) -> None:
    shown.replies["/v1/galleries/shoes/labels"] = {"labels": ["boot"], "next_after": None}
    dialog = looked_at(shown)
    held = held_back(shown, "**/search")
    for n, words in enumerate(("clog", "boot"), 1):
        shown.page.keyboard.press("/")
        shown.page.keyboard.type(words)
        shown.page.keyboard.press("Enter")
        holds(shown, held, n)
    for route, label in zip(reversed(held), ("boot", "clog"), strict=True):
        route.fulfill(json={**ANSWER, "results": [result(1, label=label)]})
        shown.page.wait_for_timeout(300)
    expect(dialog.get_by_role("heading")).to_have_text("boot")


def test_an_item_is_added_once(shown: Shown) -> None:
    listening(shown)
    held: list[Route] = []
    batch_of(shown, {"a.png": UNSURE, "b.png": UNSURE}, 0.9)

    def reply(route: Route) -> None:
        if route.request.method == "GET":
            route.fulfill(status=404, json=BUSY)
        else:
            held.append(route)

    shown.page.route("**/items/mine", reply)
    shown.found("go-through").click()
    shown.page.keyboard.press("a")
    shown.page.get_by_label("Id", exact=True).fill("mine")
    shown.page.keyboard.press("Enter")
    shown.page.keyboard.press("Enter")
    holds(shown, held)
    for route in held:
        route.fulfill(json={})
    shown.page.wait_for_timeout(500)
    assert [kind for kind, _ in heard(shown, 1)] == ["new"]
    assert len(held) == 1


def test_an_item_that_is_added_late_is_of_its_own_photograph(shown: Shown) -> None:
    listening(shown)
    held: list[Route] = []
    missing = {"title": "None", "detail": "There is no such item."}
    batch_of(shown, {"a.png": UNSURE, "b.png": UNSURE}, 0.9)
    shown.page.route("**/items/mine", lambda route: route.fulfill(status=404, json=missing)
                     if route.request.method == "GET" else held.append(route))  # fmt: skip
    shown.found("go-through").click()
    shown.page.keyboard.press("a")
    shown.page.get_by_label("Id", exact=True).fill("mine")
    shown.page.keyboard.press("Enter")
    holds(shown, held)
    shown.found("decide-none").click()
    dialog = shown.page.get_by_role("dialog")
    expect(dialog.get_by_role("heading")).to_contain_text("label of b.png")
    held[0].fulfill(json={})
    heard(shown, 3)
    said = [(one["decision"], one["query_id"]) for one in shown.sent("/feedback")]
    assert said == [("none_of_these", "a.png"), ("new", "a.png")]
    expect(dialog.get_by_role("heading")).to_contain_text("label of b.png")


def test_a_report_that_comes_late_is_of_its_own_gallery(shown: Shown) -> None:
    two_galleries(shown)
    shown.open()
    held = held_back(shown, "**/shoes/calibration")
    shown.found("open-report").click()
    holds(shown, held)
    shown.found("gallery-picker").select_option("boots")
    expect(shown.page.locator("#gallery-about p").first).to_have_text("Boots of a shop.")
    held[0].fulfill(json={**shown.report, "status": "missing", "queries": "x"})
    shown.page.wait_for_timeout(500)
    assert shown.complaints == []
    expect(shown.page.locator("dialog")).to_have_count(0)


def test_nothing_is_offered_of_a_gallery_that_is_left(shown: Shown) -> None:
    two_galleries(shown)
    shown.page.route("**/v1/galleries/boots", lambda route: route.fulfill(status=503, json=BUSY))
    shown.open()
    shown.found("gallery-picker").select_option("boots")
    expect(shown.found("problem")).to_be_visible()
    expect(shown.found("open-browse")).to_have_count(0)


def test_a_gallery_can_be_looked_through_until_another_is_open(shown: Shown) -> None:
    two_galleries(shown)
    shown.replies["/v1/galleries/shoes/items"] = items
    held_back(shown, "**/v1/galleries/boots")
    shown.open()
    shown.found("gallery-picker").select_option("boots")
    shown.found("open-browse").click()
    expect(shown.page.get_by_role("dialog").get_by_role("heading")).to_have_text("Browse shoes")
    assert shown.complaints == []


def test_a_list_goes_on_after_the_service_was_busy(shown: Shown) -> None:
    shown.ask(next_cursor="after-2")
    shown.page.route(
        "**/search/next?*", lambda route: route.fulfill(status=503, json=BUSY), times=1
    )
    shown.replies["/v1/galleries/shoes/search/next"] = {"results": [result(3)], "next_cursor": None}
    shown.found("more").click()
    expect(shown.found("more")).to_have_text("The service is busy.")
    expect(shown.found("more")).to_be_enabled()
    shown.found("more").click()
    expect(shown.found("neighbour")).to_have_count(3)


LOST = {"title": "The replica has ended", "detail": "Send it again.", "code": "replica_lost"}


def test_search_whose_replica_ended_is_sent_again(shown: Shown) -> None:
    shown.open()
    asked: list[bytes | None] = []

    def once(route: Route) -> None:
        asked.append(route.request.post_data_buffer)
        route.fulfill(status=502, json=LOST)

    shown.page.route("**/search", once, times=1)
    shown.choose("a.png")
    expect(shown.found("neighbour")).to_have_count(2)
    assert len(asked) == 1
    assert shown.complaints == []


def test_review_whose_replica_ended_is_not_sent_again_unasked(shown: Shown) -> None:
    shown.ask(audit=True)
    asked: list[str] = []

    def lost(route: Route) -> None:
        asked.append(route.request.method)
        route.fulfill(status=502, json=LOST)

    shown.page.route("**/feedback", lost)
    shown.found("audit").get_by_role("button", name="Yes").click()
    expect(shown.found("audit")).to_contain_text("Send it again.")
    assert asked == ["POST"]


def test_browsing_goes_on_after_the_service_was_busy(shown: Shown) -> None:
    shown.replies["/v1/galleries/shoes/items"] = items
    answers = iter((503, 429, 0))

    def reply(route: Route) -> None:
        status = next(answers, 200)
        if status == 0:
            route.abort()
        elif status == 200:
            route.fallback()
        else:
            route.fulfill(status=status, json=BUSY, headers={"Retry-After": "1"})

    shown.page.route("**/items?*", reply)
    shown.open()
    shown.found("open-browse").click()
    expect(shown.found("browse-status")).to_have_text("The service is busy.")
    expect(shown.found("browse-status")).to_contain_text("items, by id")


def test_scrolling_asks_a_busy_service_no_sooner(shown: Shown) -> None:
    shown.replies["/v1/galleries/shoes/items"] = items
    shown.open()
    asked: list[Route] = []

    def busy(route: Route) -> None:
        asked.append(route)
        route.fulfill(status=503, json=BUSY, headers={"Retry-After": "600"})

    shown.page.route("**/items?*", busy)
    shown.found("open-browse").click()
    expect(shown.found("browse-status")).to_have_text("The service is busy.")
    for _ in range(3):
        shown.page.locator(".window").dispatch_event("scroll")
        shown.page.wait_for_timeout(200)
    assert len(asked) == 1


def deleted(file: Path) -> None:
    file.unlink()


def changed(file: Path) -> None:
    file.write_bytes(2 * PICTURE)  # another size: a browser looks at whole seconds of the time


def replaced_by_a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def images_sent(shown: Shown) -> list[str]:
    """The paths that images were sent to."""
    return [path for method, path, _ in shown.asked if method == "POST"]


@pytest.mark.parametrize("lost", [deleted, changed, replaced_by_a_folder])
class TestUnreadableFile:
    """Each time the page sends it, it says so; the service is not asked."""

    UNREADABLE = "The file was changed, moved or deleted after it was chosen"

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        file = tmp_path / "shoe.png"
        file.write_bytes(PICTURE)
        return file

    def test_search_again_says_so(
        self, shown: Shown, file: Path, lost: Callable[[Path], None]
    ) -> None:
        shown.open()
        shown.found("file-input").set_input_files(file)
        expect(shown.found("verdict")).to_be_visible()
        n_images = len(images_sent(shown))
        lost(file)
        shown.found("group_by").click()  # not `check`: it is gone before it is seen to be checked
        expect(shown.found("problem")).to_contain_text("The file cannot be read")
        expect(shown.found("problem")).to_contain_text(self.UNREADABLE)
        expect(shown.found("problem").get_by_role("button")).to_have_count(0)  # in vain
        assert len(images_sent(shown)) == n_images

    def test_crop_says_so(self, shown: Shown, file: Path, lost: Callable[[Path], None]) -> None:
        shown.open()
        shown.found("file-input").set_input_files(file)
        expect(shown.found("verdict")).to_be_visible()
        n_images = len(images_sent(shown))
        lost(file)
        shown.found("edit").click()
        expect(shown.found("problem")).to_contain_text(self.UNREADABLE)
        assert len(images_sent(shown)) == n_images

    def test_batch_says_so_of_that_file(
        self, shown: Shown, file: Path, lost: Callable[[Path], None]
    ) -> None:
        shown.replies[OPERATING_POINTS] = {"point": None}
        shown.open()
        names = [f"{i}.png" for i in range(4)]  # one more than are searched with at a time
        files = [file.with_name(name) for name in names]
        for one in files:
            one.write_bytes(PICTURE)
        held = held_back(shown, "**/search")
        shown.found("file-input").set_input_files(files)
        holds(shown, held, 3)
        lost(files[3])
        for route in held:
            route.fulfill(json=ANSWER)
        expect(shown.page.get_by_role("progressbar")).to_be_hidden()
        rows = shown.found("batch-row")
        expect(rows.filter(has_text="3.png")).to_contain_text(f"failed: {self.UNREADABLE}")
        expect(rows.filter(has_text="failed")).to_have_count(1)
        assert len(held) == 3

    def test_new_item_says_so(self, shown: Shown, file: Path, lost: Callable[[Path], None]) -> None:
        held: list[Route] = []
        shown.page.route("**/items/mine", lambda route: route.fulfill(status=404, json=BUSY)
                         if route.request.method == "GET" else held.append(route))  # fmt: skip
        shown.open()
        shown.found("file-input").set_input_files(file)
        look_closely(shown.page)
        lost(file)
        shown.page.keyboard.press("a")
        shown.page.get_by_label("Id", exact=True).fill("mine")
        shown.page.keyboard.press("Enter")
        expect(shown.found("add-form").get_by_role("alert")).to_contain_text(self.UNREADABLE)
        assert held == []


def test_service_that_cannot_be_reached_is_no_unreadable_file(shown: Shown) -> None:
    shown.open()
    shown.page.route("**/search", lambda route: route.abort())
    shown.choose("a.png")
    expect(shown.found("problem")).to_contain_text("The service cannot be reached")


def test_a_photograph_of_before_is_shown_again(shown: Shown) -> None:
    looked_at(shown)
    shown.page.keyboard.press("y")
    expect(shown.page.locator("dialog")).to_have_count(0)
    looked_at(shown)
    shown.page.keyboard.press("u")
    expect(shown.found("look-status")).to_have_text("Taken back.")
    image = shown.found("pane-question").locator("img")
    expect(image).to_have_js_property("complete", value=True)
    assert image.evaluate("node => node.decode().then(() => node.naturalWidth)") > 0


def test_a_decision_on_another_gallery_is_not_taken_back_in_this_one(shown: Shown) -> None:
    listening(shown)
    two_galleries(shown)
    looked_at(shown)
    shown.page.keyboard.press("y")
    expect(shown.page.locator("dialog")).to_have_count(0)
    heard(shown, 1)
    looked_at_in_boots(shown)
    shown.page.keyboard.press("u")
    expect(shown.found("look-status")).to_have_text("There is nothing to take back.")
    shown.page.keyboard.press("y")
    assert heard(shown, 2) == [("this_item", "item-1"), ("this_item", "boot")]


def test_a_decision_that_could_not_be_replaced_is_replaced_at_last(shown: Shown) -> None:
    listening(shown)
    looked_at(shown)
    shown.page.keyboard.press("y")
    expect(shown.page.locator("dialog")).to_have_count(0)
    heard(shown, 1)
    shown.page.route("**/feedback/1", lambda route: route.fulfill(status=503, json=BUSY), times=1)
    for _ in range(2):
        look_closely(shown.page)
        shown.page.keyboard.press("0")
        expect(shown.page.locator("dialog")).to_have_count(0)
        shown.page.wait_for_timeout(300)
    assert heard(shown, 3) == [("this_item", "item-1"), ("undo", "1"), ("none_of_these", None)]


def test_a_deletion_that_comes_late_leaves_what_is_looked_at(shown: Shown) -> None:
    shown.replies["/v1/galleries/shoes/items"] = items
    held = held_back(shown, "**/items/item-000001")
    shown.open()
    shown.found("open-browse").click()
    shown.found("browse").locator("[data-place='1']").click()
    shown.found("delete").click()
    shown.found("delete").click()
    holds(shown, held)
    shown.found("browse").locator("[data-place='2']").click()
    held[0].fulfill(json={})
    expect(shown.found("browse-done")).to_contain_text("no longer")
    expect(shown.found("browse-about")).to_contain_text("item-000002")
    window = shown.page.get_by_role("group", name="Items")
    window.evaluate("node => node.scrollTo(0, 5000)")
    expect(shown.found("browse").locator("[data-place='1']")).to_have_count(0)
    window.evaluate("node => node.scrollTo(0, 0)")
    expect(shown.found("browse").locator("[data-place='1']")).to_be_disabled()
    expect(shown.found("browse-status")).to_contain_text("items, by id")
    expect(shown.found("browse-done")).to_contain_text("no longer")  # more items leave it there


def test_what_is_said_of_an_answer_is_sent_in_turn(shown: Shown) -> None:
    """The last word counts: two at once could come in another order."""
    listening(shown)
    shown.ask(audit=True)
    held = held_back(shown, "**/feedback")
    yes, no = (shown.found("audit").get_by_role("button", name=name) for name in ("Yes", "No"))
    yes.click()
    holds(shown, held)
    expect(no).to_be_disabled()
    held[0].fulfill(json={"number": 1})
    expect(shown.found("audit")).to_contain_text("Thank you.")
    no.click()
    holds(shown, held, 2)
    said = [json.loads(route.request.post_data or "")["decision"] for route in held]
    assert said == ["this_item", "not_this_item"]


@pytest.mark.parametrize(
    ("module", "button"),
    [
        ("accuracy/accuracy", "open-report"),
        ("browse/browsing", "open-browse"),
        ("ask/crop", "edit"),
        ("look/looking", "look"),
    ],
)
def test_a_part_of_the_page_that_does_not_come_says_so(
    fresh: Shown, module: str, button: str
) -> None:
    """The service is started anew, say."""
    shown = fresh
    shown.page.route(f"**/{module}.js", lambda route: route.abort())
    shown.ask(results=[result(rank) for rank in range(1, 100)])
    shown.page.evaluate("scrollTo(0, document.body.scrollHeight)")
    shown.found(button).click()
    expect(shown.found("problem")).to_contain_text("Part of the page failed to load.")
    expect(shown.found("problem")).to_be_in_viewport()
    expect(shown.found("verdict")).to_be_visible()
    assert shown.complaints == []


def test_a_batch_whose_part_of_the_page_does_not_come_says_so(fresh: Shown) -> None:
    shown = fresh
    shown.open()
    shown.page.route("**/batch/batch.js", lambda route: route.abort())
    shown.choose("a.png", "b.png")
    expect(shown.found("problem")).to_contain_text("Part of the page failed to load.")


def test_a_double_click_or_a_held_key_deletes_nothing(shown: Shown) -> None:
    shown.replies["/v1/galleries/shoes/items"] = items
    shown.open()
    shown.found("open-browse").click()
    shown.found("browse").locator("[data-place='1']").click()
    shown.found("delete").dblclick()
    shown.page.wait_for_timeout(300)
    expect(shown.found("delete")).to_have_text("Press again: it cannot be taken back")
    shown.found("browse").locator("[data-place='2']").click()
    shown.found("delete").focus()
    for _ in range(3):
        shown.page.keyboard.down("Enter")
    shown.page.keyboard.up("Enter")
    shown.page.wait_for_timeout(300)
    expect(shown.found("delete")).to_have_text("Press again: it cannot be taken back")
    assert [path for method, path, _ in shown.asked if method == "DELETE"] == []


def test_a_double_click_opens_one_dialog(fresh: Shown) -> None:
    shown = fresh
    shown.replies["/v1/galleries/shoes/items"] = items
    shown.ask()
    shown.page.evaluate(DECODES_ONE_AFTER_ANOTHER)
    for button in ("open-browse", "edit", "look"):
        shown.found(button).evaluate(DOUBLE_CLICK)
        expect(shown.page.get_by_role("dialog")).to_be_visible()
        shown.page.keyboard.press("Escape")
        expect(shown.page.locator("dialog")).to_have_count(0)
        shown.page.wait_for_timeout(400)
        expect(shown.page.locator("dialog")).to_have_count(0)


def test_a_double_click_asks_once_for_what_opens(shown: Shown) -> None:
    shown.report = {**shown.report, "status": "missing", "risk_coverage": [], "reliability": []}
    shown.open()
    held = held_back(shown, "**/shoes/calibration")
    shown.found("open-report").evaluate(DOUBLE_CLICK)
    holds(shown, held)
    shown.page.wait_for_timeout(300)
    assert len(held) == 1
    held[0].fulfill(status=503, json=BUSY)
    expect(shown.page.get_by_role("dialog")).to_be_visible()  # of the report that there was
    shown.page.keyboard.press("Escape")
    shown.found("open-report").click()  # once it is closed, it can be opened again
    holds(shown, held, 2)


def test_what_is_dropped_while_another_is_cropped_takes_its_place(shown: Shown) -> None:
    shown.open()
    shown.page.get_by_label("Crop & rotate before the search").check()
    shown.choose("a.png")
    expect(shown.found("crop")).to_have_count(1)
    first = shown.found("crop").element_handle()
    shown.choose("b.png")
    shown.page.wait_for_function("first => !first.isConnected", arg=first)
    expect(shown.found("crop")).to_have_count(1)
    shown.page.get_by_role("button", name="Search with this").click()
    expect(shown.found("verdict")).to_be_visible()
    expect(shown.page.locator("dialog")).to_have_count(0)
    [body] = [body for _, path, body in shown.asked if path.endswith("/search")]
    assert b'filename="b.png"' in body


def test_a_link_to_another_gallery_opens_it(shown: Shown) -> None:
    two_galleries(shown)
    shown.open()
    shown.page.evaluate("location.hash = '#boots'")
    expect(shown.page.locator("#gallery-about p").first).to_have_text("Boots of a shop.")
    shown.page.go_back()
    expect(shown.page.locator("#gallery-about p").first).to_have_text("Shoes of a shop.")


def test_a_label_that_was_just_added_is_found(shown: Shown) -> None:
    labels = ["boot"]
    shown.replies["/v1/galleries/shoes/labels"] = lambda _: {"labels": labels, "next_after": None}

    def reply(route: Route) -> None:
        route.fulfill(status=404 if route.request.method == "GET" else 200, json=BUSY)

    def found(words: str) -> str:
        """What is searched for by a part of a label."""
        shown.page.keyboard.press("/")
        shown.page.keyboard.type(words)
        with shown.page.expect_request(re.compile("/search$")) as asked:
            shown.page.keyboard.press("Enter")
        expect(shown.found("look-status")).to_contain_text("items, most similar first.")
        return asked.value.post_data or ""

    shown.page.route("**/items/mine", reply)
    looked_at(shown)
    assert '{"label":{"in":["boot"]}}' in found("boot")
    shown.found("decide-is").focus()
    shown.page.keyboard.press("a")
    shown.page.get_by_label("Id", exact=True).fill("mine")
    shown.page.get_by_label("Label, if it has one").fill("clog")
    labels.append("clog")
    shown.page.keyboard.press("Enter")
    look_closely(shown.page)
    assert '{"label":{"in":["clog"]}}' in found("clog")
