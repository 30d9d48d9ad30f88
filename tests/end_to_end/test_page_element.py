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
