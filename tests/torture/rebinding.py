"""A web page whose host's name comes to mean this machine, in a real Chromium."""

from __future__ import annotations

import time
from collections.abc import Mapping

from playwright.sync_api import Route, sync_playwright

from tests.end_to_end.browsers import launched
from tests.end_to_end.processes import Service
from tests.torture.outcome import Outcome, Place

NAMES = ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "evil.localhost.test")
OPTIONS = (
    "--host-resolver-rules=" + ", ".join(f"MAP {name} 127.0.0.1" for name in NAMES),
    # Newer browsers ask their user first: it is not they who should have to refuse.
    "--disable-features=LocalNetworkAccessChecks",
)

GALLERY = "/v1/galleries/digits"
REQUESTS = (
    ("GET", f"{GALLERY}/items"),
    ("GET", f"{GALLERY}/labels"),
    ("GET", "/v1/galleries"),
    ("GET", "/openapi.json"),
    ("PUT", f"{GALLERY}/items/planted"),
    ("DELETE", f"{GALLERY}/items/digit-1"),
    ("POST", f"{GALLERY}/compact"),
    ("POST", f"{GALLERY}/bundles/rollback"),
)

SCRIPT = """
async requests => {
  const found = [];
  for (const [method, path] of requests) {
    try {
      found.push((await fetch(path, { method })).status);
    } catch (error) {
      found.push(String(error));
    }
  }
  return found;
}
"""


def asked_by_a_page(
    place: Place, seconds: float, settings: Mapping[str, str]
) -> list[tuple[str, str, object]]:
    """Name, request and status of everything that the page has asked, if it was let ask at all."""
    found: list[tuple[str, str, object]] = []
    with (
        Service(place.bundle, place.folder / "service.log", settings) as service,
        sync_playwright() as playwright,
        launched(playwright, *OPTIONS) as browser,
    ):
        until = time.monotonic() + seconds
        while not found or time.monotonic() < until:
            for name in NAMES:
                page = browser.new_page()
                page.route("**/page-of-another", _page)  # as its own server gave it, before
                page.goto(f"http://{name}:{service.port}/page-of-another")
                statuses = page.evaluate(SCRIPT, [list(request) for request in REQUESTS])
                asked = [" ".join(request) for request in REQUESTS]
                found += [(name, *both) for both in zip(asked, statuses, strict=True)]
                page.close()
    return found


def _page(route: Route) -> None:
    route.fulfill(content_type="text/html", body="<title>A page of somebody else</title>")


def attack(place: Place, seconds: float, seed: int) -> Outcome:
    """Have a page ask a service that wants no key."""
    outcome = Outcome()
    for name, asked, status in asked_by_a_page(place, seconds, {}):
        outcome.n += 1
        if status != 421:
            outcome.violations.append(f"{name}: {asked} was answered with {status}")
    return outcome
