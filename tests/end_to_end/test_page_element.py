"""The page's search as an element of somebody else's page: built by npm, in real Chromium."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.end_to_end.element_package import install, run
from tests.end_to_end.fronts import BELOW_A_PATH, PROGRAMS, Front
from tests.end_to_end.keys import KeysFile
from tests.end_to_end.processes import Service
from tests.end_to_end.test_page_accessible import complaints

pytestmark = pytest.mark.browser

PACKAGE = Path(__file__).parents[2] / "service" / "client" / "element"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as npm packs it."""
    place = install(tmp_path_factory.mktemp("element"))
    [packed] = json.loads(run(["npm", "pack", "--json", "--silent"], place))
    shutil.unpack_archive(place / packed["filename"], place / "unpacked")
    return place / "unpacked" / "package"


MAX_BYTES = 30_000


def test_first_load_of_the_element_is_small(built: Path) -> None:
    """Each script that comes without a visitor's click, compressed, in English."""
    dist = built / "dist"
    waiting = [dist / "vouch-search.js", *dist.glob("search-*.js"), *dist.glob("api-*.js")]
    first: set[Path] = set()
    while waiting:
        script = waiting.pop()
        if script not in first:
            first.add(script)
            names = re.findall(r'(?:import|from)\s*"\./([^"]+)"', script.read_text("utf-8"))
            waiting += [dist / name for name in names]
    assert len(first) > 5
    assert sum(len(gzip.compress(path.read_bytes())) for path in first) <= MAX_BYTES


@pytest.fixture(params=["", "/vouch"])
def shop(
    browser: Browser,
    built: Path,
    digits_bundle: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[Page]:
    """The example page of a shop, whose element asks a real service of another origin.

    The second time it is below a path, behind the shipped nginx with TLS and HTTP/2.
    """
    prefix: str = request.param
    if prefix and PROGRAMS["nginx"] is None:
        pytest.skip("there is no nginx here")
    expect.set_options(timeout=20_000)
    site = tmp_path / "site"
    shutil.copytree(built, site)
    handler = partial(SimpleHTTPRequestHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        origin = f"http://127.0.0.1:{server.server_port}"
        Thread(target=server.serve_forever, daemon=True).start()
        settings = {"VOUCH_CORS_ORIGINS": json.dumps([origin])}
        settings["VOUCH_TRUSTED_PROXIES"] = "127.0.0.1"
        with ExitStack() as stack:
            service = stack.enter_context(Service(digits_bundle, tmp_path / "log", settings))
            address = str(service.http.base_url).rstrip("/")
            if prefix:
                front = stack.enter_context(Front(BELOW_A_PATH, [service.port], tmp_path))
                address = front.url
            asked = address.removesuffix(prefix)
            # What a careful shop allows: no inline style, no script but its own.
            policy = f"default-src 'self'; connect-src {asked}; img-src {asked} blob:"
            example = site / "example" / "index.html"
            text = example.read_text(encoding="utf-8").replace("http://127.0.0.1:8080", address)
            meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
            example.write_text(text.replace("<title>", f"{meta}<title>"), encoding="utf-8")
            page = browser.new_page(
                viewport={"width": 1280, "height": 900}, locale="en-GB", ignore_https_errors=True
            )
            page.set_default_timeout(20_000)
            page.goto(f"{origin}/example/")
            yield page
            page.close()
        server.shutdown()


def test_it_searches_compares_decides_and_tells_its_page(
    shop: Page, belonging: list[bytes]
) -> None:
    wrong: list[str] = []
    shop.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    shop.on("pageerror", lambda error: wrong.append(str(error)))
    expect(shop.get_by_test_id("sample")).not_to_have_count(0)
    shop.evaluate(
        """bytes => document.querySelector("vouch-search").search(
            new File([new Uint8Array(bytes)], "digit.png", { type: "image/png" }))""",
        list(belonging[0]),
    )
    expect(shop.get_by_test_id("verdict")).to_be_visible()
    expect(shop.locator("#heard")).to_contain_text(re.compile("We have it|The answer was"))
    picture = shop.get_by_test_id("neighbour").first.locator("img").first
    shop.wait_for_function("image => image.naturalWidth > 0", arg=picture.element_handle())
    # The page's own styles stay outside.
    button = shop.get_by_test_id("look")
    expect(button).to_have_css("text-transform", "none")
    expect(shop.get_by_role("heading", name="Found one like it?")).to_have_css(
        "color", "rgb(122, 31, 92)"
    )
    button.click()
    expect(shop.get_by_role("dialog")).to_be_visible()
    shop.keyboard.press("y")
    shop.keyboard.type("Ada")  # who decides is asked once
    shop.keyboard.press("Enter")
    expect(shop.locator("#heard")).to_contain_text("Decision: is, digit-")
    shop.get_by_test_id("open-browse").click()
    expect(shop.get_by_test_id("browse-status")).to_contain_text("items, by id")
    shop.keyboard.press("Escape")
    shop.get_by_test_id("edit").click()
    expect(shop.get_by_test_id("crop")).to_be_visible()
    shop.keyboard.press("Escape")
    assert complaints(shop) == []
    assert wrong == []
    # A narrow place in a wide page is laid out as a phone is.
    shop.locator("vouch-search").evaluate("node => { node.style.width = '340px'; }")
    assert shop.locator("vouch-search").evaluate("node => node.scrollWidth - node.clientWidth") <= 0
    # An element that is moved to another place begins anew.
    shop.locator("vouch-search").evaluate("node => document.body.append(node)")
    expect(shop.get_by_test_id("verdict")).to_have_count(0)
    expect(shop.get_by_test_id("sample")).not_to_have_count(0)
    assert wrong == []


class Site:
    """A web site with the element; its service wants keys, and has no other gallery than one."""

    def __init__(self, folder: Path, origin: str, service: Service, key: str, browser: Browser):
        self._folder, self._origin, self._browser = folder, origin, browser
        self.service, self.key = str(service.http.base_url).rstrip("/"), key
        self.wrong: list[str] = []
        self.pages: list[Page] = []

    def open(self, body: str, policy: str = "") -> Page:
        """Open a page of this body, below this content security policy."""
        meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">' if policy else ""
        script = '<script type="module" src="/dist/vouch-search.js"></script>'
        text = f"<!doctype html><title>Shop</title>{meta}{body}{script}"
        (self._folder / "index.html").write_text(text, encoding="utf-8")
        page = self._browser.new_page(locale="de-DE")
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.set_default_timeout(20_000)
        self.pages.append(page)
        page.goto(self._origin)
        return page


@pytest.fixture(scope="module")
def hosted(
    browser: Browser, built: Path, digits_bundle: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("shop")
    site, keys = folder / "site", KeysFile(folder / "keys.json")
    key = keys.make("read")
    shutil.copytree(built, site)
    handler = partial(SimpleHTTPRequestHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        origin = f"http://127.0.0.1:{server.server_port}"
        Thread(target=server.serve_forever, daemon=True).start()
        settings = {"VOUCH_CORS_ORIGINS": origin, "VOUCH_KEYS": str(keys.path)}
        with Service(digits_bundle, folder / "log", settings) as service:
            yield Site(site, origin, service, key, browser)
        server.shutdown()


@pytest.fixture
def site(hosted: Site) -> Iterator[Site]:
    """The site; each page that was opened is closed, and met no error that nobody took."""
    expect.set_options(timeout=20_000)
    yield hosted
    for page in hosted.pages:
        page.close()
    hosted.pages.clear()
    wrong, hosted.wrong = hosted.wrong, []
    assert wrong == []


def test_key_may_come_before_the_script_and_later(site: Site) -> None:
    element = f'<vouch-search service="{site.service}"></vouch-search>'
    early = f"<script>document.querySelector('vouch-search').key = '{site.key}';</script>"
    page = site.open(element + early)
    expect(page.get_by_test_id("sample")).not_to_have_count(0)
    assert page.evaluate("Object.hasOwn(document.querySelector('vouch-search'), 'key')") is False
    page = site.open(element)
    expect(page.get_by_test_id("key-form")).to_be_visible()
    page.evaluate("key => { document.querySelector('vouch-search').key = key; }", site.key)
    expect(page.get_by_test_id("sample")).not_to_have_count(0)
    expect(page.get_by_test_id("key-form")).to_have_count(0)


def test_answer_is_gone_once_a_search_fails(site: Site, belonging: list[bytes]) -> None:
    page = site.open(f'<vouch-search service="{site.service}"></vouch-search>')
    page.evaluate("key => { document.querySelector('vouch-search').key = key; }", site.key)
    element = "document.querySelector('vouch-search')"
    search = f"bytes => {element}.search(new Blob([new Uint8Array(bytes)]))"
    answer = f"{element}.answer?.verdict ?? null"
    assert page.evaluate(answer) is None
    page.evaluate(search, list(belonging[0]))
    expect(page.get_by_test_id("verdict")).to_be_visible()
    assert page.evaluate(answer) is not None
    page.evaluate(search, list(b"no picture"))
    expect(page.get_by_test_id("problem")).to_be_visible()
    assert page.evaluate(answer) is None


def test_second_service_is_refused_in_words(site: Site) -> None:
    page = site.open(
        f'<vouch-search lang="de" service="{site.service}"></vouch-search>'
        '<vouch-search lang="fr" service="https://other.example"></vouch-search>'
    )
    second = page.locator("vouch-search").nth(1)
    expect(second.get_by_test_id("problem")).to_contain_text(
        "Diese Webseite durchsucht schon einen anderen Dienst"
    )
    expect(second.get_by_test_id("file-input")).to_have_count(0)
    expect(second.locator(".vouch")).to_have_attribute("lang", "de")
    failed = page.evaluate(
        "document.querySelectorAll('vouch-search')[1].search(new Blob()).catch(String)"
    )
    assert "cannot ask its service" in failed


def test_changed_attribute_starts_the_element_anew(site: Site) -> None:
    page = site.open(f'<vouch-search service="{site.service}" gallery="none"></vouch-search>')
    page.evaluate("key => { document.querySelector('vouch-search').key = key; }", site.key)
    expect(page.get_by_test_id("problem")).to_contain_text("none")
    page.evaluate("document.querySelector('vouch-search').setAttribute('gallery', 'digits')")
    expect(page.get_by_test_id("sample")).not_to_have_count(0)
    expect(page.get_by_test_id("problem")).to_have_count(0)


@pytest.mark.parametrize("names", ["", "; trusted-types vouch-search"])
def test_trusted_types_may_be_required(site: Site, names: str) -> None:
    element = f'<vouch-search service="{site.service}"></vouch-search>'
    page = site.open(element, f"require-trusted-types-for 'script'{names}")
    expect(page.get_by_test_id("key-form")).to_be_visible()
    page.evaluate(
        """() => {
            const clipboardData = new DataTransfer();
            clipboardData.setData("text/html", "<p>no picture</p>");
            const event = new ClipboardEvent("paste", { clipboardData, bubbles: true });
            document.querySelector("vouch-search").dispatchEvent(event);
        }"""
    )
    expect(page.get_by_test_id("problem")).to_be_visible()


def test_search_outside_of_a_page_says_so(site: Site) -> None:
    page = site.open("")
    failed = page.evaluate(
        """async () => {
            await customElements.whenDefined("vouch-search");
            return document.createElement("vouch-search").search(new Blob()).catch(String);
        }"""
    )
    assert "not in a web page" in failed
