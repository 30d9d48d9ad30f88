"""A batch as a ZIP file: unpacked, and read in a browser without a network."""

from __future__ import annotations

import datetime as dt
import io
import json
import re
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from tests.end_to_end.shown_page import NBSP, Shown
from tests.end_to_end.test_page_accessible import complaints
from tests.end_to_end.test_page_batch import (
    NOTHING,
    OPERATING_POINTS,
    STRANGE,
    SURE,
    UNSURE,
    answering,
    batch_of,
    folder_of,
)
from tests.end_to_end.test_page_late import held_back, holds
from tests.support.image_files import encoded

pytestmark = pytest.mark.browser


def packed(page: Page, directory: Path) -> Path:
    """The batch as a ZIP, unpacked by the system's `unzip` where there is one."""
    with page.expect_download() as saved:
        page.get_by_test_id("export-zip").click()
    assert saved.value.suggested_filename == "vouch-batch.zip"
    expect(page.get_by_test_id("export-zip")).to_have_text(re.compile("ZIP"))
    with zipfile.ZipFile(saved.value.path()) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        assert len(names) == len({name.lower() for name in names})
        archive.extractall(directory / "by-python")
    if shutil.which("unzip") is not None:
        command = ["unzip", "-q", str(saved.value.path()), "-d", str(directory / "by-unzip")]
        subprocess.run(command, check=True, capture_output=True)
        for name in names:
            contents = [(directory / by / name).read_bytes() for by in ("by-python", "by-unzip")]
            assert contents[0] == contents[1], name
    return directory / "by-python"


@pytest.fixture
def offline(browser: Browser) -> Iterator[Page]:
    """A page that no network reaches."""
    context = browser.new_context(offline=True)
    yield context.new_page()
    context.close()


LOADED = "images => images.map(one => one.complete && one.naturalWidth > 0)"


@pytest.fixture
def exported(shown: Shown, tmp_path: Path) -> Path:
    """A batch of five photographs in folders, one of them decided, as an unpacked ZIP."""
    photograph = np.random.default_rng(0).integers(0, 256, (480, 640, 3), dtype=np.uint8)
    folder = folder_of(tmp_path, "a/one.png", "b/one.png", "b/..;<b>é.png")
    folder_of(tmp_path, "b/large.png", picture=encoded(photograph, "PNG"))
    (folder / "b/none.png").write_bytes(b"no picture")
    answers = {
        "one.png": UNSURE,
        "..;<b>é.png": STRANGE,
        "large.png": SURE,
        "none.png": NOTHING,
    }
    shown.replies[OPERATING_POINTS] = {"point": {"threshold": 0.9}}
    shown.answer = answering(answers)  # type: ignore[assignment] # by file
    shown.open()
    shown.found("folder-input").set_input_files(folder)
    expect(shown.found("batch")).to_be_visible()
    expect(shown.page.get_by_role("progressbar")).to_be_hidden()
    shown.found("go-through").click()
    shown.page.keyboard.press("y")
    shown.page.keyboard.press("Escape")
    expect(shown.found("budget-sentence")).to_contain_text("1 decided")
    files = packed(shown.page, tmp_path)
    with shown.page.expect_download() as saved:
        shown.found("export").click()
    saved.value.save_as(tmp_path / "alone.csv")
    return files


def test_report_is_made_below_the_policy_of_the_page(shown: Shown, tmp_path: Path) -> None:
    shown.open(policy=True)
    with shown.page.expect_response("**/search"):
        shown.choose("a.png", "b.png")
    expect(shown.page.get_by_role("progressbar")).to_be_hidden()
    wrong: list[str] = []
    shown.page.on("console", lambda said: wrong.append(said.text))
    files = packed(shown.page, tmp_path)
    assert wrong == []
    assert "<style>:root {" in (files / "report.html").read_text("utf-8")


def test_a_zip_has_a_report_a_table_and_small_pictures(exported: Path, tmp_path: Path) -> None:
    files = exported
    thumbnails = {path.name: path for path in (files / "thumbnails").glob("*.jpg")}
    results = {path.name for path in (files / "thumbnails/results").iterdir()}
    assert {path.name for path in files.iterdir()} == {"report.html", "results.csv", "thumbnails"}
    assert sorted(thumbnails) == ["0001-one.jpg", "0003-b-e.jpg", "0004-large.jpg", "0005-one.jpg"]
    assert len(results) == 4  # one for an item, of however many photographs it is the first
    with Image.open(thumbnails["0004-large.jpg"]) as small:
        assert (small.format, small.size) == ("JPEG", (320, 240))
    assert (files / "results.csv").read_bytes() == (tmp_path / "alone.csv").read_bytes()


def test_a_report_is_read_without_the_service(shown: Shown, exported: Path, offline: Page) -> None:
    n_asked = len(shown.asked)
    offline.goto((exported / "report.html").as_uri())
    assert len(shown.asked) == n_asked
    expect(offline.locator("html")).to_have_attribute("lang", "en")
    expect(offline.locator("h1")).to_have_text("shoes: 5 photographs")
    expect(offline.locator("main")).to_contain_text("1 accepted automatically")
    expect(offline.locator("main")).to_contain_text("Guaranteed: at most 5")
    summary = offline.locator("tbody tr")
    counts = {row.split("\t")[0]: row.split("\t")[-1].strip() for row in summary.all_inner_texts()}
    assert counts == {"Match": "1", "Not sure": "2", "No match": "1", "Not recognised": "1"}
    expect(offline.locator("h2")).to_have_text(["to review: 3", "accepted: 1", "decided: 1"])
    paths = offline.locator("h3").all_inner_texts()
    assert paths[0].endswith("/one.png")
    assert paths[1:4] == ["folder/b/none.png", "folder/b/..;<b>é.png", "folder/b/large.png"]
    unsure, _, strange, _, decided = offline.locator("li").all()
    expect(unsure).to_contain_text("Not sure. Possible matches – please check.")
    expect(unsure.locator("dd")).to_have_text(
        ["label of one.png · item-of-one.png", f"55{NBSP}%", "to review"]
    )
    expect(strange).not_to_contain_text("%")
    expect(decided.locator("dd").nth(2)).to_have_text("It is “label of one.png”.")
    expect(decided).to_contain_text("Ada")
    images = offline.locator("img")
    expect(images).to_have_count(9)  # what is no picture has none
    assert images.evaluate_all(LOADED) == [True] * 9
    assert offline.locator("script, [onclick], [onerror], b:not([data-verdict] b)").count() == 0
    assert complaints(offline) == []
    for media in ("print", "screen"):
        offline.emulate_media(media=media)
        offline.set_viewport_size({"width": 400, "height": 700})
        width = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert offline.evaluate(width) <= 0
    assert shown.complaints == []


def test_a_report_is_in_the_language_of_the_page(
    browser: Browser, tmp_path: Path, offline: Page
) -> None:
    shown = Shown(browser, locale="de-DE")
    batch_of(shown, {"one": UNSURE, "two": STRANGE}, None)
    files = packed(shown.page, tmp_path)
    offline.goto((files / "report.html").as_uri())
    expect(offline.locator("html")).to_have_attribute("lang", "de")
    expect(offline.locator("h2")).to_have_text(["zu prüfen: 2"])
    expect(offline.locator("li").first).to_contain_text(
        "Unsicher. Mögliche Treffer – bitte prüfen."
    )
    shown.close()


def test_a_zip_can_be_cancelled(shown: Shown, tmp_path: Path) -> None:
    batch_of(shown, {"one": UNSURE, "two": UNSURE}, None)
    held = held_back(shown, "**/thumbnail")
    button = shown.found("export-zip")
    button.click()
    holds(shown, held)
    expect(button).to_have_text("Cancel (0 of 2 packed)")
    button.click()
    expect(button).to_have_text("Download as ZIP")
    expect(shown.found("problem")).to_have_count(0)
    shown.page.unroute_all(behavior="ignoreErrors")
    assert len(list((packed(shown.page, tmp_path) / "thumbnails").glob("*.jpg"))) == 2


def test_names_in_a_zip_are_utf_8(shown: Shown) -> None:
    shown.open()
    code = """(async () => {
        const zip = new m.Zip();
        for (const [name, text] of all[0]) await zip.add(name, new Blob([text]));
        return [...new Uint8Array(await zip.end().arrayBuffer())];
    })()"""
    files = {"häuser/東京.txt": "größer", "empty": "", "n": "1" * 70_000}
    data = bytes(shown.run("batch/zip", code, list(files.items())))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        assert {one.filename: archive.read(one).decode() for one in archive.infolist()} == files
        assert all(one.flag_bits == 0x800 for one in archive.infolist())
        then = dt.datetime(*archive.infolist()[0].date_time).astimezone()
        assert abs(then - dt.datetime.now(dt.UTC)) < dt.timedelta(days=2)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("../../etc/passwd", "0007-etc-passwd.jpg"),
        ("CON", "0007-CON.jpg"),
        ("Ünïted", "0007-United.jpg"),
        ("東京", "0007.jpg"),
        ("\ud83d" + "x" * 300, f"0007-{'x' * 59}.jpg"),
    ],
)
def test_names_of_pictures_can_be_unpacked_everywhere(shown: Shown, text: str, name: str) -> None:
    shown.open()
    assert shown.run("batch/archive", f"m.fileName(7, {json.dumps(text)})") == name
