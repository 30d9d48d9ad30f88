"""A search's form is taken as FastAPI takes forms: what is empty, sent twice, or no form at all."""

from __future__ import annotations

import httpx2
import pytest
from starlette.testclient import TestClient

PATH = "/v1/galleries/digits/search"


def ask(client: TestClient, image: bytes, **fields: str | list[str]) -> httpx2.Response:
    return client.post(PATH, files={"image": ("a.png", image)}, data=fields)


def test_what_is_left_empty_was_not_sent(client: TestClient, digit: bytes) -> None:
    response = ask(client, digit, limit="", alpha="", filter="")
    assert response.status_code == 200, response.text
    assert len(response.json()["results"]) == 10


def test_of_what_is_sent_twice_the_last_counts(client: TestClient, digit: bytes) -> None:
    assert len(ask(client, digit, limit=["2", "3"]).json()["results"]) == 3


def test_what_no_option_is_called_is_passed_over(client: TestClient, digit: bytes) -> None:
    assert ask(client, digit, colour="red").status_code == 200


def test_no_file_chosen_is_no_file_sent(client: TestClient) -> None:
    body = (
        b'--x\r\nContent-Disposition: form-data; name="image"; filename=""\r\n'
        b"Content-Type: application/octet-stream\r\n\r\n\r\n--x--\r\n"
    )
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    response = client.post(PATH, content=body, headers=headers)
    assert response.status_code == 422
    assert [error["pointer"] for error in response.json()["errors"]] == ["/body/image"]


@pytest.mark.parametrize(
    ("fields", "pointer"), [({"limit": "many"}, "/body/limit"), ({"alpha": "2"}, "/body/alpha")]
)
def test_what_is_wrong_is_named(
    client: TestClient, digit: bytes, fields: dict[str, str], pointer: str
) -> None:
    response = ask(client, digit, **fields)
    assert response.status_code == 422
    assert [error["pointer"] for error in response.json()["errors"]] == [pointer]


def test_text_in_place_of_a_file_is_refused(client: TestClient) -> None:
    response = client.post(PATH, files={"image": (None, "a picture")})
    assert response.status_code == 422


def test_what_ends_before_its_end_is_no_form(client: TestClient) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    response = client.post(PATH, content=b"--y\r\nwhatever", headers=headers)
    assert response.status_code == 422
    assert response.headers["Content-Type"] == "application/problem+json"
