"""A collection begins on the page: photographs are added, to a new gallery too. Real Chromium."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from playwright.sync_api import Browser, FilePayload, Page, Route, expect

from index_builder.datasets.small_images import digits
from tests.end_to_end.processes import Service
from tests.end_to_end.shown_page import GALLERY, PICTURE, REPORT, RUN, Shown
from tests.end_to_end.stage import Asked
from tests.end_to_end.test_page_late import held_back
from tests.support.image_files import encoded

pytestmark = pytest.mark.browser

N_LABELS, N_OF_EACH = 4, 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Digits in a folder for each label, a copy of one of them, and a text."""
    images = digits()
    place = tmp_path / "photographs"
    for label in map(str, range(N_LABELS)):
        (place / label).mkdir(parents=True)
        rows = [row for row, one in enumerate(images.labels) if one == label][:N_OF_EACH]
        for row in rows:
            data = encoded(images.pixels(row), "PNG")
            (place / label / f"{row}.png").write_bytes(data)
    (place / "0" / "copy.png").write_bytes(next((place / "0").iterdir()).read_bytes())
    (place / "readme.txt").write_text("no image")
    return place


def test_what_is_left_out_is_counted_and_what_claims_nothing_is_taken(
    shown: Shown, folder: Path
) -> None:
    (folder / "3" / "scan").write_bytes(b"a photograph without an extension")
    shown.open()
    shown.found("open-add").click()
    shown.found("adding-folder").set_input_files(folder)
    status = shown.found("adding-status")
    expect(status).to_have_text("13 to add, 4 labels · 1 chosen twice · 1 left out: no images")
    shown.page.keyboard.press("Escape")
    text = FilePayload(name="a.txt", mimeType="text/plain", buffer=b"no image")
    photo = FilePayload(name="a.png", mimeType="image/png", buffer=PICTURE)
    other = FilePayload(name="b.txt", mimeType="text/plain", buffer=b"no image")
    shown.found("file-input").set_input_files([text, other])
    expect(shown.found("problem")).to_contain_text("There is no image in what was chosen")
    shown.found("file-input").set_input_files([text, photo])
    expect(shown.found("left-out")).to_have_text("1 file is no image and was left out.")
    expect(shown.found("batch-row")).to_have_count(1)


@pytest.fixture(scope="module")
def served(digits_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    place = tmp_path_factory.mktemp("created")
    variables = {"VOUCH_GALLERIES": str(place / "galleries")}
    with Service(digits_bundle, place / "log", variables) as service:
        yield service


@pytest.fixture
def page(browser: Browser, served: Service) -> Iterator[Page]:
    expect.set_options(timeout=20_000)
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(str(served.http.base_url))
    yield page
    assert wrong == []
    page.close()


def test_a_folder_becomes_a_gallery_that_is_searched(
    page: Page, served: Service, folder: Path
) -> None:
    page.get_by_test_id("open-add").click()
    page.get_by_label("Add to").select_option(label="New gallery…")
    page.get_by_label("Name of the new gallery").fill("my-digits")
    page.get_by_test_id("adding-folder").set_input_files(folder)
    n = N_LABELS * N_OF_EACH
    status = page.get_by_test_id("adding-status")
    expect(status).to_have_text(
        f"{n} to add, {N_LABELS} labels · 1 chosen twice · 1 left out: no images"
    )
    expect(page.get_by_test_id("adding-failed")).to_contain_text("the same photo as 0/")
    page.get_by_test_id("add-all").click()
    expect(status).to_contain_text(f"{n} of {n + 1} added")
    items = served.http.get("/v1/galleries/my-digits/items").json()["items"]
    assert {(item["id"].split("/")[0], item["label"]) for item in items} == {
        (label, label) for label in map(str, range(N_LABELS))
    }
    page.get_by_test_id("adding").get_by_role("button", name="Set up guarantees").click()
    expect(page.get_by_test_id("guarantees")).to_contain_text("Not calibrated yet")
    expect(page.get_by_test_id("guarantees")).to_contain_text(f"{n} items with {N_LABELS} labels.")
    page.keyboard.press("Escape")
    expect(page.get_by_test_id("gallery-picker")).to_have_value("my-digits")
    photo = encoded(digits().pixels(digits().labels.index("2")), "PNG")
    page.get_by_test_id("file-input").set_input_files(
        [FilePayload(name="two.png", mimeType="image/png", buffer=photo)]
    )
    page.get_by_role("button", name="Search anyway").click()  # it has 8 x 8 pixels
    expect(page.get_by_test_id("verdict")).to_have_attribute("data-verdict", "not_calibrated")
    expect(page.get_by_test_id("neighbour").first.locator("b")).to_have_text("2")


def test_folders_below_that_of_a_label_are_series(
    page: Page, served: Service, folder: Path
) -> None:
    (folder / "0" / "copy.png").unlink()
    for label, seconds in (("0", ("dawn", "dusk")), ("1", ("dawn",))):
        photographs = sorted((folder / label).glob("[0-9]*.png"))
        for row, photograph in enumerate(photographs):
            series = folder / label / seconds[row % len(seconds)]
            series.mkdir(exist_ok=True)
            photograph.rename(series / photograph.name)
    page.get_by_test_id("open-add").click()
    page.get_by_label("Add to").select_option(label="New gallery…")
    page.get_by_label("Name of the new gallery").fill("series")
    page.get_by_label("one series").check()
    page.get_by_test_id("adding-folder").set_input_files(folder)
    expect(page.get_by_test_id("adding-status")).to_contain_text("12 to add, 4 labels")
    page.get_by_test_id("add-all").click()
    expect(page.get_by_test_id("adding-status")).to_contain_text("12 of 12 added")
    items = served.http.get("/v1/galleries/series/items").json()["items"]
    found = {(item["label"], item["metadata"]["group"]) for item in items}
    assert found == {("0", "0/dawn"), ("0", "0/dusk"), ("1", "1/dawn"), ("2", "2"), ("3", "3")}


def test_photographs_that_were_added_are_taken_back(
    page: Page, served: Service, folder: Path
) -> None:
    page.get_by_test_id("open-add").click()
    page.get_by_label("Label of all photos").fill("seven")
    page.get_by_test_id("adding-files").set_input_files(sorted((folder / "1").iterdir()))
    page.get_by_test_id("add-all").click()
    # The demo's own gallery is one bundle, which never changes.
    expect(page.get_by_test_id("adding-problem")).to_contain_text("which never changes")
    page.get_by_label("Add to").select_option(label="New gallery…")
    page.get_by_label("Name of the new gallery").fill("my-sevens")
    page.get_by_test_id("add-all").click()
    status = page.get_by_test_id("adding-status")
    expect(status).to_have_text(f"{N_OF_EACH} of {N_OF_EACH} added")
    items = served.http.get("/v1/galleries/my-sevens/items").json()["items"]
    assert [item["label"] for item in items] == ["seven"] * N_OF_EACH
    page.get_by_test_id("undo-adding").click()
    expect(status).to_have_text(f"{N_OF_EACH} to add, 1 label")
    assert served.http.get("/v1/galleries/my-sevens/items").json()["items"] == []


ITEMS = "/v1/galleries/shoes/items"


def test_an_upload_goes_on_after_a_reload(shown: Shown, folder: Path) -> None:
    shown.replies[ITEMS] = {"items": [{"id": "0/copy.png"}], "n_items": 1, "next_cursor": None}
    held = held_back(shown, "**/items/0/*")
    shown.open()
    shown.found("open-add").click()
    shown.found("adding-folder").set_input_files(folder)
    expect(shown.found("adding-status")).to_contain_text("12 to add")
    shown.found("add-all").click()
    shown.until(lambda: len(held) == 2)
    assert shown.page.url.endswith("#/shoes/add")
    shown.page.reload()
    shown.page.unroute_all(behavior="ignoreErrors")  # before the reload, it would go on
    expect(shown.found("adding-status")).to_contain_text("to add")
    shown.found("add-all").click()
    expect(shown.found("adding-status")).to_contain_text("1 already in the gallery")
    expect(shown.found("add-all")).to_be_hidden()
    put = [path for method, path, _ in shown.asked if method == "PUT"]
    assert len(set(put)) == 11
    assert len(put) <= 11 + 2  # those that were under way at the reload


def test_what_was_on_its_way_at_a_reload_is_taken_back(shown: Shown, folder: Path) -> None:
    put: set[str] = set()

    def listed(asked: Asked) -> dict[str, Any]:
        wanted = json.loads(parse_qs(urlsplit(asked.url).query)["filter"][0])["id"]["in"]
        return {"items": [{"id": one} for one in wanted if one in put], "next_cursor": None}

    def stored(route: Route) -> None:
        put.add(unquote(route.request.url.split("/items/")[1]))  # its answer never comes

    shown.replies[ITEMS] = listed
    shown.page.route("**/items/*/*", stored)
    shown.open()
    shown.found("open-add").click()
    shown.found("adding-folder").set_input_files(folder)
    shown.found("add-all").click()
    shown.until(lambda: len(put) == 2)
    shown.page.reload()
    shown.page.unroute_all(behavior="ignoreErrors")
    status = shown.found("adding-status")
    expect(status).to_contain_text("12 to add")
    expect(shown.found("adding")).to_contain_text("after a reload, you can continue")
    shown.found("add-all").click()
    expect(status).to_have_text("12 of 13 added · 1 chosen twice")
    shown.found("undo-adding").click()
    expect(status).to_contain_text("12 to add")
    deleted = {path for method, path, _ in shown.asked if method == "DELETE"}
    assert len(deleted) == 12
    assert deleted >= {f"{ITEMS}/{one}" for one in put}
    shown.page.reload()
    expect(status).to_contain_text("12 to add")


def test_what_fails_is_named_and_tried_again(shown: Shown, folder: Path) -> None:
    shown.replies[ITEMS] = {"items": [], "n_items": 0, "next_cursor": None}
    broken = {"title": "No image", "detail": "The file is broken."}
    shown.page.route("**/items/1/*", lambda route: route.fulfill(status=422, json=broken))
    shown.open()
    shown.found("open-add").click()
    shown.found("adding-folder").set_input_files(folder)
    shown.found("add-all").click()
    again = shown.page.get_by_role("button", name="Try the failed ones again")
    expect(again).to_be_visible()
    expect(shown.found("adding-status")).to_contain_text("3 failed")
    expect(shown.found("adding-failed")).to_contain_text(".png: The file is broken.")
    shown.page.unroute_all(behavior="ignoreErrors")
    again.click()
    expect(shown.found("adding-status")).to_have_text(
        "12 of 13 added · 1 chosen twice · 1 left out: no images"
    )


def test_an_empty_gallery_offers_to_add_photographs(shown: Shown) -> None:
    shown.gallery = {**GALLERY, "n_items": 0, "n_labels": 0, "labels": []}
    shown.open()
    shown.found("empty").get_by_role("button", name="Add photographs").click()
    expect(shown.found("adding")).to_be_visible()


def test_who_may_not_write_is_offered_nothing_to_change(shown: Shown) -> None:
    shown.replies["/v1/usage"] = {"scope": "read", "key": None}
    shown.gallery = {**GALLERY, "n_items": 0}
    shown.open()
    expect(shown.found("empty")).to_contain_text("A key that may write is needed")
    expect(shown.found("open-add")).to_have_count(0)
    expect(shown.found("open-guarantees")).to_have_count(0)


def test_what_guarantees_need_is_said(shown: Shown) -> None:
    counts = [{"reason": "random", "state": "open", "n": 7}]
    counts += [{"reason": "random", "state": "settled", "n": 2}]
    shown.replies["/v1/galleries/shoes/review/summary"] = {"counts": counts, "reviewers": 1}
    promise: dict[str, Any] = {"size_class": "one", "n_labels": 3, "threshold": None}
    promise["reason"] = "There are 12 queries, about 90 would do."
    shown.report = {**REPORT, "errors_over_time": {"n_asked": 0}, "status": "valid"}
    shown.report |= {"n_queries": 1234, "matches": [promise]}
    shown.open()
    shown.found("open-guarantees").click()
    dialog = shown.found("guarantees")
    expect(dialog).to_contain_text("A calibration with 1,234 queries.")
    expect(dialog).to_contain_text("labels with one item: There are 12 queries, about 90 would do.")
    expect(shown.found("queue-state")).to_have_text("Review queue: 7 open, 2 decided.")
    expect(dialog.get_by_role("button", name="Review queue")).to_be_visible()


CALIBRATION = "/v1/galleries/shoes/calibration"
UNCALIBRATED = {**REPORT, "status": "missing", "n_queries": 0, "matches": [], "max_error": None}


def calibrating(shown: Shown, *runs: dict[str, Any], report: dict[str, Any] | None = None) -> None:
    """Begin a calibration with an error of 10 %, which changes the report.

    Each of ``runs`` is its state, once asked for.
    """
    left = list(runs)
    shown.report = UNCALIBRATED

    def of_calibration(asked: Any) -> Any:
        if asked.method != "POST":
            return shown.report
        shown.report = report or UNCALIBRATED
        return {**RUN, "state": "running"}

    def of_run(_: Any) -> Any:
        begun = any(method == "POST" and path == CALIBRATION for method, path, _ in shown.asked)
        return left.pop(0) if begun else RUN

    shown.replies |= {CALIBRATION: of_calibration, f"{CALIBRATION}/run": of_run}
    shown.open()
    shown.found("open-guarantees").click()
    expect(shown.found("paired")).to_contain_text("280 photos share their label")
    shown.found("guarantees").get_by_label("Largest share of wrong matches").select_option("0.1")
    shown.found("calibrate").click()


def test_calibration_is_started_and_its_outcome_is_shown(shown: Shown) -> None:
    report = {**REPORT, "status": "valid", "n_queries": 280, "matches": []}
    runs = {**RUN, "state": "running"}, RUN | {"state": "succeeded"}, RUN
    calibrating(shown, *runs, report=report)
    expect(shown.found("calibrating-status")).to_contain_text("Calibrating.")
    # For a moment, the dialog before it is there, too.
    outcome = shown.page.get_by_role("dialog")
    expect(outcome).to_contain_text("A calibration with 280 queries.")
    expect(shown.found("calibrate")).to_have_text("Calibrate again")
    bodies = [body for method, path, body in shown.asked if (method, path) == ("POST", CALIBRATION)]
    assert [json.loads(body) for body in bodies] == [{"max_error": 0.1}]


def test_calibration_that_fails_says_why_and_can_be_tried_again(shown: Shown) -> None:
    calibrating(shown, {**RUN, "state": "failed", "reason": "Copies do not count."})
    status = shown.found("calibrating-status")
    expect(status).to_have_text("Not calibrated. Copies do not count.")
    expect(shown.found("calibrate")).to_be_enabled()


def test_calibration_that_somebody_started_is_followed(shown: Shown) -> None:
    shown.report = UNCALIBRATED
    shown.replies[f"{CALIBRATION}/run"] = {**RUN, "state": "running"}
    shown.open()
    shown.found("open-guarantees").click()
    expect(shown.found("calibrating-status")).to_contain_text("Calibrating.")
    expect(shown.found("calibrate")).to_be_disabled()


def test_gallery_with_too_few_labelled_photographs_says_so(shown: Shown) -> None:
    shown.report = UNCALIBRATED
    shown.replies[f"{CALIBRATION}/run"] = {**RUN, "n_item_queries": 12}
    shown.open()
    shown.found("open-guarantees").click()
    expect(shown.found("paired")).to_contain_text("12 photos share their label")
    expect(shown.found("paired")).to_have_class("warning")


def test_calibration_needs_an_administrator(shown: Shown) -> None:
    shown.report = UNCALIBRATED
    shown.replies["/v1/usage"] = {"scope": "write", "key": "k"}
    shown.open()
    shown.found("open-guarantees").click()
    expect(shown.found("guarantees")).to_contain_text("Only an administrator may calibrate.")
    expect(shown.found("calibrate")).to_have_count(0)


GROUP: dict[str, Any] = {
    "id": "0123456789abcdef",
    "n": 3,
    "p_same": 0.93,
    "medoid": "a" * 64,
    "first_asked_at": "2026-01-02T12:00:00Z",
    "last_asked_at": "2026-01-03T12:00:00Z",
    "members": [
        {"query_id": letter * 64, "p_same": 0.9, "asked_at": "", "image_url": "/v1/a"}
        for letter in "abc"
    ],
}
UNKNOWN = "/v1/galleries/shoes/unknown"


def unknown(shown: Shown, group: dict[str, Any] = GROUP) -> None:
    """Open the groups of a gallery: there is one."""
    shown.report = {**REPORT, "errors_over_time": {"n_asked": 0}}
    shown.replies[UNKNOWN] = {"n_queries": 5, "n_grouped": 3, "n_groups": 1, "groups": [group]}
    shown.open()
    shown.found("open-unknown").click()
    expect(shown.found("unknown-status")).to_have_text(
        "5 photos matched nothing; 3 of them are in 1 group."
    )


def test_a_group_of_unknown_photographs_is_split_named_and_taken_back(shown: Shown) -> None:
    enrolled = [
        {"query_id": letter * 64, "item_id": letter, "number": number}
        for number, letter in enumerate("ac", start=7)
    ]
    shown.replies[f"{UNKNOWN}/{GROUP['id']}/enrol"] = {"items": enrolled}
    shown.replies |= {f"{ITEMS}/{item}": {} for item in "ac"}
    unknown(shown)
    group = shown.found("unknown-group")
    group.get_by_label("Photo 2 belongs to the group").uncheck()
    group.get_by_label("one series").check()
    group.get_by_label("Name").fill("sandal")
    shown.page.keyboard.press("Enter")
    expect(group).to_contain_text("2 photos are in the gallery as “sandal”.")
    assert shown.sent("/enrol") == [
        {
            "label": "sandal",
            "query_ids": ["a" * 64, "c" * 64],
            "reviewer": "Ada",
            "metadata": {"group": GROUP["id"]},
        }
    ]
    group.get_by_role("button", name="Undo").click()
    expect(group).to_contain_text("Taken back.")
    deleted = [path for method, path, _ in shown.asked if method == "DELETE"]
    feedback = "/v1/galleries/shoes/feedback"
    assert deleted == [f"{feedback}/7", f"{ITEMS}/a", f"{feedback}/8", f"{ITEMS}/c"]
    expect(group.get_by_role("button", name="Name and add")).to_be_focused()


def test_each_photograph_of_a_large_group_is_shown_before_it_is_added(shown: Shown) -> None:
    members = [{**GROUP["members"][0], "query_id": f"{n:064x}"} for n in range(30)]
    group = {**GROUP, "n": 30, "members": members}
    unknown(shown, group)
    boxes = shown.found("unknown-group").get_by_label("belongs to the group")
    expect(boxes).to_have_count(30)


BRING = """([selector, way]) => {
    const held = new DataTransfer();
    for (const name of ["a.png", "b.png"]) {
        held.items.add(new File([name], name, { type: "image/png" }));
    }
    const [name, data] = way === "paste"
        ? ["ClipboardEvent", "clipboardData"] : ["DragEvent", "dataTransfer"];
    const event = new globalThis[name](way, { [data]: held, bubbles: true, cancelable: true });
    document.querySelector(selector).dispatchEvent(event);
    return [event.defaultPrevented, held.dropEffect];
}"""
"""Drag, drop or paste two files at an element."""


def test_photographs_that_are_dropped_on_the_dialog_are_added(shown: Shown) -> None:
    shown.open()
    shown.found("open-add").click()
    expect(shown.found("adding")).to_be_visible()
    assert shown.page.evaluate(BRING, ["dialog", "dragover"])[0]
    shown.page.evaluate(BRING, ["dialog", "drop"])
    expect(shown.found("adding-status")).to_contain_text("2 to add")
    assert shown.page.url.endswith("#/shoes/add")
    assert not any(path.endswith("/search") for _, path, _ in shown.asked)


def test_nothing_is_searched_with_behind_a_dialog(shown: Shown) -> None:
    shown.ask()
    shown.found("look").click()
    expect(shown.found("look")).to_have_count(2)  # the dialog has the name of its button
    assert shown.page.evaluate(BRING, ["dialog", "dragover"]) == [True, "none"]
    shown.page.evaluate(BRING, ["dialog", "drop"])
    shown.page.evaluate(BRING, ["dialog", "paste"])
    shown.page.wait_for_timeout(300)
    assert sum(path.endswith("/search") for _, path, _ in shown.asked) == 1
    expect(shown.page.locator("#batch-place")).to_be_hidden()
    assert shown.page.url.endswith("#/shoes/query/query-1")
