"""The page in front of an API that answers what a test says: real Chromium, no service."""

from __future__ import annotations

import json
import mimetypes
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from playwright.sync_api import Browser, Dialog, FilePayload, Locator, Page, expect

from index_builder.datasets.small_images import digits
from service.http.middleware import content_security_policy
from service.schemas.search import SearchAnswer
from tests.end_to_end.stage import HEADER, ORIGIN, Asked, Reply, stage
from tests.support.image_files import encoded
from tests.support.waiting import wait_until

POLICY = {"Content-Security-Policy": content_security_policy()}
FILES = Path(__file__).parents[2] / "service" / "http" / "page"
NBSP = "\u00a0"


def result(rank: int, **changes: Any) -> dict[str, Any]:
    """A ranked item."""
    return {
        "rank": rank,
        "id": f"item-{rank}",
        "similarity": 0.98765 - rank / 10,
        "similarity_std": 0.05,
        "match_probability": 0.9 / rank,
        "rank_stability": 0.75,
        "rank_confidence": None,
        "variance": 0.1,
        "label": f"label-{rank}",
        "metadata": {"price": 12, "colours": ["red"], "maker": "Ada", "year": 2001},
        "thumbnail_url": f"/v1/galleries/shoes/items/item-{rank}/thumbnail",
        **changes,
    }


CALIBRATION = {"status": "valid", "n_queries": 1234, "fitted_at": None, "reason": None}
ANSWER: dict[str, Any] = {
    "request_id": "request-1",
    "gallery": "shoes",
    "verdict": "match",
    "reason": None,
    "guaranteed": True,
    "no_match_probability": 0.04,
    "roll_up": None,
    "absent": {"share": 0.05, "origin": "request", "basis": "absent_labels"},
    "query": {
        "id": "query-1",
        "text": None,
        "uncertainty": {
            "value": 0.12345,
            "percentile": 20.0,
            "level": "low",
            "epistemic": 0.12345,
            "aleatoric": {"value": 0.01, "percentile": 40.0},
            "method": "laplace",
        },
        "ood": {"flag": False, "reason": None, "p_value": 0.1, "alpha": 0.01, "method": "fusion"},
        "image": {"format": "PNG", "width": 8, "height": 9, "warnings": []},
    },
    "order": "similarity",
    "results": [result(1), result(2)],
    "result_set": {
        "items": [{"id": "item-1", "label": "label-1"}],
        "coverage": 0.95,
        "promised": True,
        "promised_for": ["one", "few", "many"],
        "reason": None,
    },
    "next_cursor": None,
    "audit": False,
    "explain": None,
    "bundle": {"id": "0123456789abcdef", "calibration": CALIBRATION},
    "cache": "miss",
    "timing_ms": {"total": 12.6, "decode": 3.25, "search": 9.0},
}
OUTCOME: dict[str, Any] = {
    "recall_at_1": 0.87,
    "lines": [
        {
            "code": "recall_at_1",
            "severity": "fact",
            "parameters": {},
            "sentence": "The first result is right for 87 % of 1,234 calibration queries.",
        }
    ],
}
GALLERY: dict[str, Any] = {
    "name": "shoes",
    "description": "Shoes of a shop.",
    "n_items": 1500,
    "n_labels": 3,
    "labels": ["boot", "clog"],
    "bundle": {"calibration": CALIBRATION},
    "outcome": OUTCOME,
    "samples": [],
    "record_url": None,
    "image_origins": [],
}


TEXT_STATE: dict[str, Any] = {
    "fingerprint": "0123",
    "context_length": 64,
    "posterior": "deterministic",
    "calibration": CALIBRATION,
}
"""Of a gallery whose encoder reads texts."""

REPORT: dict[str, Any] = {
    "queries": "held_out_images",
    "absent": None,
    "errors_over_time": None,
    "max_error": 0.05,
}


RUN: dict[str, Any] = {
    "state": "none",
    "started_at": None,
    "ended_at": None,
    "bundle_id": None,
    "reason": None,
    "n_item_queries": 280,
}
"""The state of the calibrations that were started over HTTP."""


def look_closely(page: Page) -> Locator:
    """Open the dialog over an answer, at its first result.

    A dialog that was closed stays in the page for a moment, under the name of the button.
    """
    expect(page.locator("dialog")).to_have_count(0)
    page.get_by_test_id("look").first.click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    return dialog


class Shown:
    """The page in front of an API that answers what it is given here.

    Attributes
    ----------
    answer, gallery, report : of a search, of the gallery, of its calibration.
    replies : further answers, by path; a path that is not known gets a picture.
    asked : what the page has sent, in order: method, path and body.
    complaints : what went wrong in the browser.
    """

    def __init__(self, browser: Browser, *, is_toured: bool = True, **context: Any) -> None:
        self.page: Page = browser.new_page(**context)
        self.page.set_default_timeout(20_000)
        self.page.add_init_script(NAMED)
        if is_toured:
            self.page.add_init_script(TOURED)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", self._refuse)
        self._token, self._over = "", threading.Event()
        self._begin()

    def _begin(self) -> None:
        """Begin with what every test begins with."""
        self.answer, self.gallery, self.report = ANSWER, GALLERY, REPORT
        self.replies: dict[str, Any] = {}
        self.asked: list[tuple[str, str, bytes]] = []
        self.complaints: list[str] = []
        self.status, self.headers = 200, dict[str, str]()
        self.picture, self.holds = PICTURE, False
        self._over.set()
        self._over = threading.Event()
        stage().leave(self._token)
        self._token = stage().enter(self._reply)
        self.page.set_extra_http_headers({HEADER: self._token})

    def renew(self) -> None:
        """Forget all that was done to it, as a page that has just been made; it is not open.

        A page that is used again costs half as much as a new one.
        """
        self.page.unroute_all(behavior="ignoreErrors")
        for other in self.page.context.pages:
            if other != self.page:
                other.close()
        if self.page.url.startswith(ORIGIN):
            self.page.evaluate(FORGET)
        self.page.goto("about:blank")
        self.page.mouse.move(0, 0)
        self._begin()

    def close(self) -> None:
        """Leave it for good."""
        self._over.set()
        stage().leave(self._token)
        self.page.close()

    def open(self, *, policy: bool = False) -> None:
        """Open the page, with the service's content security policy or without one."""
        self.page.goto(f"{ORIGIN}/?policy" if policy else f"{ORIGIN}/")
        expect(self.page.locator("#gallery-about p").first).to_be_visible()

    def ask(self, **changes: Any) -> Locator:
        """Ask with a picture, whose answer differs from `ANSWER`; return what is shown."""
        self.answer = {**ANSWER, **changes}
        if self.status == 200:
            SearchAnswer.model_validate(self.answer)  # the API may say so
        if not self.page.url.startswith("http"):
            self.open()
        with self.page.expect_response("**/search"):
            self.choose('my "shoe".png')
        expect(self.found("result")).not_to_have_attribute("aria-busy", "true")  # it is shown
        return self.page.locator("#answer")

    def ask_text(self, text: str, **changes: Any) -> Locator:
        """Ask in words, whose answer differs from `ANSWER`; return what is shown."""
        of_text = {"image": None, "text": {"n_tokens": 4, "warnings": []}}
        uncertainty = {**ANSWER["query"]["uncertainty"], "aleatoric": None}
        query = {**ANSWER["query"], **of_text, "uncertainty": uncertainty}
        self.answer = {**ANSWER, "query": query, **changes}
        SearchAnswer.model_validate(self.answer)
        self.gallery = {**self.gallery, "text": TEXT_STATE}
        if not self.page.url.startswith("http"):
            self.open()
        self.found("text-input").fill(text)
        with self.page.expect_response("**/search/text"):
            self.found("text-input").press("Enter")
        expect(self.found("result")).not_to_have_attribute("aria-busy", "true")
        return self.page.locator("#answer")

    def choose(self, *names: str) -> None:
        """Choose pictures of these names."""
        files = [FilePayload(name=name, mimeType="image/png", buffer=PICTURE) for name in names]
        self.page.get_by_test_id("file-input").set_input_files(files)

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition while the browser's events are taken in."""
        wait_until(condition, lambda: self.page.wait_for_timeout(20))

    def sent(self, ending: str) -> list[dict[str, Any]]:
        """The JSON that was sent to paths with that ending."""
        return [json.loads(body) for _, path, body in self.asked if path.endswith(ending)]

    def sent_once(self, ending: str) -> dict[str, Any]:
        """Wait for what is sent to a path with that ending; nothing else may be sent to it."""
        self.until(lambda: self.sent(ending))
        [sent] = self.sent(ending)
        return sent

    def found(self, name: str) -> Locator:
        """What the page marks with that name."""
        return self.page.get_by_test_id(name)

    def run(self, module: str, code: str, *arguments: object) -> Any:
        """What code says of a module: ``m`` is the module, ``all`` the arguments, `text` HTML."""
        script = (
            "async (all) => { const text = (made) => made.outerHTML;"
            f"const m = await import('/page/{module}.js'); return await ({code}); }}"
        )
        found = self.page.evaluate(script, list(arguments))
        return found.replace(NBSP, " ") if isinstance(found, str) else found

    def words(self, function: str, *arguments: object) -> str:
        """What a function of `words.js` says."""
        call = "([name, all]) => import('/page/words.js').then((words) => words[name](...all))"
        return str(self.page.evaluate(call, [function, arguments])).replace(NBSP, " ")

    def overflow(self) -> int:
        """Pixels that the page is wider than its window."""
        width = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        return int(self.page.evaluate(width))

    def _refuse(self, dialog: Dialog) -> None:
        """Nothing here may open one: what a label says was run."""
        self.complaints.append(dialog.message)
        dialog.dismiss()

    def _reply(self, asked: Asked) -> Reply | None:
        path = unquote(urlsplit(asked.url).path)
        if not path.startswith("/v1/"):
            file = _file(path.removeprefix("/page/").strip("/") or "index.html")
            return replace(file, headers=POLICY) if asked.url.endswith("?policy") else file
        self.asked.append((asked.method, path, asked.body))
        if path.endswith("/search") and self.holds:
            self._over.wait()
            return None
        try:
            return self._of_the_api(asked, path)
        except Exception as error:
            self.complaints.append(f"{path}: {error!r}")
            raise

    def _of_the_api(self, asked: Asked, path: str) -> Reply:
        replies = {
            "/v1/usage": {"scope": "admin", "key": None},
            "/v1/galleries": {"galleries": [{"name": "shoes", "n_items": 1500}]},
            "/v1/galleries/shoes": self.gallery,
            "/v1/galleries/shoes/calibration": self.report,
            "/v1/galleries/shoes/calibration/run": RUN,
            "/v1/galleries/shoes/bundles": {"serving": "", "bundles": [], "refused": None},
            **self.replies,
        }
        if path.endswith(("/search", "/search/text")):
            return _json(_said(self.answer, asked), self.status, self.headers)
        if path in replies:
            return _json(_said(replies[path], asked))
        if asked.method == "GET":
            return Reply(self.picture, "image/png")
        return _json({})


def _said(answer: Any, asked: Asked) -> Any:
    return answer(asked) if callable(answer) else answer


def _json(answer: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    return Reply(json.dumps(answer).encode(), "application/json", status, dict(headers or {}))


@cache
def _file(name: str) -> Reply:
    path = FILES / name
    if not path.is_file():
        return Reply(b"", "text/plain", 404)
    kind, _ = mimetypes.guess_type(path.name)
    return Reply(path.read_bytes(), kind or "application/octet-stream", is_kept=True)


NAMED = "try { localStorage['vouch-reviewer'] ??= 'Ada'; } catch { /* it remembers nothing */ }"
TOURED = "try { localStorage['vouch-tour'] ??= 'done'; } catch { /* it shows the tour */ }"
FORGET = """() => new Promise((done) => {
    localStorage.clear();
    sessionStorage.clear();
    const deleting = indexedDB.deleteDatabase("vouch");
    for (const end of ["success", "error", "blocked"]) deleting[`on${end}`] = () => done();
})"""
PICTURE = encoded(digits().pixels(0), "PNG")
