"""Many photographs at once: a table, one error budget, decisions by keyboard. Real Chromium."""

from __future__ import annotations

import csv
import io
import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, FilePayload, Request, expect

from tests.end_to_end.processes import Service
from tests.end_to_end.shown_page import ANSWER, CALIBRATION, PICTURE, REPORT, Shown, result
from tests.end_to_end.stage import ORIGIN, Asked
from tests.end_to_end.test_page_accuracy import REPORT as ACCURACY
from tests.end_to_end.test_page_browsing import FACETS

pytestmark = pytest.mark.browser

OPERATING_POINTS = "/v1/galleries/shoes/calibration/operating-points"
SURE = {"verdict": "match", "p": 0.999}
LIKELY = {"verdict": "match", "p": 0.95}
UNSURE = {"verdict": "ambiguous", "p": 0.55}
DOUBTFUL = {"verdict": "ambiguous", "p": 0.2}
STRANGE = {"verdict": "out_of_distribution", "p": 0.99}
NOTHING = {"verdict": "no_match", "p": 0.01}


def name_of(request: Asked) -> str:
    """The file name in a search."""
    return request.body.split(b'filename="')[1].split(b'"')[0].decode()


def answer_of(name: str, said: dict[str, Any]) -> dict[str, Any]:
    first = result(1, id=f"item-of-{name}", label=f"label of {name}", match_probability=said["p"])
    query = {**ANSWER["query"], "id": name}
    return {**ANSWER, "verdict": said["verdict"], "query": query, "results": [first, result(2)]}


def answering(answers: dict[str, dict[str, Any]]) -> Callable[[Asked], dict[str, Any]]:
    return lambda request: answer_of(name_of(request), answers[name_of(request)])


def batch_of(shown: Shown, answers: dict[str, dict[str, Any]], threshold: float | None) -> None:
    """A batch that has been searched with."""
    point = None if threshold is None else {"threshold": threshold}
    shown.replies[OPERATING_POINTS] = {"point": point}
    shown.answer = answering(answers)  # type: ignore[assignment] # by file
    shown.open()
    shown.choose(*answers)
    expect(shown.found("batch")).to_be_visible()
    expect(shown.page.get_by_role("progressbar")).to_be_hidden()


THREE_ARE_KEPT = """() => new Promise((resolve) => {
    const opening = indexedDB.open("vouch");
    opening.onsuccess = () => {
        const { result } = opening;
        const all = result.transaction("rows").objectStore("rows").getAll();
        all.onsuccess = () => {
            result.close();
            resolve(all.result.filter(({ decision }) => decision?.state === "sent").length === 3);
        };
    };
})"""
"""Whether the browser has three decisions that were sent."""


def states(shown: Shown) -> list[tuple[str, str]]:
    """Name and state of each row, from the top."""
    rows = shown.found("batch-row")
    read = "rows => rows.map(r => [r.querySelector('.file').textContent, r.dataset.state])"
    return [(name, state) for name, state in rows.evaluate_all(read)]


def test_what_needs_a_person_stands_first(shown: Shown) -> None:
    answers = {
        "sure": SURE,
        "strange": STRANGE,
        "doubtful": DOUBTFUL,
        "unsure": UNSURE,
        "nothing": NOTHING,
    }
    batch_of(shown, answers, 0.9)
    expect(shown.found("budget-sentence")).to_have_text(
        "1 accepted automatically · expected wrong: fewer than 0.1 · 4 to review"
    )
    assert states(shown) == [
        ("unsure", "look"),
        ("doubtful", "look"),
        ("nothing", "look"),
        ("strange", "look"),
        ("sure", "accepted"),
    ]
    rows = shown.found("batch-row")
    expect(rows.first).to_contain_text("Not sure")
    expect(rows.first).to_contain_text("label of unsure, 55")
    strange = rows.filter(has_text="strange")
    expect(strange).to_contain_text("Not recognised")
    expect(strange).not_to_contain_text("%")  # its probability is withheld


def test_one_error_budget_is_kept_over_the_batch(shown: Shown) -> None:
    answers = {f"sure-{i}": SURE for i in range(8)} | {f"likely-{i}": LIKELY for i in range(4)}
    batch_of(shown, answers, 0.9)
    # Of 8 sure ones 0.008 are expected to be wrong, with one likely one 0.058 of 9, within 1 %;
    # with two of them 0.108 of 10, which is more.
    sentence = shown.found("budget-sentence")
    expect(shown.found("budget")).to_have_value("0.05")  # what the gallery guarantees
    expect(sentence).to_contain_text(
        "12 accepted automatically · expected wrong: 0.2 · 0 to review"
    )
    shown.found("budget").select_option("0.01")
    expect(sentence).to_contain_text("9 accepted automatically · expected wrong: fewer than 0.1")
    expect(sentence).to_contain_text("3 to review")
    shown.replies[OPERATING_POINTS] = {"point": {"threshold": 0.98}}
    shown.found("budget").select_option("0.1")
    expect(sentence).to_contain_text("8 accepted")  # the calibration guarantees no more
    shown.replies[OPERATING_POINTS] = {"point": None}
    shown.found("budget").select_option("0.005")
    expect(sentence).to_contain_text("0 accepted automatically")
    expect(shown.found("promise")).to_contain_text("guarantees no error as small as 0.5")


def test_nothing_is_accepted_by_a_calibration_that_is_out_of_date(shown: Shown) -> None:
    stale = {"id": "0", "calibration": {**CALIBRATION, "status": "stale", "reason": "It drifted."}}
    sure = answer_of("a", SURE)
    shown.replies[OPERATING_POINTS] = {"point": {"threshold": 0.5}}
    shown.answer = {**sure, "bundle": stale}
    shown.open()
    shown.choose("a", "b")
    expect(shown.found("budget-sentence")).to_contain_text("0 accepted automatically")
    expect(shown.found("outdated")).to_contain_text("It drifted.")


def test_a_hundred_decisions_take_a_hundred_keys(shown: Shown) -> None:
    shown.report = {**REPORT, "errors_over_time": {"n_asked": 0}}
    batch_of(shown, {f"photo-{i:03}": UNSURE for i in range(100)}, None)
    shown.found("go-through").focus()
    shown.page.keyboard.press("Enter")
    expect(shown.page.get_by_role("dialog")).to_be_visible()
    for _ in range(100):
        shown.page.keyboard.press("y")
    # Between two questions, no dialog is open for a moment.
    shown.until(lambda: {state for _, state in states(shown)} == {"decided"})
    expect(shown.page.get_by_role("dialog")).to_have_count(0)
    expect(shown.found("go-through")).to_be_disabled()
    shown.until(lambda: len(shown.sent("/feedback")) >= 100)
    said = shown.sent("/feedback")
    assert len(said) == 100
    assert {one["decision"] for one in said} == {"this_item"}
    assert {one["item_id"] for one in said} == {f"item-of-photo-{i:03}" for i in range(100)}
    assert shown.complaints == []


def test_after_an_undo_the_photograph_before_is_asked_about(shown: Shown) -> None:
    batch_of(shown, {"one": UNSURE, "two": UNSURE}, None)
    shown.found("go-through").click()
    heading = shown.page.get_by_role("dialog").get_by_role("heading")
    shown.page.keyboard.press("y")
    expect(heading).to_contain_text("label of two")
    shown.page.keyboard.press("u")
    expect(heading).to_contain_text("label of one")
    shown.page.keyboard.press("0")
    expect(heading).to_contain_text("label of two")
    shown.page.keyboard.press("Escape")
    expect(shown.found("batch-row").filter(has_text="one")).to_contain_text("It is none of these.")
    assert sorted(state for _, state in states(shown)) == ["decided", "look"]


def test_a_batch_is_exported(shown: Shown) -> None:
    batch_of(shown, {"=cmd,1.png": UNSURE, "strange.png": STRANGE}, None)
    shown.found("go-through").click()
    shown.page.get_by_label("Decided by").fill("Ada, Zoo")
    shown.found("decide-is").click()
    shown.page.keyboard.press("Escape")
    with shown.page.expect_download() as saved:
        shown.found("export").click()
    assert saved.value.suggested_filename == "vouch-batch.csv"
    text = Path(saved.value.path()).read_text("utf-8-sig")
    rows = {row["file"]: row for row in csv.DictReader(io.StringIO(text))}
    decided = rows["'=cmd,1.png"]  # no formula
    assert decided["match_probability"] == "0.55"
    assert (decided["decision"], decided["item_id"]) == ("is", "item-of-=cmd,1.png")
    assert (decided["reviewer"], decided["feedback"]) == ("Ada, Zoo", "kept")
    assert rows["strange.png"]["match_probability"] == ""
    assert rows["strange.png"]["state"] == "look"


def test_a_batch_waits_for_one_photograph_and_comes_back(shown: Shown) -> None:
    batch_of(shown, {"one": UNSURE, "two": UNSURE, "three": UNSURE}, None)
    shown.choose("three")
    expect(shown.found("verdict")).to_be_visible()
    expect(shown.found("batch")).to_be_hidden()
    shown.page.get_by_role("button", name="Back to the batch").click()
    expect(shown.found("batch")).to_be_visible()
    expect(shown.found("verdict")).to_be_hidden()


def test_a_batch_survives_a_reload_in_the_middle(shown: Shown, tmp_path: Path) -> None:
    """Of 500 photographs in folders and the decisions on them, nothing is lost or done twice."""
    shown.report = {**REPORT, "errors_over_time": {"n_asked": 0}}
    shown.replies[OPERATING_POINTS] = {"point": None}
    names = [f"folder/{part}/image_{i:03}.png" for part in "ab" for i in range(250)]
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(PICTURE)
    (tmp_path / "folder" / "notes.txt").write_text("no image")
    half, n_searched = threading.Event(), itertools.count(1)

    def answer(request: Asked) -> dict[str, Any]:
        if next(n_searched) == 200:
            half.set()
        return answer_of(f"{next(n_queries)}", UNSURE)

    n_queries = itertools.count()
    shown.answer = answer  # type: ignore[assignment] # each time another one
    shown.open()
    shown.found("folder-input").set_input_files(tmp_path / "folder")
    expect(shown.found("batch-row")).to_have_count(500)
    expect(shown.found("left-out")).to_have_text("1 file is no image and was left out.")
    shown.until(lambda: [state for _, state in states(shown)].count("look") >= 3)
    shown.found("go-through").click()
    expect(shown.page.get_by_role("dialog")).to_be_visible()
    for _ in range(3):
        shown.page.keyboard.press("y")
    shown.page.keyboard.press("Escape")
    shown.until(half.is_set)
    shown.page.wait_for_function(THREE_ARE_KEPT)
    shown.page.reload()
    expect(shown.found("batch-row")).to_have_count(500)
    expect(shown.page.get_by_role("progressbar")).to_be_hidden(timeout=120_000)
    expect(shown.found("budget-sentence")).to_contain_text("497 to review · 3 decided")
    assert {name for name, _ in states(shown)} == set(names)
    assert next(n_searched) <= 500 + 2 * 3 + 2  # those that were under way at the reload
    shown.until(lambda: len(shown.sent("/feedback")) >= 3)
    assert len(shown.sent("/feedback")) == 3
    shown.page.goto(f"{ORIGIN}/")  # another visit is offered it, and begins without it
    expect(shown.found("batch")).to_be_hidden()
    shown.page.get_by_role("button", name="Back to the batch").click()
    expect(shown.found("batch-row")).to_have_count(500)
    assert shown.page.url.endswith("#/shoes/batch")
    shown.found("only").select_option("decided")
    expect(shown.found("batch-row")).to_have_count(3)
    for words in ("Clear the batch", "Press again to clear the batch"):
        shown.page.get_by_role("button", name=words).click()
    expect(shown.found("batch")).to_be_hidden()
    shown.page.reload()
    expect(shown.page.locator("#gallery-about")).to_contain_text("1,500 items")
    expect(shown.page.get_by_role("button", name="Back to the batch")).to_be_hidden()


def test_a_batch_is_accepted_unseen_here_alone(shown: Shown) -> None:
    shown.report = {**REPORT, "errors_over_time": {"n_asked": 0}}
    batch_of(shown, {"one": UNSURE, "two": SURE, "three": NOTHING}, None)
    shown.found("accept-shown").click()
    expect(shown.found("budget-sentence")).to_contain_text("0 to review")
    assert {state for _, state in states(shown)} == {"accepted"}
    assert shown.sent("/feedback") == []  # the service learns of what a person has looked at
    expect(shown.found("kept")).to_have_attribute("aria-busy", "false")
    shown.page.reload()
    expect(shown.page.locator("[data-state=accepted]")).to_have_count(3)
    shown.found("batch-row").first.get_by_role("button").focus()
    shown.page.keyboard.press("ArrowDown")
    expect(shown.found("batch-row").nth(1).get_by_role("button")).to_be_focused()


def test_a_batch_goes_on_once_the_service_is_back(shown: Shown) -> None:
    shown.replies[OPERATING_POINTS] = {"point": None}
    shown.answer = answering({"one": UNSURE, "two": UNSURE})  # type: ignore[assignment] # by file
    shown.open()
    shown.page.route("**/search", lambda route: route.abort())
    shown.choose("one", "two")
    expect(shown.found("problem")).to_contain_text("The service cannot be reached")
    expect(shown.page.locator("[data-state=waiting]")).to_have_count(2)
    shown.page.unroute_all()
    shown.found("stop").click()  # it says "Continue"
    expect(shown.page.locator("[data-state=look]")).to_have_count(2)


def test_a_file_that_is_no_image_harms_no_other(
    browser: Browser, service: Service, belonging: list[bytes]
) -> None:
    expect.set_options(timeout=30_000)
    page = browser.new_page(viewport={"width": 360, "height": 740})
    page.goto(str(service.http.base_url))
    expect(page.get_by_test_id("sample").first).to_be_visible()
    pictures = [*belonging, b"no image", PICTURE]
    page.get_by_test_id("file-input").set_input_files(
        [
            FilePayload(name=f"{i}.png", mimeType="image/png", buffer=data)
            for i, data in enumerate(pictures)
        ]
    )
    expect(page.get_by_test_id("batch")).to_be_visible()
    expect(page.get_by_role("progressbar")).to_be_hidden()
    rows = page.get_by_test_id("batch-row")
    expect(rows).to_have_count(len(pictures))
    expect(page.locator("[data-state=failed]")).to_have_count(1)
    expect(page.locator("[data-state=failed]")).to_contain_text(f"{len(belonging)}.png")
    for i, data in enumerate(belonging):
        said = service.answer(data)
        row = rows.filter(has_text=f"{i}.png")
        expect(row.locator(".verdict-word")).to_have_attribute("data-verdict", said["verdict"])
    width = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(width) <= 0
    page.close()


def folder_of(directory: Path, *names: str, picture: bytes = PICTURE) -> Path:
    """A folder with copies of a picture."""
    for name in names:
        path = directory / "folder" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture)
    return directory / "folder"


def test_a_batch_is_filtered_accepted_and_taken_back(shown: Shown) -> None:
    batch_of(shown, {"one": UNSURE, "two": UNSURE, "three": STRANGE, "four": SURE}, 0.9)
    accept, undo, rows = (
        shown.found(name) for name in ("accept-shown", "undo-accept", "batch-row")
    )
    expect(accept).to_have_text("Accept 3 without review")
    shown.found("verdict-filter").select_option("ambiguous")
    expect(rows).to_have_count(2)
    expect(shown.found("n-shown")).to_have_text("2 of 4 shown")
    shown.found("containing").fill("LABEL of one")
    expect(rows.locator(".file")).to_have_text(["one"])
    expect(shown.found("go-through")).to_have_text("Review 1")
    accept.click()
    expect(shown.found("budget-sentence")).to_contain_text(
        "expected wrong: fewer than 0.1 · 1 accepted without review · 2 to review"
    )
    expect(undo).to_be_focused()
    expect(undo).to_have_text("Undo: 1 accepted without review")
    undo.click()
    expect(undo).to_be_hidden()
    expect(accept).to_be_focused()
    expect(shown.found("budget-sentence")).to_contain_text("3 to review")
    shown.found("go-through").click()  # of what is shown alone
    shown.page.keyboard.press("y")
    expect(shown.page.get_by_role("dialog")).to_have_count(0)
    shown.found("verdict-filter").select_option("")
    shown.found("containing").fill("")
    expect(rows).to_have_count(4)
    assert sorted(states(shown)) == [
        ("four", "accepted"),
        ("one", "decided"),
        ("three", "look"),
        ("two", "look"),
    ]


def test_rows_are_arranged_as_wanted(shown: Shown) -> None:
    shown.open()
    code = """(() => {
        const made = [..."abcdef"].map((id) => Object.assign(document.createElement("i"), { id }));
        const rows = Object.fromEntries(made.map((one) => [one.id, one]));
        const body = document.createElement("p");
        return all[0].map((wanted) => {
            m.arrange(body, [...wanted].map((name) => rows[name]));
            return [...body.children].map(({ id }) => id).join("");
        });
    })()"""
    orders = [*map("".join, itertools.permutations("abcd")), "b", "", "fedcba", "ace", "abcdef"]
    assert shown.run("batch/view", code, orders) == orders


def test_a_decided_photograph_is_not_in_the_budget(shown: Shown) -> None:
    batch_of(shown, {"one": SURE, "two": SURE}, 0.9)
    sentence = shown.found("budget-sentence")
    expect(sentence).to_contain_text("2 accepted automatically")
    shown.found("batch-row").first.get_by_role("button").click()
    shown.page.keyboard.press("0")
    expect(sentence).to_contain_text("1 accepted automatically")
    expect(sentence).to_contain_text("1 decided")


def test_a_folder_that_is_chosen_again_adds_what_is_new(shown: Shown, tmp_path: Path) -> None:
    """After an interruption, it is what people do."""
    shown.replies[OPERATING_POINTS] = {"point": None}
    deep = "/".join(["folder-with-a-long-name"] * 5)
    folder = folder_of(tmp_path, f"{deep}/one.png", "two.png")
    shown.open()
    shown.found("folder-input").set_input_files(folder)
    expect(shown.page.locator("[data-state=look]")).to_have_count(2)
    shown.page.reload()
    expect(shown.page.locator("[data-state=look]")).to_have_count(2)
    folder_of(tmp_path, "three.png")
    shown.found("folder-input").set_input_files(folder)
    expect(shown.page.locator("[data-state=look]")).to_have_count(3)
    expect(shown.found("left-out")).to_have_text("2 photographs were in the batch already.")
    names = sorted(name for name, _ in states(shown))
    assert names[:2] == ["folder/three.png", "folder/two.png"]
    assert names[2].startswith("…")
    assert names[2].endswith("/one.png")


def test_what_failed_is_tried_again(shown: Shown) -> None:
    shown.replies[OPERATING_POINTS] = {"point": None}
    shown.open()
    broken = {"title": "Failed", "detail": "The disk is full."}
    shown.page.route("**/search", lambda route: route.fulfill(status=507, json=broken), times=2)
    shown.choose("one", "two", "three")
    failed = shown.page.locator("[data-state=failed]")
    expect(failed).to_have_count(2)
    expect(failed.first).to_contain_text("failed: The disk is full.")
    shown.found("retry-failed").click()
    expect(shown.page.locator("[data-state=look]")).to_have_count(3)
    expect(shown.found("retry-failed")).to_be_hidden()


def test_a_decision_that_was_not_taken_is_sent_again(shown: Shown) -> None:
    shown.report = {**REPORT, "errors_over_time": {"n_asked": 0}}
    batch_of(shown, {"one": UNSURE, "two": UNSURE}, None)
    refused = {"title": "Full", "detail": "The disk is full."}
    shown.page.route("**/feedback", lambda route: route.fulfill(status=507, json=refused), times=1)
    shown.found("go-through").click()
    shown.page.keyboard.press("y")
    expect(shown.page.get_by_role("dialog")).to_contain_text("label of two")
    shown.page.keyboard.press("Escape")
    expect(shown.page.locator("[data-state=failed]")).to_contain_text("The disk is full.")
    shown.found("retry-failed").click()
    expect(shown.page.locator("[data-state=decided]")).to_have_count(1)
    sent = shown.sent_once("/feedback")
    assert (sent["decision"], sent["query_id"]) == ("this_item", "one")


def test_a_batch_says_that_a_filter_does_not_apply(shown: Shown) -> None:
    shown.replies["/v1/galleries/shoes/facets"] = {"facets": FACETS}
    batch_of(shown, {"one": UNSURE, "two": UNSURE}, None)
    warning = shown.found("unfiltered")
    expect(warning).to_be_hidden()
    shown.found("filters").locator("summary").click()
    shown.page.get_by_role("checkbox", name="boot").check()
    expect(warning).to_contain_text("The filter does not apply to a batch")
    shown.page.get_by_role("checkbox", name="boot").uncheck()
    expect(warning).to_be_hidden()


def test_a_batch_follows_the_line_of_the_visitor(shown: Shown) -> None:
    shown.report = ACCURACY
    batch_of(shown, {"sure.png": SURE, "likely.png": LIKELY}, 0.5)
    expect(shown.page.locator("[data-state=accepted]")).to_have_count(2)
    shown.found("open-report").click()
    shown.found("line").press("Home")  # a match from 99 % on
    shown.page.keyboard.press("Escape")
    likely = shown.found("batch-row").filter(has_text="likely.png")
    expect(likely).to_contain_text("Not sure")
    assert states(shown) == [("likely.png", "look"), ("sure.png", "accepted")]
    expect(shown.found("promise")).to_contain_text("Below your own line of 99")
    shown.found("verdict-filter").select_option("ambiguous")
    expect(shown.found("batch-row")).to_have_count(1)
    with shown.page.expect_download() as saved:
        shown.found("export").click()
    text = Path(saved.value.path()).read_text("utf-8-sig")
    rows = {row["file"]: row for row in csv.DictReader(io.StringIO(text))}
    read = [(row["verdict"], row["own_line"], row["state"]) for row in rows.values()]
    assert sorted(read) == [("ambiguous", "0.99", "look"), ("match", "0.99", "accepted")]
    shown.found("open-report").click()
    shown.found("own-line").click()
    shown.page.keyboard.press("Escape")
    expect(shown.page.locator("[data-state=accepted]")).to_have_count(0)  # of those in view
    shown.found("verdict-filter").select_option("")
    expect(shown.page.locator("[data-state=accepted]")).to_have_count(2)


def test_a_used_up_quota_stops_a_batch_with_its_reason(shown: Shown) -> None:
    used = {"title": "The API key has no searches left in this period", "code": "searches_used_up"}
    wait = {"retry-after": "15700"}
    shown.replies[OPERATING_POINTS] = {"point": None}
    shown.page.route("**/search", lambda route: route.fulfill(status=429, json=used, headers=wait))
    shown.open()
    sent: list[str] = []

    def note(request: Request) -> None:
        if request.url.endswith("/search"):
            sent.append(request.url)

    shown.page.on("request", note)
    shown.choose(*(f"{n}.png" for n in range(7)))
    expect(shown.found("problem")).to_contain_text("no searches left in this period")
    expect(shown.found("batch")).to_be_visible()
    expect(shown.page.locator("[data-state=waiting]")).to_have_count(7)
    shown.page.wait_for_timeout(500)
    assert len(sent) <= 3
    shown.page.unroute_all(behavior="ignoreErrors")
    shown.found("problem").get_by_role("button", name="Try again").click()
    expect(shown.page.locator("[data-state=look]")).to_have_count(7)


def test_a_batch_that_another_tab_cleared_is_not_kept_again(shown: Shown) -> None:
    shown.report = {**REPORT, "errors_over_time": {"n_asked": 0}}
    batch_of(shown, {"one": UNSURE, "two": UNSURE}, None)
    shown.run("kept", "m.forgetBatch('shoes')")  # as another tab does
    shown.found("go-through").click()
    shown.page.keyboard.press("y")
    expect(shown.page.get_by_role("dialog")).to_contain_text("label of two")
    shown.page.keyboard.press("Escape")
    expect(shown.found("kept")).to_contain_text("a reload would lose it")
    assert shown.run("kept", "m.sizeOfBatch('shoes')") == 0
    shown.page.goto(f"{ORIGIN}/#/shoes")
    shown.page.reload()
    expect(shown.found("open-browse")).to_be_visible()
    expect(shown.page.get_by_role("button", name="Back to the batch")).to_be_hidden()
