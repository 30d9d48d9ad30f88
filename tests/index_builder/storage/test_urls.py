"""URLs: what is shown of them, and what they have in common however they are signed."""

from __future__ import annotations

import pytest

from index_builder.storage.urls import (
    file_name,
    folder_of,
    in_bucket,
    is_url,
    joined,
    scheme_of,
    shown,
    unsigned,
    without_secrets,
)
from model_store.errors import DatasetError


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("https://user:pass@host:8/a/b.png?sig=1&x=2#f", "https://host:8/a/b.png"),
        ("HTTPS://host/a%20b.png", "https://host/a%20b.png"),
        ("https://us:p@ss@host/x", "https://host/x"),
        ("s3://bucket/what?is#this", "s3://bucket/what?is#this"),
        ("https://[::1/x?secret", "https://…"),
        ("0/a.png", "0/a.png"),
    ],
)
def test_neither_password_nor_signature_is_shown(url: str, wanted: str) -> None:
    assert shown(url) == wanted
    assert without_secrets(f"cannot read <{url}>: no") == f"cannot read <{wanted}>: no"


@pytest.mark.parametrize(
    "query",
    [
        "X-Amz-Signature=1&X-Amz-Expires=60&X-Amz-Credential=k%2Fs3&X-Amz-Security-Token=t",
        "AWSAccessKeyId=k&Signature=s%3D&Expires=1",
        "X-Goog-Algorithm=a&X-Goog-Signature=s",
        "sv=2024-11-04&se=2026-01-01&sr=b&sp=r&sig=a%2Fb&spr=https&st=2025&skoid=1&skt=2",
        "Policy=p&Signature=s&Key-Pair-Id=k",
    ],
)
def test_a_url_that_is_signed_again_is_the_same(query: str) -> None:
    assert unsigned(f"https://u:p@host/a.png?{query}") == "https://host/a.png"
    assert unsigned(f"https://host/a.png?id=7&{query}") == "https://host/a.png?id=7"


def test_other_queries_tell_files_apart() -> None:
    assert unsigned("https://host/get?id=1") != unsigned("https://host/get?id=2")


def test_paths_are_no_urls() -> None:
    assert [is_url(one) for one in ("a/b", "/a", "C:\\a", "a:b", "s3://b", "https://h")] == (
        [False] * 4 + [True] * 2
    )


@pytest.mark.parametrize("url", ["ftp://host/x", "file:///etc/passwd", "gopher://x"])
def test_other_schemes_are_refused(url: str) -> None:
    with pytest.raises(DatasetError, match="cannot be read; wanted a path, or one of s3://"):
        scheme_of(url)


def test_keys_of_buckets_have_no_escapes() -> None:
    assert in_bucket("S3://b/a b/c?d#e%41.png") == ("s3://b", "a b/c?d#e%41.png")
    assert joined("s3://b/folder", "x?y.png") == "s3://b/folder/x?y.png"
    assert joined("https://h/folder?sig=1", "ü/x?y%.png") == (
        "https://h/folder/%C3%BC/x%3Fy%25.png?sig=1"
    )


def test_folders_and_names() -> None:
    assert folder_of("s3://b/a/list.csv") == "s3://b/a"
    assert folder_of("https://u:p@h/a/list.csv?q=1") == "https://u:p@h/a?q=1"
    names = ["s3://b/a/x y.tar", "https://h/a%2Fb.json?x=1", "https://h", "gs://bucket/"]
    names += ["https://h/a/%2e%2e", "https://h/..", "https://h/a%2F..%2Fb"]
    expected = ["x y.tar", "b.json", "h", "bucket", "h", "h", "b"]
    assert [file_name(one) for one in names] == expected
    assert len(file_name("https://h/" + "ü" * 300 + ".csv").encode()) <= 100
