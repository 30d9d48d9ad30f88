"""What the page is made of; how it behaves in a browser is tested end to end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import service

PAGE = Path(service.__file__).parent / "http" / "page"
FILES = sorted(path for path in PAGE.rglob("*") if path.is_file() and path.suffix != ".md")

MEDIA_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}

PLAIN = {"Accept-Encoding": "identity"}

NAMESPACES = ("http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink")
"""Names that look like addresses; nothing is fetched from them."""


def address_of(path: Path) -> str:
    return f"/page/{path.relative_to(PAGE).as_posix()}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_each_file_is_served_as_what_it_is(client: TestClient, path: Path) -> None:
    response = client.get(address_of(path))
    assert response.status_code == 200
    assert response.headers["content-type"].split(";")[0] == MEDIA_TYPES[path.suffix]
    if path.suffix != ".js":
        assert response.content == path.read_bytes()
        return
    source = path.read_text(encoding="utf-8").splitlines()
    for written, served in zip(source, response.text.splitlines(), strict=True):
        assert served in {written.strip(" "), ""}
        if not served:
            assert re.match(r"//|/\*\*| ?\*|[^;{}()]*\*/$|$", written.strip(" ")), written


def test_no_text_of_a_script_goes_over_a_line() -> None:
    """Or what begins one would be taken for indentation, or a comment."""
    for path in FILES:
        if path.suffix == ".js":
            for line in path.read_text(encoding="utf-8").splitlines():
                if not re.match(r" *(//|\*|/\*)", line):
                    code = line.replace("\\`", "").replace('"`"', "").split(" // ")[0]
                    assert code.count("`") % 2 == 0, (path.name, line)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_file_names_another_host(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for namespace in NAMESPACES:
        text = text.replace(namespace, "")
    assert re.findall(r"""(?:\b(?:https?|wss?):|["'(\s=]//)[^\s"')]*""", code_of(text)) == []


def code_of(text: str) -> str:
    """``text`` without whole-line comments of JavaScript."""
    return re.sub(r"(?m)^\s*//.*$|\s// .*$", "", text)


def test_a_browser_asks_anew_and_is_answered_briefly(client: TestClient) -> None:
    """So that after an upgrade no old module meets a new one."""
    assert client.get("/").headers["cache-control"] == "no-cache"
    first = client.get("/page/page.js")
    assert first.headers["cache-control"] == "no-cache"
    again = client.get("/page/page.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_the_page_is_at_the_root(client: TestClient) -> None:
    response = client.get("/")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert "<title>Vouch</title>" in response.text


def test_everything_the_page_names_is_there(client: TestClient) -> None:
    linked = re.findall(r'(?:href|src)="(/[^"]*)"', client.get("/").text)
    for file in FILES:
        if file.suffix == ".js":
            text = file.read_text(encoding="utf-8")
            names = re.findall(r'(?:from |import\()"(\.[^"]+)"', text)
            linked += [address_of((file.parent / name).resolve()) for name in names]
    late = re.findall(r'"(\w+/\w+)"', (PAGE / "page.js").read_text(encoding="utf-8"))
    linked += [f"/page/{name}.css" for name in late]
    assert {address_of(file) for file in FILES if file.suffix == ".css"} <= set(linked)
    assert {"/page/page.js", "/page/page.css", "/docs"} <= set(linked)
    for address in linked:
        assert client.get(address).status_code == 200, address


def test_the_page_keeps_its_own_content_security_policy(client: TestClient) -> None:
    """Which forbids inline scripts, styles and handlers, so the browser would drop them."""
    html = client.get("/").text
    assert re.findall(r"<script(?![^>]*\ssrc=)", html) == []
    assert re.findall(r"<style|\sstyle=", html) == []
    assert re.findall(r"\son\w+=", html) == []


def test_the_documentation_needs_no_other_host(client: TestClient) -> None:
    html = client.get("/docs").text
    assert "SwaggerUIBundle(" in html
    linked = re.findall(r"""(?:href|src)=["']([^"']*)["']""", html)
    assert len(linked) >= 2
    for address in linked:
        assert re.match(r"/[^/]", address), address
        response = client.get(address)
        assert response.status_code == 200, address
        assert response.content, address
    assert not re.search(r"https?://", html)


def test_document_comes_compressed(client: TestClient) -> None:
    response = client.get("/", headers={"Accept-Encoding": "gzip"})
    plain = client.get("/", headers=PLAIN)
    assert response.headers["content-encoding"] == "gzip"
    assert response.content == plain.content
    assert "content-encoding" not in plain.headers
    assert {one.headers["vary"] for one in (response, plain)} == {"Accept-Encoding"}


def test_scripts_come_compressed(client: TestClient) -> None:
    response = client.get("/page/search.js", headers={"Accept-Encoding": "gzip"})
    assert response.headers["content-encoding"] == "gzip"
    assert response.content == client.get("/page/search.js", headers=PLAIN).content
    assert "content-encoding" not in client.get("/page/favicon.svg", headers=PLAIN).headers


def test_documents_alone_have_the_headers_of_documents(client: TestClient) -> None:
    """A browser ignores them on scripts and styles, of which the first view has two dozen."""
    for name in ("content-security-policy", "permissions-policy", "cross-origin-opener-policy"):
        for path in ("/page/page.js", "/page/page.css"):
            assert name not in client.get(path).headers, path
        for path in ("/", "/page/favicon.svg", "/page/none.js", "/v1/galleries"):
            assert name in client.get(path).headers, path


def test_nothing_beside_the_page_is_served(client: TestClient) -> None:
    for path in ("/page/../app.py", "/page/%2e%2e/app.py", "/page/..%2fapp.py", "/page/"):
        assert client.get(path).status_code == 404, path
