"""The page in a real browser, as a visitor uses it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Locator,
    Page,
    Request,
    ViewportSize,
    expect,
)

from index_builder.datasets.small_images import digits
from model_store.bundles.manifest import MANIFEST_FILE, read_manifest
from model_store.bundles.publish import publish
from model_store.decision import Calibration
from model_store.decision.absent_share import LEAST_QUERIES
from tests.end_to_end.keys import KeysFile, secret_of
from tests.end_to_end.processes import TIMEOUT_S, Service
from tests.support.image_files import encoded

pytestmark = pytest.mark.browser

DESKTOP = ViewportSize(width=1280, height=900)
PHONE = ViewportSize(width=360, height=740)


class Visit:
    """A page that is open, and everything that went wrong with it."""

    def __init__(
        self,
        browser: Browser,
        service: Service,
        viewport: ViewportSize,
        *,
        wants_key: bool = False,
    ) -> None:
        self.page: Page = browser.new_page(viewport=viewport)
        self.page.set_default_timeout(1000 * TIMEOUT_S)
        self.host = urlsplit(str(service.http.base_url)).netloc
        self.complaints: list[str] = []
        self.strange_requests: list[str] = []
        self.page.on("console", self._listen)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._watch)
        self.page.goto(f"http://{self.host}/")
        if not wants_key:
            expect(self.found("sample")).not_to_have_count(0)

    def found(self, name: str) -> Locator:
        """What the page marks with that name."""
        return self.page.get_by_test_id(name)

    def sample(self, *, belongs: bool) -> Locator:
        """The last sample of a kind: of those that do not belong, one from another world."""
        return self.page.locator(f"[data-testid=sample][data-belongs={str(belongs).lower()}]").last

    def verdict(self, ask: Callable[[], object]) -> str:
        """The verdict that is shown once ``ask`` has been answered."""
        with self.page.expect_response(lambda response: response.url.endswith("/search")) as asked:
            ask()
        request_id = asked.value.headers["x-request-id"]
        expect(self.found("json")).to_contain_text(request_id)  # not the answer before
        expect(self.found("verdict")).to_be_visible()
        return self.found("verdict").get_attribute("data-verdict") or ""

    def flagged(self) -> bool:
        """Whether the image is said to be unusual."""
        said = self.found("ood").locator("h3 b").text_content() or ""
        return {"yes": False, "no, unusual": True}[said]

    def overflow(self) -> int:
        """Pixels that the page is wider than its window."""
        width = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        return int(self.page.evaluate(width))

    def _listen(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(f"{message.text} ({message.location['url']})")

    def _watch(self, request: Request) -> None:
        address = urlsplit(request.url)
        if address.scheme not in {"blob", "data"} and address.netloc != self.host:
            self.strange_requests.append(request.url)


@pytest.fixture
def visit(browser: Browser, service: Service) -> Iterator[Visit]:
    """A visit at a desk, in which nothing may go wrong unnoticed."""
    visit = Visit(browser, service, DESKTOP)
    yield visit
    assert visit.complaints == []
    assert visit.strange_requests == []
    visit.page.close()


def assert_neighbours_are_shown(visit: Visit, n: int = 10) -> None:
    neighbours = visit.found("neighbour").locator("[data-place]")
    expect(neighbours).to_have_count(n)
    for neighbour in neighbours.all():
        neighbour.scroll_into_view_if_needed()
        picture = neighbour.locator("img")
        expect(picture).to_be_visible()
        visit.page.wait_for_function(
            "image => image.complete && image.naturalWidth > 0", arg=picture.element_handle()
        )


def test_it_opens_without_a_complaint(visit: Visit, service: Service) -> None:
    expect(visit.page).to_have_title("Vouch")
    gallery = service.http.get("/v1/galleries/digits").json()
    expect(visit.found("sample")).to_have_count(len(gallery["samples"]))
    expect(visit.page.get_by_text(gallery["description"])).to_be_visible()
    expect(visit.found("drop-zone")).to_be_visible()
    for name in ("verdict", "problem", "result", "busy"):
        expect(visit.found(name)).to_be_hidden()
    pictures = visit.found("sample").locator("img").all()
    for picture in pictures:
        visit.page.wait_for_function("i => i.naturalWidth > 0", arg=picture.element_handle())
    assert visit.overflow() <= 0


def test_an_uploaded_image_is_answered(
    visit: Visit, service: Service, belonging: list[bytes], tmp_path: Path
) -> None:
    file = tmp_path / "digit.png"
    file.write_bytes(belonging[0])
    wanted = service.answer(belonging[0])
    upload = visit.found("file-input").set_input_files
    assert visit.verdict(lambda: upload(file)) == wanted["verdict"]
    assert_neighbours_are_shown(visit)
    first = visit.found("neighbour").first
    expect(first).to_contain_text(wanted["results"][0]["label"])
    expect(first).to_contain_text(percent(wanted["results"][0]["match_probability"]))
    level, flag = wanted["query"]["uncertainty"]["level"], wanted["query"]["ood"]["flag"]
    expect(visit.found("uncertainty").locator("h3 b")).to_have_text(level)
    assert visit.flagged() is flag
    expect(visit.found("result")).to_contain_text("PNG")
    expect(visit.found("problem")).to_be_hidden()


def test_it_says_how_likely_nothing_matches_and_on_what_that_rests(
    visit: Visit, service: Service, belonging: list[bytes]
) -> None:
    assert visit.verdict(visit.sample(belongs=True).click)
    wanted = service.answer(belonging[-1])
    nothing = visit.found("nothing")
    expect(nothing.locator("h3 b")).to_have_text(percent(wanted["no_match_probability"]))
    expect(nothing).to_contain_text("of photos are not in the gallery")
    expect(nothing).to_contain_text("photos that have no match in it")
    expect(visit.found("result")).to_contain_text("held-out images. Each small dot stands for")
    expect(visit.found("withheld")).to_contain_text("Not guaranteed.")
    expect(visit.found("withheld")).to_contain_text("20 more labels are needed")
    visit.verdict(visit.sample(belongs=False).click)
    expect(nothing).to_have_count(0)  # of another kind of image no probability holds


def recalibrated(bundle: Path, place: Path, **changes: Any) -> Path:
    """A bundle whose calibration is another one; its encoder and gallery are the same."""
    staging = place / "staging"
    shutil.copytree(bundle, staging)
    (staging / MANIFEST_FILE).unlink()
    calibration = Calibration.load(staging)
    assert calibration is not None
    replace(calibration, **changes).save(staging)
    return publish(staging, read_manifest(bundle), place / "bundles")


def test_a_match_that_cannot_be_promised_is_withheld_with_the_reason(
    browser: Browser, digits_bundle: Path, tmp_path: Path
) -> None:
    strict = recalibrated(digits_bundle, tmp_path, max_error=0.001)
    with Service(strict, tmp_path / "log") as service:
        visit = Visit(browser, service, DESKTOP)
        assert visit.verdict(visit.sample(belongs=True).click) == "ambiguous"
        expect(visit.found("withheld")).to_contain_text("at most 0.001 among matches")
        assert visit.overflow() <= 0
        assert visit.complaints == []
        visit.page.close()


def test_a_gallery_calibrated_by_views_says_so(
    browser: Browser, digits_bundle: Path, tmp_path: Path
) -> None:
    calibration = Calibration.load(digits_bundle)
    assert calibration is not None
    views = recalibrated(
        digits_bundle,
        tmp_path,
        evidence=replace(calibration.evidence, absence="near_misses_of_views"),
        report={**calibration.report, "queries": "views_of_items"},
    )
    images = digits()
    with Service(views, tmp_path / "log") as service:
        for place in range(2 * LEAST_QUERIES):
            service.answer(encoded(images.pixels(place), "PNG"), alpha=0.001)
        visit = Visit(browser, service, DESKTOP)
        expect(visit.page.get_by_text("augmented views of its items").first).to_be_visible()
        expect(visit.found("estimate")).to_contain_text("a rough estimate). Probabilities assume 5")
        assert visit.verdict(visit.sample(belongs=True).click)
        expect(visit.found("result")).to_contain_text("288 augmented views of its items")
        expect(visit.found("nothing")).to_contain_text("Rough estimate")
        assert visit.complaints == []
        visit.page.close()


def percent(share: float) -> re.Pattern[str]:
    """The whole per cent of ``share``, however it is rounded and spaced."""
    return re.compile(rf"(>\s*)?{int(100 * share)}(\.\d)?\s*%|{round(100 * share)}\s*%")


def test_what_does_not_belong_is_not_vouched_for(visit: Visit) -> None:
    assert visit.verdict(visit.sample(belongs=False).click) == "out_of_distribution"
    assert_neighbours_are_shown(visit)
    assert visit.flagged() is True
    assert visit.verdict(visit.sample(belongs=True).click) != "out_of_distribution"


def test_what_is_no_image_is_explained_and_harms_nothing(
    visit: Visit, service: Service, tmp_path: Path
) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("not an image")
    visit.found("file-input").set_input_files(file)
    problem = visit.found("problem")
    expect(problem).to_be_visible()
    detail = service.ask(b"not an image").json()["detail"]
    expect(problem).to_contain_text(detail)
    expect(visit.found("verdict")).to_be_hidden()
    assert visit.verdict(visit.sample(belongs=True).click)
    assert_neighbours_are_shown(visit)
    # After many strange pictures the service may have noticed that its queries have changed.
    expect(visit.found("set")).to_contain_text(
        re.compile("with probability 95|Your recent queries differ")
    )
    expect(problem).to_be_hidden()
    # The browser itself notes the refusal; the page has nothing to complain of.
    assert [said for said in visit.complaints if "415" not in said] == []
    visit.complaints.clear()


def test_the_keyboard_is_enough(visit: Visit) -> None:
    sample = visit.found("sample").first
    for _ in range(20):
        visit.page.keyboard.press("Tab")
        if sample.evaluate("node => node === document.activeElement"):
            break
    expect(sample).to_be_focused()
    assert visit.verdict(lambda: visit.page.keyboard.press("Enter"))
    assert_neighbours_are_shown(visit)


def test_a_file_may_be_chosen_by_keyboard(visit: Visit) -> None:
    with visit.page.expect_file_chooser():
        visit.found("file-input").focus()
        visit.page.keyboard.press("Enter")


def test_a_dropped_image_is_answered(visit: Visit, belonging: list[bytes]) -> None:
    files = visit.page.evaluate_handle(
        """bytes => {
            const transfer = new DataTransfer();
            const file = new File([new Uint8Array(bytes)], "digit.png", { type: "image/png" });
            transfer.items.add(file);
            return transfer;
        }""",
        list(belonging[0]),
    )
    zone = visit.found("drop-zone")
    zone.dispatch_event("dragover", {"dataTransfer": files})
    assert visit.verdict(lambda: zone.dispatch_event("drop", {"dataTransfer": files}))
    assert_neighbours_are_shown(visit)


def test_on_a_phone_nothing_has_to_be_scrolled_sideways(browser: Browser, service: Service) -> None:
    visit = Visit(browser, service, PHONE)
    assert visit.overflow() <= 0
    for belongs in (True, False):
        assert visit.verdict(visit.sample(belongs=belongs).click)
        expect(visit.found("verdict")).to_be_in_viewport()  # it scrolls there by itself
        assert_neighbours_are_shown(visit)
        assert visit.overflow() <= 0
    assert visit.complaints == []
    visit.page.close()


@pytest.fixture(scope="module")
def bare_bundle(uncalibrated_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The uncalibrated digits under another name."""
    root = tmp_path_factory.mktemp("bare")
    shutil.copytree(uncalibrated_bundle, root / "staging")
    (root / "staging" / MANIFEST_FILE).unlink()
    manifest = read_manifest(uncalibrated_bundle)
    renamed = replace(manifest, gallery={**manifest.gallery, "name": "bare & new"})
    return publish(root / "staging", renamed, root / "bundles")


def test_a_gallery_can_be_picked_and_linked_to(
    browser: Browser, digits_bundle: Path, bare_bundle: Path, tmp_path: Path
) -> None:
    with Service([digits_bundle, bare_bundle], tmp_path / "log") as both:
        visit = Visit(browser, both, DESKTOP)
        expect(visit.found("gallery-picker").locator("option")).to_have_count(2)
        # A gallery that is picked while it is opened is opened again; that ends a search.
        visit.page.wait_for_load_state("networkidle")
        visit.found("gallery-picker").select_option("digits")
        assert visit.verdict(visit.sample(belongs=True).click) != "not_calibrated"
        # Another gallery is asked the same question.
        pick = visit.found("gallery-picker").select_option
        assert visit.verdict(lambda: pick("bare & new")) == "not_calibrated"
        assert_neighbours_are_shown(visit)
        expect(visit.found("uncertainty").locator("h3 b")).to_have_text("unknown")
        visit.page.reload()
        expect(visit.found("gallery-picker")).to_have_value("bare & new")
        assert visit.complaints == []
        visit.page.close()


def test_a_service_that_wants_a_key_gets_it_from_the_visitor(
    browser: Browser, digits_bundle: Path, keys_file: KeysFile, tmp_path: Path
) -> None:
    text = keys_file.make("read")
    variables = {"VOUCH_KEYS": str(keys_file.path)}
    with Service(digits_bundle, tmp_path / "log", variables) as guarded:
        visit = Visit(browser, guarded, DESKTOP, wants_key=True)
        form, field = visit.found("key-form"), visit.found("key-input")
        expect(form).to_contain_text("asks for a key")
        expect(field).to_be_focused()
        expect(field).to_have_attribute("required", "")
        assert visit.overflow() <= 0
        field.fill("vouch_wrong")
        visit.page.keyboard.press("Enter")
        expect(form).to_contain_text("not accepted")
        field.fill(f"  {text}\n")
        form.get_by_role("button").click()
        expect(form).to_be_hidden()
        for picture in visit.found("sample").locator("img").all():
            visit.page.wait_for_function("i => i.naturalWidth > 0", arg=picture.element_handle())
        verdict = visit.verdict(visit.sample(belongs=True).click)
        assert_neighbours_are_shown(visit)
        expect(visit.found("curl")).to_contain_text("$VOUCH_KEY")
        expect(visit.found("result")).not_to_contain_text(secret_of(text))
        assert visit.verdict(visit.page.reload) == verdict  # this tab keeps the key, and the photo
        assert visit.verdict(visit.sample(belongs=False).click) == "out_of_distribution"
        other = Visit(browser, guarded, PHONE, wants_key=True)  # another does not have it
        expect(other.found("key-form")).to_be_visible()
        assert other.overflow() <= 0
        other.page.close()
        # The browser itself notes the refusals; the page has nothing to complain of.
        assert [said for said in visit.complaints if "401" not in said] == []
        assert visit.strange_requests == []
        visit.page.close()


def test_an_unreachable_service_is_said_and_can_be_tried_again(
    browser: Browser, service: Service
) -> None:
    visit = Visit(browser, service, DESKTOP)
    visit.page.context.set_offline(True)
    visit.sample(belongs=True).click()
    expect(visit.found("problem")).to_be_visible()
    visit.page.context.set_offline(False)
    assert visit.verdict(visit.found("problem").get_by_role("button", name="Try again").click)
    visit.page.close()


def test_the_documentation_opens_without_another_host(visit: Visit) -> None:
    visit.page.goto(f"http://{visit.host}/docs")
    expect(visit.page.get_by_text("/v1/galleries/{gallery}/search").first).to_be_visible()


def test_a_match_drawn_at_random_is_reviewed(
    browser: Browser, digits_bundle: Path, tmp_path: Path
) -> None:
    variables = {"VOUCH_FEEDBACK": str(tmp_path / "feedback.sqlite3"), "VOUCH_AUDIT_SHARE": "1"}
    with Service(digits_bundle, tmp_path / "log", variables) as reviewed:
        visit = Visit(browser, reviewed, DESKTOP)
        assert visit.verdict(visit.sample(belongs=False).click) != "match"
        expect(visit.found("audit")).to_have_count(0)
        samples = visit.page.locator("[data-testid=sample][data-belongs=true]").all()
        assert "match" in (visit.verdict(sample.click) for sample in samples)
        visit.found("audit").get_by_role("button", name="No").click()
        expect(visit.found("audit")).to_contain_text("Thank you")
        report = reviewed.http.get("/v1/galleries/digits/calibration").json()["errors_over_time"]
        assert (report["n_reviewed"], report["n_wrong"]) == (1, 1)
        assert visit.complaints == []
        visit.page.close()
