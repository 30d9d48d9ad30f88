"""A service without bundles: the first gallery begins on its page. Real Chromium."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route, expect

from tests.end_to_end.processes import TIMEOUT_S, Service
from tests.end_to_end.shown_page import Shown
from tests.end_to_end.stage import ORIGIN

pytestmark = pytest.mark.browser

DEMO = Path(__file__).parents[2] / "docs" / "demo"
N_PHOTOGRAPHS = 300


@pytest.fixture(autouse=True)
def _soon() -> Iterator[None]:
    expect.set_options(timeout=20_000)
    yield
    expect.set_options(timeout=1000 * TIMEOUT_S)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Photographs in a folder for each kind; none of the sample that is searched for."""
    withheld = tomllib.loads((DEMO / "photographs.toml").read_text())["dataset"]["withheld_labels"]
    found = sorted((DEMO / "photographs").glob("*/*"))
    held = [path for path in found if path.parent.name not in withheld]
    for path in held[:N_PHOTOGRAPHS]:
        place = tmp_path / "mine" / path.parent.name
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)
    return tmp_path / "mine"


def test_from_a_folder_of_photographs_to_a_match(
    browser: Browser, folder: Path, tmp_path: Path
) -> None:
    """All on the page of a service that has nothing: no command is run by hand."""
    patient = 2500 * TIMEOUT_S  # on two busy cores
    variables = {"VOUCH_GALLERIES": str(tmp_path / "galleries")}
    with Service((), tmp_path / "log", variables) as service:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(str(service.http.base_url))
        room = page.get_by_test_id("first-room")
        expect(room.get_by_role("heading")).to_have_text("Create the first gallery")
        for hidden in ("drop-zone", "gallery-picker", "tour-next"):
            expect(page.get_by_test_id(hidden)).to_be_hidden()
        room.get_by_label("Name of the gallery").fill("animals")
        room.get_by_role("button", name="Create the gallery").click()
        # The service runs `vouch-build` first.
        expect(page.get_by_test_id("adding")).to_be_visible(timeout=patient)
        assert page.url.endswith("#/animals/add")
        page.get_by_test_id("adding-folder").set_input_files(folder)
        status = page.get_by_test_id("adding-status")
        n_labels = len(list(folder.iterdir()))
        expect(status).to_have_text(f"{N_PHOTOGRAPHS} to add, {n_labels} labels")
        page.get_by_test_id("add-all").click()
        done = f"{N_PHOTOGRAPHS} of {N_PHOTOGRAPHS} added"
        expect(status).to_have_text(done, timeout=patient)
        page.get_by_test_id("adding").get_by_role("button", name="Set up guarantees").click()
        guarantees = page.get_by_test_id("guarantees")
        expect(guarantees).to_contain_text("Not calibrated yet")
        expect(page.get_by_test_id("paired")).to_contain_text(f"{N_PHOTOGRAPHS} photos share")
        page.get_by_test_id("calibrate").click()
        # For a moment, the dialog before it is there, too.
        outcome = page.get_by_role("dialog")
        expect(outcome).to_contain_text(
            f"A calibration with {N_PHOTOGRAPHS} queries.", timeout=patient
        )
        expect(outcome).to_contain_text("At most 5 % of matches are wrong")
        page.keyboard.press("Escape")
        page.get_by_test_id("file-input").set_input_files(DEMO / "samples" / "flamingo.webp")
        verdict = page.get_by_test_id("verdict")
        expect(verdict).to_have_attribute("data-verdict", "match")
        expect(page.get_by_test_id("neighbour").first.locator("b")).to_have_text("flamingo")
        assert wrong == []
        page.close()


@pytest.fixture
def empty(shown: Shown) -> Shown:
    """The page of a service that has no gallery yet."""
    shown.replies["/v1/galleries"] = {"galleries": []}
    shown.page.goto(f"{ORIGIN}/")
    expect(shown.found("first-room")).to_be_visible()
    return shown


def test_who_may_not_create_galleries_is_told_what_is_needed(shown: Shown) -> None:
    shown.replies["/v1/galleries"] = {"galleries": []}
    shown.replies["/v1/usage"] = {"scope": "write", "key": "k"}
    shown.page.goto(f"{ORIGIN}/")
    room = shown.found("first-room")
    expect(room).to_contain_text("A key with the scope “admin” is needed")
    expect(room.get_by_role("button")).to_have_count(0)


@pytest.mark.parametrize("names", [["a.png"], ["a.png", "b.png"]])
def test_photo_before_there_is_a_gallery_gets_a_message(empty: Shown, names: list[str]) -> None:
    words = "Nothing was searched: there is no gallery yet."
    expect(empty.found("first-room")).not_to_contain_text(words)
    empty.choose(*names)
    expect(empty.found("first-room")).to_contain_text(words)


def test_a_refusal_is_shown_and_the_name_stays(empty: Shown) -> None:
    refused = {"title": "Not here", "detail": "`vouch-build` is not installed.", "code": "x"}
    empty.page.route(
        "**/v1/galleries", lambda route: route.fulfill(status=409, json={**refused, "status": 409})
    )
    room = empty.found("first-room")
    room.get_by_label("Name of the gallery").fill("Birds")
    room.get_by_role("button").click()  # the browser refuses such a name
    assert empty.page.evaluate("document.getElementById('first-name').validity.patternMismatch")
    room.get_by_label("Name of the gallery").fill("birds")
    room.get_by_role("button").click()
    expect(room.get_by_test_id("problem")).to_contain_text("`vouch-build` is not installed.")
    expect(room.get_by_label("Name of the gallery")).to_have_value("birds")
    expect(room.get_by_role("button", name="Create the gallery")).to_be_enabled()


def test_a_gallery_that_is_there_after_the_deadline_is_opened(empty: Shown) -> None:
    posted: list[str | None] = []
    states = [404, 503]  # not created yet, then not open yet

    def create(route: Route) -> None:
        if route.request.method == "POST":
            posted.append(route.request.post_data)
            empty.replies["/v1/galleries"] = {"galleries": [{"name": "shoes", "n_items": 0}]}
            route.fulfill(status=504, json={"title": "Too late", "status": 504})
        else:
            route.continue_()

    def look(route: Route) -> None:
        if states:
            status = states.pop(0)
            route.fulfill(status=status, json={"title": "Not yet", "status": status})
        else:
            route.continue_()

    empty.page.route("**/v1/galleries", create)
    empty.page.route("**/v1/galleries/shoes", look)
    empty.found("first-room").get_by_label("Name of the gallery").fill("shoes")
    empty.found("first-room").get_by_role("button").click()
    expect(empty.found("adding")).to_be_visible()
    expect(empty.found("first-room")).to_have_count(0)
    assert (posted, states) == (['{"name":"shoes"}'], [])


def test_an_element_of_one_gallery_offers_no_other(empty: Shown) -> None:
    one = "new m.Search(document, { path: ['shoes'], only: true })"
    empty.page.evaluate(f"import('/page/search.js').then((m) => {{ {one}; }})")
    expect(empty.found("problem")).to_contain_text("There is no gallery “shoes”")
    expect(empty.found("first-room")).to_have_count(0)
