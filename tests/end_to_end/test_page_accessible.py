"""Nobody is kept out: axe, two languages, right to left, dark and light, on a phone."""

from __future__ import annotations

import ast
import itertools
import json
import re
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, FilePayload, Page, expect

from model_store.encoder.contract import Embeddings
from model_store.errors import ImageError, NoEmbedding
from model_store.images.decode import TOO_MUCH_MEMORY, ImageLimits, decode_image
from model_store.messages import MESSAGES
from tests.end_to_end.page_texts import texts
from tests.end_to_end.processes import TIMEOUT_S
from tests.end_to_end.shown_page import (
    ANSWER,
    FILES,
    GALLERY,
    NBSP,
    PICTURE,
    Shown,
    look_closely,
    result,
)
from tests.end_to_end.test_page_accuracy import REPORT, with_history
from tests.end_to_end.test_page_browsing import FACETS
from tests.end_to_end.test_page_checking import label_error, pages, pair
from tests.end_to_end.test_page_collecting import GROUP
from tests.end_to_end.test_page_map import opened as opened_map
from tests.end_to_end.test_page_reviewing import Queue
from tests.end_to_end.test_page_signing_in import USAGE

pytestmark = pytest.mark.browser

ROOT = FILES.parents[2]
WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
RUN = "options => axe.run(options).then((found) => found.violations)"
"""What is in order is left in the browser: it would be most of what axe says."""


def complaints(page: Page) -> list[str]:
    """What axe finds: rule, and where."""
    page.evaluate("Promise.all(document.getAnimations().map(one => one.finished))")
    page.evaluate(AXE_SCRIPT)
    found = page.evaluate(RUN, {"runOnly": WCAG, "resultTypes": ["violations"]})
    return [
        f"{one['id']}: {node['html'][:200]} {node['any'][:1]}"
        for one in found
        for node in one["nodes"]
    ]


SMALL = """() => [...document.querySelectorAll("a[href], button, input, select, summary")]
    .filter((node) => node.checkVisibility({ opacityProperty: true, contentVisibilityAuto: true }))
    .filter((node) => !document.querySelector("dialog[open]") || node.closest("dialog"))
    .map((node) => [[node, node.closest("label") ?? node], node])
    .map(([both, node]) => [both.map((one) => one.getBoundingClientRect()), node])
    .map(([boxes, node]) =>
        [Math.max(...boxes.map((one) => Math.min(one.width, one.height))), node])
    .filter(([side]) => side < 24)
    .map(([side, node]) => `${side}: ${node.outerHTML.slice(0, 90)}`)"""
"""What is to be pressed and has fewer than 24 pixels on a side (WCAG 2.5.8)."""


def start(shown: Shown) -> None:
    shown.gallery = {**GALLERY, "samples": [SAMPLE, {**SAMPLE, "belongs": False}]}
    shown.open()


def first(shown: Shown) -> None:
    refused = {"title": "Not here", "detail": "Install it.", "status": 409, "code": "x"}
    shown.replies["/v1/galleries"] = {"galleries": []}
    shown.page.goto("http://vouch.test/")
    expect(shown.found("first-room")).to_be_visible()
    shown.page.route("**/v1/galleries", lambda route: route.fulfill(status=409, json=refused))
    shown.found("first-room").get_by_role("button").click()
    expect(shown.found("first-room").get_by_test_id("problem")).to_be_visible()


def looking(shown: Shown) -> None:
    shown.gallery = {**GALLERY, "record_url": "https://shop.example/{id}"}
    shown.ask()
    look_closely(shown.page)
    shown.page.keyboard.press("a")
    expect(shown.found("add-form")).to_be_visible()


def cropping(shown: Shown) -> None:
    shown.ask()
    shown.found("edit").click()
    expect(shown.found("crop")).to_be_visible()


def advised(shown: Shown) -> None:
    shown.replies["/v1/galleries/shoes/assess"] = {
        "quality": {"hints": [{"code": "blurred", "advice": "Hold still."}]},
        "query": {"ood": {"flag": True}},
    }
    shown.open()
    shown.choose("one.png")
    expect(shown.found("advice")).to_be_visible()


def accuracy(shown: Shown) -> None:
    shown.report = REPORT
    with_history(shown)
    shown.ask()
    shown.found("open-report").click()
    shown.found("line").press("ArrowLeft")
    shown.found("accuracy").locator(".figures summary").first.click()
    shown.found("serve").click()
    expect(shown.found("serve-asked")).to_be_visible()


def batch(shown: Shown) -> None:
    shown.replies["/v1/galleries/shoes/calibration/operating-points"] = {
        "point": {"threshold": 0.5}
    }
    shown.open()
    shown.choose("one.png", "two.png", "three.png")
    expect(shown.found("batch")).to_be_visible()
    expect(shown.page.get_by_role("progressbar")).to_be_hidden()


def browsing(shown: Shown) -> None:
    shown.replies["/v1/galleries/shoes/items"] = {
        "items": [result(rank) for rank in range(1, 30)],
        "n_items": 29,
        "next_cursor": None,
    }
    shown.replies["/v1/galleries/shoes/facets"] = {"facets": FACETS}
    shown.open()
    shown.found("open-browse").click()
    shown.found("browse").locator("summary").click()
    expect(shown.found("browse").locator("fieldset")).to_have_count(3)
    shown.found("browse").locator(".cell").first.click()
    expect(shown.found("label-form")).to_be_visible()


def selecting(shown: Shown) -> None:
    browsing(shown)
    shown.found("select").click()
    shown.found("browse").locator(".cell").first.click()
    expect(shown.found("delete-selected")).to_be_enabled()
    shown.found("delete-selected").click()


def mapped(shown: Shown) -> None:
    canvas = opened_map(shown)
    expect(shown.found("map").locator(".pin")).to_have_count(5)
    canvas.focus()
    shown.page.keyboard.press("+")
    expect(shown.found("map-card")).to_be_visible()
    shown.found("select").click()


def settings(shown: Shown) -> None:
    shown.gallery = {**GALLERY, "created_at": "2026-01-02T03:04:05Z"}
    shown.open()
    shown.found("open-settings").click()
    expect(shown.found("settings")).to_be_visible()


def own_key(shown: Shown) -> None:
    shown.replies["/v1/usage"] = USAGE
    shown.open()
    shown.page.evaluate("sessionStorage.setItem('vouch-key', 'k')")
    shown.found("open-key").click()
    expect(shown.found("forget-key")).to_be_visible()


def decided(shown: Shown) -> None:
    one = {
        "number": 1,
        "decision": "this_item",
        "item_id": "a/b",
        "label": "boot",
        "reviewer": "Ada",
        "comment": "a reflection",
        "decided_at": "2026-01-02T03:04:05Z",
    }
    decisions = [{**one, "undone_at": None}, {**one, "undone_at": "2026-01-03T00:00:00Z"}]
    shown.report = {**shown.report, "errors_over_time": {"n_asked": 0}}
    shown.replies["/v1/galleries/shoes/feedback"] = {"decisions": decisions, "next_after": None}
    shown.open()
    shown.found("open-decided").click()
    expect(shown.found("decided-row")).to_have_count(2)


def adding(shown: Shown) -> None:
    shown.gallery = {**GALLERY, "n_items": 0}
    broken = {"title": "No image", "detail": "The file is broken."}
    shown.page.route("**/items/two.png", lambda route: route.fulfill(status=422, json=broken))
    shown.replies["/v1/galleries/shoes/items"] = {"items": [], "n_items": 0, "next_cursor": None}
    shown.open()
    shown.found("empty").get_by_role("button").click()
    pictures = [
        FilePayload(name=name, mimeType="image/png", buffer=PICTURE + name.encode())
        for name in ("one.png", "two.png")
    ]
    shown.found("adding-files").set_input_files(pictures)
    shown.found("add-all").click()
    expect(shown.found("adding-failed")).to_contain_text("two.png")
    expect(shown.found("undo-adding")).to_be_visible()


def guarantees(shown: Shown) -> None:
    shown.report = REPORT
    shown.open()
    shown.found("open-guarantees").click()
    expect(shown.found("guarantees")).to_be_visible()


def reviewed(shown: Shown) -> None:
    Queue(shown, 0)
    shown.open()
    shown.found("open-review").click()
    expect(shown.found("reviewed")).to_be_visible()


def unknown(shown: Shown) -> None:
    shown.report = {**shown.report, "errors_over_time": {"n_asked": 0}}
    groups = {"n_queries": 5, "n_grouped": 3, "n_groups": 1, "groups": [GROUP]}
    shown.replies["/v1/galleries/shoes/unknown"] = groups
    shown.open()
    shown.found("open-unknown").click()
    expect(shown.found("unknown-group")).to_be_visible()


def problem(shown: Shown) -> None:
    shown.status = 503
    shown.ask(title="Busy", detail="Wait.", code="busy", request_id="r-1")


def key(shown: Shown) -> None:
    shown.status = 401
    shown.ask(title="A key is wanted", detail="Send one.", code="key", request_id="r-1")


def checking(name: str) -> Callable[[Shown], object]:
    """Show a check of the gallery, with a decided and an open finding."""

    def show(shown: Shown) -> None:
        shown.replies[f"/v1/galleries/shoes/{name}"] = pages(
            [label_error("a"), label_error("b")]
            if name == "label-errors"
            else [pair("a", "b", "clog"), pair("c", "d")]
        )
        shown.page.goto(f"http://vouch.test/#/shoes/{name}")
        kept = "keep-label" if name == "label-errors" else "keep-all"
        shown.found(kept).first.click()
        expect(shown.found("undo-decision").first).to_be_visible()

    return show


SAMPLE = {"id": "1", "image_url": "/v1/sample", "caption": "A boot", "belongs": True}


def answered(verdict: str) -> Callable[[Shown], object]:
    """Show an answer with several items of a label, and the reasons for it."""

    def show(shown: Shown) -> None:
        shown.ask(verdict=verdict, results=[result(1), result(2), result(3, label="label-1")])
        shown.found("why").locator("summary").click()

    return show


def in_words(shown: Shown) -> None:
    shown.ask_text("a red shoe", verdict="out_of_distribution")
    shown.found("why").locator("summary").click()


def looking_from_words(shown: Shown) -> None:
    shown.ask_text("a red shoe " * 150)
    look_closely(shown.page)


VIEWS: dict[str, Callable[[Shown], object]] = {
    "start": start,
    "first": first,
    "looking": looking,
    "cropping": cropping,
    "in words": in_words,
    "looking from words": looking_from_words,
    "advised": advised,
    "accuracy": accuracy,
    "batch": batch,
    "browsing": browsing,
    "selecting": selecting,
    "mapped": mapped,
    "label errors": checking("label-errors"),
    "near duplicates": checking("near-duplicates"),
    "settings": settings,
    "decided": decided,
    "adding": adding,
    "guarantees": guarantees,
    "reviewed": reviewed,
    "unknown": unknown,
    "problem": problem,
    "key": key,
    "own key": own_key,
    "match": answered("match"),
    "ambiguous": answered("ambiguous"),
    "no_match": answered("no_match"),
    "out_of_distribution": answered("out_of_distribution"),
}


@pytest.fixture(autouse=True)
def _soon() -> Iterator[None]:
    """What is wrong with a page is not waited for as long as a service is."""
    expect.set_options(timeout=20_000)
    yield
    expect.set_options(timeout=1000 * TIMEOUT_S)


@pytest.mark.parametrize("name", VIEWS)
def test_axe_finds_nothing(shown_as: Callable[..., Shown], name: str) -> None:
    """On a phone in the dark and in German, and on a desk in the light and in English."""
    for context in (
        {"viewport": {"width": 360, "height": 740}, "color_scheme": "dark", "locale": "de-DE"},
        {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    ):
        shown = shown_as(reduced_motion="reduce", **context)
        VIEWS[name](shown)
        assert complaints(shown.page) == []
        assert shown.page.evaluate(SMALL) == []
        assert shown.overflow() <= 0


def test_on_paper_is_the_answer_alone(shown: Shown) -> None:
    shown.ask()
    shown.page.emulate_media(media="print")
    expect(shown.found("verdict")).to_be_visible()
    expect(shown.found("neighbour").first).to_be_visible()
    for name in ("drop-zone", "look", "language", "details", "why"):
        expect(shown.found(name)).to_be_hidden()
    shown.page.emulate_media(media="screen")


def test_axe_sees_what_is_wrong(shown: Shown) -> None:
    shown.open()
    shown.page.evaluate("document.querySelector('main').append(document.createElement('img'))")
    assert [one.split(":")[0] for one in complaints(shown.page)] == ["image-alt"]


OTHERS = sorted(path.stem for path in (FILES / "languages").glob("*.js"))
"""Languages other than English."""


def translations(language: str, name: str) -> dict[str, str]:
    """A table of a language, which is JSON between its braces but for comments."""
    folder = FILES / "languages" / ("later" if name == "LATER" else "")
    script = (folder / f"{language}.js").read_text(encoding="utf-8")
    script = re.sub(r"(?m)^\s*//.*$", "", script)
    begin = script.index("{\n", script.index(f"export const {name} ="))
    table = script[begin : script.index("\n};", begin) + 2]
    return dict(json.loads(table.replace(",\n}", "\n}")))


FROM_ELSEWHERE = {
    "The image is animated or has several pages; only the first was used.",
    "The end of the file is missing; the picture is whole.",
    *("one item", "2 to 5 items", "more than 5 items", "more than a billion"),
    # Why a calibration was refused or failed; the page translates each sentence.
    "This service cannot calibrate, because `vouch-build` is not installed beside it.",
    "The operator runs `vouch-build calibrate {0}`.",
    "The gallery {0} is being calibrated already.",
    "Wait until that calibration has ended.",
    "The service ended before the calibration.",
    "Start the calibration again.",
    "No item of the gallery has a label, so it is unknown which items match.",
    "Give items that show the same thing the same label.",
    (
        "{0} items share their label with another photograph, and the items have {1} labels; "
        "at least 50 such items and 2 labels are needed."
    ),
    "Copies do not count.",
    "Add photographs and labels.",
}
"""Texts that stand among others which reach nobody."""

NOT_ON_THE_PAGE = {
    MESSAGES[code]
    for code in (
        *("items_have_no_probability", "options_without_effect"),
        *("error_not_bounded_at_level", "drift_not_tested"),
        *("search_changed", "items_changed", "too_many_errors"),
        *("calibrate_again", "calibrate_texts_again", "build_again"),
        "calibrate_places_again",
    )
}
"""Reasons that the page does not show, or shows in English: the scripts must stay small."""

FROM_THE_API = {"low", "medium", "high", "valid", "drifting", "stale", "missing"}


RAISING = (
    "model_store/images",
    "model_store/encoder",
    "service/decoding",
    "service/access",
    "service/http",
)
"""Folders of the modules that refuse files and keys."""

SPEAKERS = {  # modules whose sentences reach a visitor, and where in them these stand
    "model_store/images/quality.py": {"_REASONS", "_DEGRADED"},
    "model_store/images/colours.py": {
        *("TURNED", "_steps", "_colour_steps"),
        *("IGNORED", "UNKNOWN", "BROKEN_PROFILE"),
    },
    "model_store/images/tiff.py": {"warning", "_picture"},
    "model_store/messages.py": {"MESSAGES"},
    "model_store/queries.py": {"cut"},
    "model_store/decision/outcome.py": {
        "_RECALL",
        "_ABSENCE",
        "_TEXTS",
        "_ACCEPT",
        "_ACCEPT_OF_PLACES",
    },
    "model_store/decision/calibration.py": {"OUTDATED"},
    "service/serving/builder.py": {"_NOT_INSTALLED", "_FAILED"},
}


def sentences_of(path: str, places: set[str]) -> Iterator[str]:
    """Texts of a module within functions and values of these names, as a table names them."""
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        match node:
            case ast.FunctionDef(name=name) if name in places:
                statements: list[ast.stmt | ast.expr] = [
                    *node.body[bool(ast.get_docstring(node)) :]
                ]
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in places:
                statements = [value]
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if (
                name in places
            ):
                statements = [value]
            case _:
                continue
        for statement in statements:
            yield from _texts_in(statement)


def numbered(template: str) -> str:
    """The template with {0}, {1}, … for its parameters."""
    numbers = itertools.count()
    return re.sub(r"\{[a-z]\w*\}", lambda _: f"{{{next(numbers)}}}", template)


def _texts_in(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else None for part in node.values]
        numbers = itertools.count()
        yield "".join(f"{{{next(numbers)}}}" if part is None else str(part) for part in parts)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield numbered(node.value)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _texts_in(child)


@pytest.mark.parametrize("language", OTHERS)
def test_every_language_has_what_the_service_says(language: str) -> None:
    table, later = translations(language, "SERVICE"), translations(language, "LATER")
    said = {text for path, places in SPEAKERS.items() for text in sentences_of(path, places)}
    unseen = {numbered(text) for text in NOT_ON_THE_PAGE}
    sentences = {text for text in said if " " in text} - unseen
    assert len(sentences) >= 20
    assert sentences - set(table) - set(later) == set()
    titles = {
        (ast.get_docstring(node) or "").split("\n", 1)[0].rstrip(".")
        for node in ast.parse((ROOT / "model_store/errors.py").read_text("utf-8")).body
        if isinstance(node, ast.ClassDef)
    }
    for error in (*ImageError.__subclasses__(), NoEmbedding):
        assert (error.__doc__ or "").rstrip(".") in later
    known = sentences | titles | FROM_ELSEWHERE
    assert set(table) - known == set()
    raised = "\n".join(
        text
        for folder in RAISING
        for path in sorted((ROOT / folder).glob("*.py"))
        for text in _texts_in(ast.parse(path.read_text("utf-8")))
    )
    for sentence in set(later) - known:
        parts = re.split(r"\{\d\}|(?<=\bis )|(?<= and )", sentence.removesuffix("."))
        assert [part for part in parts if part not in raised] == [], sentence


def refused(data: bytes, **limits: int) -> str:
    """Why a picture is refused."""
    with pytest.raises(ImageError) as caught:
        decode_image(data, ImageLimits(**limits))
    return str(caught.value)


def without_embedding() -> str:
    """Why a picture without an embedding is refused."""
    zeros = np.zeros((1, 4), np.float32)
    with pytest.raises(NoEmbedding) as caught:
        Embeddings(zeros, zeros, zeros).require_usable()
    return str(caught.value)


def test_refused_files_and_keys_are_explained_in_german(browser: Browser) -> None:
    reasons = [
        refused(b""),
        refused(PICTURE, max_bytes=8),
        refused(PICTURE, max_pixels=8),
        refused(PICTURE[:-30]),
        refused(b"\xff\xd8\xff\xe0" + bytes(40)),
        refused(b"words of a text, and no picture" * 9),
        refused(b"<svg xmlns='http://www.w3.org/2000/svg'/>"),
        refused(b"%PDF-1.7 and so on"),
        refused(bytes(range(7, 99))),
        TOO_MUCH_MEMORY,
        without_embedding(),
        (
            "This service does not know the key that was sent. "
            "Send a valid key as `Authorization: Bearer vouch_…` or as `X-API-Key`; the service's "
            "operator creates keys with `vouch-keys create`."
        ),
        (
            "The key k1 allows 1,000 searches within 86,400 s, and all are used. "
            "The next period begins in 15,884 s. The service's operator can raise this quota."
        ),
    ]
    shown = Shown(browser, locale="de-DE")
    shown.open()
    shown.run("language", "m.learn()")
    english = re.compile(r"\b(the|is|are|send|has|and|it)\b", re.IGNORECASE)
    for reason in reasons:
        german = shown.run("service_texts", "m.said(all[0])", reason)
        assert english.search(german) is None, german
    assert "erlaubt 1.000 Suchen in 86.400 s" in german
    expect(shown.page.get_by_role("region", name="Antwort")).to_be_attached()
    shown.page.close()


def test_numbers_are_written_as_in_german(browser: Browser) -> None:
    shown = Shown(browser, locale="de-DE")
    shown.ask(timing_ms={"total": 0.14})
    expect(shown.found("details")).to_contain_text(f"0,1{NBSP}ms, Cache")
    shown.status, shown.headers = 429, {"retry-after": "15884"}
    shown.ask(title="No", detail="No.", code="searches_used_up", request_id="r-1")
    expect(shown.found("problem")).to_contain_text("Warten Sie 5 Stunden und")
    shown.page.close()


def test_reason_of_a_failed_batch_row_is_said_in_german(browser: Browser) -> None:
    shown = Shown(browser, locale="de-DE")
    shown.status = 422
    shown.answer = {
        "title": "The image has an accepted format, but is truncated or damaged",
        "detail": refused(PICTURE[:-30]),
        "code": "corrupt_image",
    }
    shown.open()
    shown.choose("a.png", "b.png")
    expect(shown.page.locator("#batch-place")).to_contain_text("Das Bild (PNG) ist beschädigt")
    shown.page.close()


def test_a_reason_of_the_service_is_said_in_german(browser: Browser) -> None:
    shown = Shown(browser, locale="de-DE")
    reason = (
        "An error of at most 0.05 among matches cannot be promised: there are 12 calibration "
        "queries with a match whose first item is the only one of its label, about 90 would be "
        "enough."
    )
    german_reason = (
        "Höchstens 0,05 Fehler unter Treffern lassen sich nicht versprechen: Es gibt 12 Anfragen "
        "zur Kalibrierung mit Treffer, deren erstes Objekt das einzige seines Labels ist, etwa 90 "
        "würden reichen."
    )
    unpromised = {
        **(ANSWER["result_set"] or {}),
        "promised": False,
        "promised_for": [],
        "reason": "A coverage of 0.95 needs 59 independent calibration queries with a match; "
        "there are 12.",
    }
    image = {**ANSWER["query"]["image"], "warnings": ["Transparent areas were made white."]}
    query = {**ANSWER["query"], "image": image}
    shown.ask(verdict="ambiguous", reason=reason, result_set=unpromised, query=query)
    expect(shown.found("withheld")).to_contain_text(german_reason)
    expect(shown.found("set")).to_have_text(
        "Eine Abdeckung von 0,95 braucht 59 unabhängige Anfragen zur Kalibrierung mit Treffer; "
        "es gibt 12."
    )
    expect(shown.found("result")).to_contain_text("Hinweis. Durchsichtiges wurde auf Weiß gelegt.")
    shown.status = 503
    busy = "The service is processing its maximum number of requests"
    shown.ask(title=busy, detail="Wait.", code="overloaded", request_id="r-1")
    expect(shown.found("problem").locator("h2")).to_have_text("Der Dienst ist ausgelastet")
    expect(shown.found("problem").locator("p").first).to_have_attribute("lang", "en")
    shown.page.close()


def test_sentence_that_begins_with_a_value_is_translated_alone(browser: Browser) -> None:
    shown = Shown(browser, locale="de-DE")
    shown.open()
    shown.run("language", "m.learn()")
    sentence = (
        "About 0.5 % of ordinary queries are flagged `out_of_distribution`. "
        "46 % of these queries are flagged `out_of_distribution`."
    )
    whole = shown.run("service_texts", "m.said(all[0])", sentence)
    alone = [
        shown.run("service_texts", "m.said(all[0])", f"{one}.")
        for one in (
            "About 0.5 % of ordinary queries are flagged `out_of_distribution`",
            "46 % of these queries are flagged `out_of_distribution`",
        )
    ]
    assert whole == " ".join(alone)
    assert "flagged" not in whole
    shown.page.close()


@pytest.mark.parametrize("language", OTHERS)
def test_every_language_has_each_text_with_the_same_values(language: str) -> None:
    page, service, later = (translations(language, name) for name in ("PAGE", "SERVICE", "LATER"))
    assert set(page) == texts() | FROM_THE_API
    for text, other in [*page.items(), *service.items(), *later.items()]:
        numbers = [sorted(re.findall(r"\{\d\}", one)) for one in (text, other)]
        assert numbers[0] == numbers[1], text
        for one in (text, other):  # {0|one|others} chooses by a value that is there
            chosen = set(re.findall(r"\{(\d)\|[^|}]*\|[^|}]*\}", one))
            assert chosen <= {number[1] for number in numbers[0]}, one
            assert one.count("|") == 2 * len(re.findall(r"\{\d\|", one)), one
        ends = [(one[0] in " ,", one[-1] == " ", one.count("`") % 2) for one in (text, other)]
        assert ends[0] == ends[1], text  # other texts stand beside it
    assert sum(text == other for text, other in page.items()) < 20


@pytest.mark.parametrize(
    ("locale", "texts"),
    [
        ("en-GB", ["0 items", "1 item", "2 items", "1,000 items"]),
        ("de-DE", ["0 Objekte", "1 Objekt", "2 Objekte", "1.000 Objekte"]),
        ("fr-FR", ["0 objet", "1 objet", "2 objets", "1\u202f000 objets"]),
    ],
)
def test_one_is_said_in_the_singular(browser: Browser, locale: str, texts: list[str]) -> None:
    shown = Shown(browser, locale=locale)
    shown.open()
    said = "[0, 1, 2, 1000].map((n) => m.t(['', ' {0|item|items}'], n.toLocaleString(m.language)))"
    assert shown.run("language", said) == texts
    shown.page.close()


def test_each_language_is_offered_by_its_name() -> None:
    script = (FILES / "language.js").read_text(encoding="utf-8")
    [names] = re.findall(r"LANGUAGES = \{(.*)\}", script)
    assert sorted(re.findall(r"(\w+): \"", names)) == sorted(["en", *OTHERS])


def test_french_is_spoken_to_who_prefers_it(browser: Browser) -> None:
    shown = Shown(browser, locale="fr-CA")
    shown.ask(results=[result(1, match_probability=0.9876)])
    expect(shown.page.locator("html")).to_have_attribute("lang", "fr")
    expect(shown.found("verdict").locator("h2")).to_have_text("Trouvé")
    expect(shown.found("uncertainty").locator("h3")).to_have_text("Incertitude faible")
    expect(shown.page.locator("#gallery-about")).to_contain_text("1\u202f500 objets")
    assert complaints(shown.page) == []
    shown.page.close()


def test_german_is_spoken_to_who_prefers_it_and_english_is_a_choice(browser: Browser) -> None:
    shown = Shown(browser, locale="de-AT")
    shown.ask(results=[result(1, match_probability=0.9876)])
    expect(shown.page.locator("html")).to_have_attribute("lang", "de")
    expect(shown.found("verdict").locator("h2")).to_have_text("Treffer")
    expect(shown.found("verdict")).to_contain_text("Sicherer Treffer: „label-1“")
    expect(shown.found("uncertainty").locator("h3")).to_have_text("Unsicherheit gering")
    expect(shown.page.locator("#gallery-about")).to_contain_text("1.500 Objekte")
    shown.found("language").select_option("en")
    # The page comes anew: its file says "en" before its script can take a picture.
    expect(shown.page.locator("#gallery-about")).to_contain_text("1,500 items")
    expect(shown.page.locator("html")).to_have_attribute("lang", "en")
    shown.ask()
    expect(shown.found("verdict").locator("h2")).to_have_text("Match")
    shown.page.close()


def test_it_works_where_a_browser_remembers_nothing(fresh: Shown) -> None:
    """As in a frame of another site, where storage is refused."""
    refuse = "() => { throw new DOMException('no storage', 'SecurityError'); }"
    shown = fresh
    shown.page.add_init_script(
        f"Object.defineProperty(window, 'localStorage', {{ get: {refuse} }})"
    )
    shown.ask()
    shown.found("look").click()
    shown.page.get_by_label("Decided by").fill("Ada")
    shown.found("decide-is").click()
    expect(shown.found("decision")).to_have_text("It is “label-1”.")
    assert shown.complaints == []


@pytest.fixture(scope="module")
def mirrored(browser: Browser) -> Iterator[Shown]:
    """A page on a phone that reads from the right."""
    shown = Shown(browser, viewport={"width": 360, "height": 740}, reduced_motion="reduce")
    shown.page.add_init_script("document.documentElement.dir = 'rtl'")
    yield shown
    shown.close()


@pytest.mark.parametrize("name", VIEWS)
def test_it_reads_from_the_right_too(mirrored: Shown, name: str) -> None:
    """Mirrored, nothing is cut off or pushed out of a phone."""
    shown = mirrored
    shown.renew()
    VIEWS[name](shown)
    shown.page.evaluate("document.documentElement.dir = 'rtl'")
    assert shown.overflow() <= 0
    for dialog in shown.page.get_by_role("dialog").all():
        assert dialog.evaluate("node => node.scrollWidth - node.clientWidth") <= 0
