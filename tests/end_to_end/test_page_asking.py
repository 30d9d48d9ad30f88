"""Before the search: cropped, turned and advised on, in a real Chromium."""

from __future__ import annotations

import io
import re
from email import message_from_bytes
from email.policy import HTTP
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from playwright.sync_api import Browser, FilePayload, Page, Route, expect

from tests.end_to_end.shown_page import PICTURE, Shown
from tests.support.image_files import encoded

pytestmark = pytest.mark.browser

WIDTH, HEIGHT = 60, 40

GRADIENT = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
GRADIENT[..., 0] = np.linspace(0, 255, WIDTH)
GRADIENT[..., 1] = np.linspace(0, 255, HEIGHT)[:, None]
"""Red grows to the right and green downwards, so that each part is told by its colours."""


def choose(page: Page) -> None:
    file = FilePayload(name="g.png", mimeType="image/png", buffer=encoded(GRADIENT, "PNG"))
    page.get_by_test_id("file-input").set_input_files([file])


def image_sent(shown: Shown) -> NDArray[np.uint8]:
    """The image that was searched with last."""
    body = [body for _, path, body in shown.asked if path.endswith("/search")][-1]
    boundary = body[: body.index(b"\r\n")].removeprefix(b"--")
    head = b'Content-Type: multipart/form-data; boundary="' + boundary + b'"\r\n\r\n'
    [part, *_] = message_from_bytes(head + body, policy=HTTP).iter_parts()
    payload = part.get_payload(decode=True)
    assert isinstance(payload, bytes)
    return np.asarray(Image.open(io.BytesIO(payload)).convert("RGB"))


def edited(shown: Shown) -> None:
    """Choose the picture, to be cropped first."""
    shown.open()
    shown.page.get_by_label("Crop & rotate before the search").check()
    choose(shown.page)
    expect(shown.found("crop")).to_be_visible()


def press(shown: Shown, name: str) -> None:
    shown.found("crop").get_by_role("button", name=name).click()


def searched(shown: Shown) -> NDArray[np.uint8]:
    with shown.page.expect_response("**/search"):
        press(shown, "Search with this")
    expect(shown.found("verdict")).to_be_visible()
    return image_sent(shown)


@pytest.mark.parametrize("backwards", [False, True])
def test_a_part_is_drawn_with_the_mouse(shown: Shown, *, backwards: bool) -> None:
    edited(shown)
    box = shown.found("crop-stage").bounding_box()
    assert box is not None
    at = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in CORNERS]
    at = at[::-1] if backwards else at
    shown.page.mouse.move(*at[0])
    shown.page.mouse.down()
    shown.page.mouse.move(*at[1], steps=3)
    shown.page.mouse.up()
    part = searched(shown)
    assert part.shape == pytest.approx((HEIGHT // 2, WIDTH // 2, 3), abs=1)
    np.testing.assert_allclose(part[0, 0], GRADIENT[HEIGHT // 4, WIDTH // 4], atol=8)
    # Nothing was lost: what was chosen is cropped again from the whole.
    shown.found("edit").click()
    expect(shown.found("crop-status")).to_contain_text("100 % × 100 % of the picture")
    np.testing.assert_array_equal(searched(shown), GRADIENT)


CORNERS = [(0.25, 0.25), (0.75, 0.75)]


def test_it_is_turned_and_cropped_by_keyboard(shown: Shown) -> None:
    edited(shown)
    press(shown, "Turn right")
    shown.page.get_by_label("Lower right corner").focus()
    for _ in range(10):
        shown.page.keyboard.press("ArrowLeft")
    expect(shown.found("crop-status")).to_contain_text("80 % × 100 % of the picture")
    part = searched(shown)
    turned = np.rot90(GRADIENT, -1)
    np.testing.assert_array_equal(part, turned[:, : round(0.8 * HEIGHT)])


def test_one_step_goes_back_and_the_file_itself_stays(shown: Shown) -> None:
    edited(shown)
    press(shown, "Turn left")
    shown.page.get_by_label("Part of the picture").focus()
    shown.page.keyboard.press("Shift+ArrowUp")
    expect(shown.found("crop-status")).to_contain_text("100 % × 98 %")
    press(shown, "Undo")
    expect(shown.found("crop-status")).to_contain_text("100 % × 100 %")
    press(shown, "Undo")
    np.testing.assert_array_equal(searched(shown), GRADIENT)


def test_a_part_that_is_turned_stays_the_same_part(shown: Shown) -> None:
    edited(shown)
    shown.page.get_by_label("Lower right corner").focus()
    for _ in range(20):
        shown.page.keyboard.press("ArrowUp")
    press(shown, "Turn left")
    part = searched(shown)
    np.testing.assert_array_equal(part, np.rot90(GRADIENT[: round(0.6 * HEIGHT)]))


def test_a_finger_moves_a_corner(browser: Browser) -> None:
    phone: dict[str, Any] = {"viewport": {"width": 360, "height": 740}, "has_touch": True}
    shown = Shown(browser, **phone)
    edited(shown)
    dialog = shown.found("crop")
    assert dialog.evaluate("node => node.scrollWidth - node.clientWidth") <= 0
    dialog.locator(".corner.nw").evaluate(
        """corner => {
            const stage = corner.closest(".stage");
            stage.setPointerCapture = () => {};
            const box = stage.getBoundingClientRect();
            const at = (type, x, y) => corner.dispatchEvent(new PointerEvent(type, {
                pointerId: 1, pointerType: "touch", bubbles: true,
                clientX: box.x + x * box.width, clientY: box.y + y * box.height }));
            at("pointerdown", 0, 0); at("pointermove", 0.5, 0.25); at("pointerup", 0.5, 0.25);
        }"""
    )
    expect(shown.found("crop-status")).to_contain_text("50 % × 75 % of the picture")
    np.testing.assert_array_equal(searched(shown), GRADIENT[HEIGHT // 4 :, WIDTH // 2 :])
    shown.page.close()


def test_a_crop_that_is_cancelled_searches_nothing(shown: Shown) -> None:
    edited(shown)
    press(shown, "Cancel")
    expect(shown.found("crop")).to_have_count(0)
    assert not [path for _, path, _ in shown.asked if path.endswith("/search")]


@pytest.mark.parametrize(("status", "asked"), [(415, ["assess"]), (503, ["assess", "search"])])
def test_refused_file_is_sent_once(shown: Shown, status: int, asked: list[str]) -> None:
    shown.open()
    problem = {"title": "No", "detail": "No.", "code": "no", "request_id": "r-1"}
    sent: list[str] = []

    def refuse(route: Route) -> None:
        sent.append(route.request.url.rsplit("/", 1)[1])
        route.fulfill(status=status, json=problem)

    shown.page.route(re.compile("/(assess|search)$"), refuse)
    shown.choose("a.png")
    expect(shown.found("problem")).to_contain_text(f"HTTP {status}")
    assert sent == asked


def assessed(*codes: str) -> dict[str, Any]:
    """What is said of a photograph that is not of the gallery's kind, with hints of these codes."""
    hints = [{"code": code, "advice": f"It is {code}."} for code in codes]
    return {"quality": {"hints": hints}, "query": {"ood": {"flag": True}}}


@pytest.mark.parametrize("code", ["too_dark", "blurred", "too_small", "flat", "degraded"])
def test_advice_on_quality_comes_before_the_search(shown: Shown, code: str) -> None:
    shown.replies["/v1/galleries/shoes/assess"] = assessed(code, "extreme_aspect")
    shown.open()
    choose(shown.page)
    advice = shown.found("advice")
    expect(advice.get_by_role("listitem")).to_have_text([f"It is {code}."])
    assert not [path for _, path, _ in shown.asked if path.endswith("/search")]
    advice.get_by_role("button", name="Search anyway").click()
    expect(shown.found("verdict")).to_be_visible()
    expect(advice).to_have_count(0)


def test_of_several_files_the_image_is_searched_with(shown: Shown) -> None:
    """Where none is called an image, the service says what it makes of the first."""
    shown.open()
    notes = FilePayload(name="notes.txt", mimeType="text/plain", buffer=b"notes")
    shoe = FilePayload(name="shoe.png", mimeType="image/png", buffer=PICTURE)
    for files, name in (([notes, shoe], b"shoe.png"), ([notes], b"notes.txt")):
        with shown.page.expect_response("**/search"):
            shown.found("file-input").set_input_files(files)
        sent = [body for _, path, body in shown.asked if path.endswith("/search")][-1]
        assert b'filename="%s"' % name in sent


def test_a_sharp_photograph_is_searched_with_at_once_whatever_it_shows(shown: Shown) -> None:
    shown.replies["/v1/galleries/shoes/assess"] = assessed("extreme_aspect")
    shown.open()
    choose(shown.page)
    expect(shown.found("verdict")).to_be_visible()
    asked = [path.rsplit("/", 1)[-1] for method, path, _ in shown.asked if method == "POST"]
    assert asked == ["assess", "search"]
    expect(shown.found("advice")).to_have_count(0)


def test_what_a_browser_cannot_show_is_left_to_the_service(shown: Shown) -> None:
    shown.open()
    shown.page.get_by_label("Crop & rotate before the search").check()
    file = FilePayload(name="g.png", mimeType="image/png", buffer=b"no image")
    shown.page.get_by_test_id("file-input").set_input_files([file])
    expect(shown.found("verdict")).to_be_visible()  # whatever it answers


@pytest.mark.parametrize(("link", "picked"), [("", "shoes"), ("#boots%20%26%20co", "boots & co")])
def test_a_link_names_the_gallery_that_is_opened(shown: Shown, link: str, picked: str) -> None:
    names = "shoes", "boots & co"
    shown.replies["/v1/galleries"] = {"galleries": [{"name": one, "n_items": 3} for one in names]}
    for path, reply in (("", shown.gallery), ("/calibration", shown.report)):
        shown.replies[f"/v1/galleries/boots & co{path}"] = reply
    shown.page.goto(f"http://vouch.test/{link}")
    expect(shown.found("gallery-picker")).to_have_value(picked)
    expect(shown.page.locator("#gallery-about p").first).to_be_visible()
    assert not shown.complaints
