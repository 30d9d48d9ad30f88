"""The service under a path prefix, which its proxy removes, or leaves in the path."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError
from starlette.testclient import TestClient

from service.settings import Settings
from tests.support.local_client import LocalClient

StartClient = Callable[..., TestClient]

FORWARDED = {"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Prefix": "/vouch"}


@pytest.fixture(params=["header", "setting", "setting, prefix in the path"])
def prefixed(start: StartClient, request: pytest.FixtureRequest) -> TestClient:
    """The service under /vouch; the base URL is what the proxy sends it."""
    if request.param == "header":
        client = start(trusted_proxies=("127.0.0.1",))
        client.headers |= FORWARDED
    else:
        client = start(root_path="/vouch")
    if "path" in request.param:
        client.base_url = client.base_url.join("/vouch/")
    client.follow_redirects = False
    return client


def test_every_address_of_the_page_has_the_prefix(prefixed: TestClient) -> None:
    page = prefixed.get("/")
    addresses = re.findall(r'(?:src|href)="(/[^"]*)"', page.text)
    assert addresses
    assert all(address.startswith("/vouch/") for address in addresses)
    known = prefixed.get("/", headers={"If-None-Match": page.headers["ETag"]})
    assert (known.status_code, known.content) == (304, b"")
    script = next(one for one in addresses if one.endswith("page.js"))
    assert prefixed.get(script.removeprefix("/vouch")).status_code == 200


def test_docs_and_openapi_name_the_prefix(prefixed: TestClient) -> None:
    docs = prefixed.get("/docs").text
    assert "/vouch/openapi.json" in docs
    assert not re.search(r"""["']/(openapi|static-offline)""", docs)
    asset = re.search(r'src="/vouch(/static-offline-docs/[^"]*)"', docs)
    assert asset is not None
    assert prefixed.get(asset[1]).status_code == 200
    assert prefixed.get("/openapi.json").json()["servers"] == [{"url": "/vouch"}]


def test_location_of_a_new_gallery_has_the_prefix(start: StartClient, tmp_path: Path) -> None:
    client = start(root_path="/vouch", galleries=tmp_path / "galleries")
    made = client.post("/v1/galleries", json={"name": "shoes", "like": "digits"})
    assert made.headers["Location"] == "/vouch/v1/galleries/shoes"


def test_redirects_and_problems_have_the_prefix(prefixed: TestClient) -> None:
    assert prefixed.get("/docs/").headers["Location"] == "/vouch/docs"
    for path in ("/nothing", "/page/nothing.js"):
        problem = prefixed.get(path).json()
        assert problem["instance"] == f"/vouch{path}"
        assert f"/vouch{path}" in problem["detail"]


def test_picture_addresses_have_the_prefix_and_lead_to_the_picture(prefixed: TestClient) -> None:
    item = prefixed.get("/v1/galleries/digits/items", params={"limit": 1}).json()["items"][0]
    assert item["thumbnail_url"].startswith("/vouch/v1/galleries/digits/items/")
    picture = prefixed.get(item["thumbnail_url"].removeprefix("/vouch"))
    assert picture.headers["Content-Type"].startswith("image/")


def test_prefix_of_a_stranger_is_ignored(start: StartClient) -> None:
    client = start(trusted_proxies=("10.0.0.7",), anonymous=True)
    assert 'href="/docs"' in client.get("/", headers=FORWARDED).text
    trusted = LocalClient(client.app, client=("10.0.0.7", 1))
    assert 'href="/vouch/docs"' in trusted.get("/", headers=FORWARDED).text


@pytest.mark.parametrize(
    ("sent", "prefix"),
    [
        ("/a/", "/a"),
        ("/a, /b", "/a/b"),
        ("/", ""),
        ("//evil.example", ""),
        ('/"><script>', ""),
        ("/v1", ""),
    ],
)
def test_forwarded_prefix_is_read_as_a_path(start: StartClient, sent: str, prefix: str) -> None:
    client = start(trusted_proxies=("127.0.0.1",))
    page = client.get("/", headers={**FORWARDED, "X-Forwarded-Prefix": sent})
    assert f'href="{prefix}/docs"' in page.text


@pytest.mark.parametrize("text", ["vouch", "/v1", "/page/x", "/a//b", "/..", "/a b", "https://x/y"])
def test_root_path_that_is_no_prefix_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        Settings(root_path=text)


def test_ipv4_client_on_a_socket_for_both_is_an_ipv4_client(start: StartClient) -> None:
    client = start(trusted_proxies=("10.0.0.0/8",), anonymous=True)
    mapped = LocalClient(client.app, client=("::ffff:10.0.0.7", 1))
    assert 'href="/vouch/docs"' in mapped.get("/", headers=FORWARDED).text
