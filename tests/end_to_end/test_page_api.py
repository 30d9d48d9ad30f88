"""The page's way to the API: what is sent, and what becomes of every kind of answer."""

from __future__ import annotations

import pytest
from playwright.sync_api import Route

from tests.end_to_end.shown_page import Shown

pytestmark = pytest.mark.browser


@pytest.fixture
def page(shown: Shown) -> Shown:
    """The page, open."""
    shown.open()
    return shown


def answers(page: Shown, status: int, body: str, **headers: str) -> None:
    """Let the service answer what is asked at ``/v1/thing``."""

    def reply(route: Route) -> None:
        kind = {"content-type": "application/json"}
        route.fulfill(status=status, body=body, headers={**kind, **headers})

    page.page.route("**/v1/thing", reply)


ASKED = """m.askJson("/v1/thing").then((found) => ({ found }),
    ({ name, message, problem, retryAfter }) => ({ name, message, problem, retryAfter }))"""


def test_what_the_api_refuses_is_a_problem(page: Shown) -> None:
    answers(page, 200, '{"a": 1}')
    assert page.run("api", ASKED) == {"found": {"a": 1}}
    answers(page, 429, '{"title": "Slow down"}', **{"retry-after": "7"})
    found = page.run("api", ASKED)
    assert (found["problem"], found["retryAfter"]) == ({"status": 429, "title": "Slow down"}, "7")
    for status, body, title in ((502, "<html>", "The service answered 502"),
                                (500, "{}", "The service answered 500"),
                                (200, "<html>", "The answer could not be read")):  # fmt: skip
        answers(page, status, body)
        problem = page.run("api", ASKED)["problem"]
        assert (problem["status"], problem["title"]) == (status, title)
        assert problem["detail"].startswith("Unexpected response from the service.")
    page.page.route("**/v1/thing", lambda route: route.abort())
    problem = page.run("api", ASKED)["problem"]
    assert (problem["status"], problem["title"]) == (0, "The service cannot be reached")
    assert problem["detail"] == "The service did not respond."
    changing = ASKED.replace('"/v1/thing"', '"/v1/thing", { method: "PUT" }')
    assert "may not be stored" in page.run("api", changing)["problem"]["detail"]
    aborted = ASKED.replace('"/v1/thing"', '"/v1/thing", { signal: AbortSignal.abort() }')
    assert page.run("api", aborted)["name"] == "AbortError"


def test_image_form_holds_a_copy_in_memory_unless_the_file_is_refused_for_its_size(
    page: Shown,
) -> None:
    made = """(async () => {
        const file = new File([new Uint8Array(all[0])], "a", { type: "image/png" });
        let n = 0;
        file.arrayBuffer = () => { n += 1; return Blob.prototype.arrayBuffer.call(file); };
        const form = await m.imageForm(file, "a.png", { limit: 5 });
        const { name, type, size } = form.get("image");
        return [n, name, type, size, form.get("limit")];
    })()"""
    most = 64 * 2**20
    for size, n_reads in ((10, 1), (most, 1), (most + 1, 0)):
        assert page.run("api", made, size) == [n_reads, "a.png", "image/png", size, "5"]


def test_who_may_write_is_what_the_service_says(page: Shown) -> None:
    for scope, may in (("read", False), ("write", True), ("admin", True)):
        page.replies["/v1/usage"] = {"scope": scope}
        assert page.run("api", "m.mayWrite()") is may
    page.page.route("**/v1/usage", lambda route: route.fulfill(status=404))
    assert page.run("api", "m.mayWrite()") is True


@pytest.mark.parametrize("status", [429, 503, 0])
def test_without_an_answer_only_a_decision_is_tried(page: Shown, status: int) -> None:
    def refuse(route: Route) -> None:
        if status:
            route.fulfill(status=status, json={"title": "Busy"})
        else:
            route.abort()

    page.page.route("**/v1/usage", refuse)
    none = {"decide": True, "review": False, "write": False, "admin": False, "key": True}
    assert page.run("api", "m.permissions()") == none


def test_with_a_key_pictures_are_fetched_with_it(page: Shown) -> None:
    asked: list[str | None] = []

    def reply(route: Route) -> None:
        asked.append(route.request.headers.get("authorization"))
        if len(asked) == 2:
            route.fulfill(status=404)
        else:
            route.fulfill(body=page.picture, content_type="image/png")

    page.page.route("**/v1/picture", reply)
    loaded = """(() => new Promise((tell) => {
        const image = new Image();
        image.loading = "lazy";
        image.onload = () => tell([image.src.split(":")[0], image.loading]);
        image.onerror = () => tell("failed");
        m.load(image, all[0]);
    }))()"""
    page.run("api", "m.key.set('secret')")
    assert page.run("api", "m.key.get()") == "secret"
    assert page.run("api", loaded, "/v1/picture") == ["blob", "eager"]
    assert page.run("api", loaded, "/v1/picture") == "failed"
    assert asked == ["Bearer secret"] * 2
    page.run("api", "m.key.forget()")
    assert page.run("api", "m.key.get()") is None


def test_a_document_asks_one_service(page: Shown) -> None:
    assert page.run("api", "m.address('/v1')") == "http://vouch.test/v1"
    page.run("api", "m.connect('/')")  # as the page has done
    other = "m.connect('http://other.test')"
    refused = f"(() => {{ try {{ {other}; }} catch (error) {{ return error.problem.detail; }} }})()"
    assert page.run("api", refused) == (
        "It searches http://vouch.test/, and cannot search http://other.test/ too."
    )
    assert page.run("api", "m.address('/v1')") == "http://vouch.test/v1"
