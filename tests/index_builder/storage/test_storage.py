"""Files from the web: honest servers are read, others cost little time and no more bytes."""

from __future__ import annotations

import asyncio
import base64
import errno
import io
import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from index_builder.storage import NotFetched, Patience, Storage, Trust
from index_builder.storage.web import Guard
from model_store.errors import ConfigError, DatasetError, SourceUnavailable
from tests.support.web_server import (
    Answer,
    Handler,
    WebServer,
    at_second_try,
    dribbling_body,
    dribbling_head,
    endless,
    hangs_up,
    promises_less,
    promises_more,
    silent,
    status,
    web_server,
)

PATIENCE = Patience(file_s=20.0, stall_s=10.0, n_tries=2, backoff_s=0.05)
SHORT = Patience(file_s=1.2, stall_s=0.4, n_tries=2, backoff_s=0.05)
MOST = 100_000


@pytest.fixture
def web(tmp_path: Path) -> Iterator[WebServer]:
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "a b.png").write_bytes(b"an image")
    with web_server(tmp_path / "served") as server:
        yield server


@pytest.fixture
def storage() -> Iterator[Storage]:
    with closing(Storage(PATIENCE)) as opened:
        yield opened


@pytest.fixture
def hasty() -> Iterator[Storage]:
    with closing(Storage(SHORT)) as opened:
        yield opened


def test_a_file_is_read(web: WebServer, storage: Storage) -> None:
    assert storage.read(f"{web.url}/a%20b.png", MOST) == b"an image"
    assert storage.read(f"{web.url}/a b.png", 2) == b"an"
    storage.close()
    assert storage.read(f"{web.url}/a%20b.png", MOST) == b"an image"


@pytest.mark.parametrize(
    ("answer", "said", "n_asked"),
    [
        (status(404), r"has no such file \(404\)", 1),
        (status(403), r"does not allow it \(403\)", 1),
        (status(302, Location="ftp://elsewhere/x"), "has no valid redirect", 1),
        (status(302, Location="/x"), "has no valid redirect", 6),
        (status(500), "answers 500", 2),
        (status(204), r"does not return the file \(204\)", 1),
        (
            status(206, Content_Range="bytes 5-9/10"),
            "another part of the file than the requested",
            1,
        ),
        (status(200, Content_Encoding="gzip"), "'gzip', which was not requested", 1),
        (hangs_up, "the connection failed", 2),
        (promises_more(b"12345"), "the connection failed", 2),
    ],
)
def test_what_is_no_file_is_said(
    web: WebServer, storage: Storage, answer: Answer, said: str, n_asked: int
) -> None:
    web.answers["/x"] = answer
    with pytest.raises(NotFetched, match=said):
        storage.read(f"{web.url}/x", MOST)
    assert web.asked["/x"] == n_asked


@pytest.mark.slow
@pytest.mark.parametrize("answer", [silent, dribbling_head, dribbling_body])
def test_slow_servers_are_given_up(web: WebServer, hasty: Storage, answer: Answer) -> None:
    web.answers["/x"] = answer
    started = time.monotonic()
    with pytest.raises(NotFetched, match=r"took more than 1\.2 s|sent nothing for 0\.4 s|answer"):
        hasty.read(f"{web.url}/x", MOST)
    assert time.monotonic() - started < 10


def test_endless_bytes_are_not_listened_to(web: WebServer, storage: Storage) -> None:
    web.answers["/x"] = endless
    assert storage.read(f"{web.url}/x", MOST) == bytes(MOST)


def test_no_more_is_read_than_was_promised(web: WebServer, storage: Storage) -> None:
    web.answers["/x"] = promises_less(bytes(500))
    assert storage.read(f"{web.url}/x", MOST) == bytes(400)


def test_another_try_may_succeed(web: WebServer, storage: Storage) -> None:
    def good(request: Handler) -> None:
        request.send(b"good")

    for number, bad in enumerate([status(503), hangs_up, promises_more(b"bad"), status(429)]):
        web.answers[f"/{number}"] = at_second_try(bad, good)
        assert storage.read(f"{web.url}/{number}", MOST) == b"good"


def test_a_server_that_asks_for_time_gets_it(web: WebServer, storage: Storage) -> None:
    def good(request: Handler) -> None:
        request.send(b"good")

    web.answers["/x"] = at_second_try(status(429, Retry_After="1"), good)
    started = time.monotonic()
    assert storage.read(f"{web.url}/x", MOST) == b"good"
    assert time.monotonic() - started >= 1


def test_a_server_that_is_not_there(storage: Storage) -> None:
    for url in ("http://127.0.0.1:9/x.png", "http://name.invalid/x.png"):
        with pytest.raises(NotFetched, match="the connection failed"):
            storage.read(url, MOST)
    with pytest.raises(NotFetched, match="is no web address"):
        storage.read("http://[::1/x", MOST)


def test_at_most_so_many_are_fetched_at_once(web: WebServer, tmp_path: Path) -> None:
    at_work: list[int] = []
    most = 0

    def counted(request: Handler) -> None:
        nonlocal most
        at_work.append(1)
        most = max(most, len(at_work))
        time.sleep(0.05)
        at_work.pop()
        request.send(b"1")

    web.answers["/x"] = counted
    with closing(Storage()) as storage:
        files = [io.BytesIO() for _ in range(50)]
        for future in [storage.fetch(f"{web.url}/x", file, MOST) for file in files]:
            future.result()
    assert 4 < most <= 16


def by_another_name(url: str) -> str:
    """The same server, as another host."""
    return url.replace("127.0.0.1", "localhost")


PASSWORD = base64.b64encode(b"ann:from-netrc").decode()


@pytest.fixture
def netrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A password for this machine, under both of its names."""
    lines = [
        f"machine {host} login ann password from-netrc\n" for host in ("127.0.0.1", "localhost")
    ]
    (tmp_path / "netrc").write_text("".join(lines))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


@pytest.mark.usefixtures("netrc")
def test_credentials_go_to_origins_that_the_operator_named(
    web: WebServer, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.read(f"{web.url}/a%20b.png", MOST)
    assert "Authorization" not in web.heads[-1]  # only data has named it
    storage.name(f"{web.url}/list.csv", is_source=False)
    storage.read(f"{web.url}/a%20b.png", MOST)
    assert PASSWORD in web.heads[-1]
    storage.read(f"{by_another_name(web.url)}/a%20b.png", MOST)
    assert "Authorization" not in web.heads[-1]
    monkeypatch.setenv("VOUCH_ALLOWED_ORIGINS", f"{by_another_name(web.url)},s3://bucket")
    with closing(Storage(PATIENCE)) as allowing:
        allowing.read(f"{by_another_name(web.url)}/a%20b.png", MOST)
        assert PASSWORD in web.heads[-1]
        allowing.name(f"{web.url}/list.csv", is_source=False)
        web.answers["/x"] = status(302, Location=f"{by_another_name(web.url)}/a%20b.png")
        allowing.read(f"{web.url}/x", MOST)
        assert [PASSWORD in head for head in web.heads[-2:]] == [True, False]


def test_a_redirect_leads_to_public_addresses_alone(
    web: WebServer, storage: Storage, tmp_path: Path
) -> None:
    """Also one of a host that a table on this machine names."""
    with web_server(tmp_path / "served") as intern:
        inside = f"{by_another_name(intern.url)}/a%20b.png"
        web.answers["/out"] = status(302, Location=inside)
        web.answers["/in"] = status(302, Location="/a%20b.png")
        for _ in range(2):
            with pytest.raises(NotFetched, match="is not a public address"):
                storage.read(f"{web.url}/out", MOST)
            assert storage.read(f"{web.url}/in", MOST) == b"an image"
        assert intern.heads == []
        assert storage.read(inside, MOST) == b"an image"
        with pytest.raises(NotFetched, match="is not a public address"):
            storage.read(f"{web.url}/out", MOST)  # though a connection is open
        assert len(intern.heads) == 1


def test_a_password_in_a_url_is_sent_and_not_shown(web: WebServer, storage: Storage) -> None:
    web.answers["/y"] = status(404)
    with pytest.raises(NotFetched) as caught:
        storage.read(web.url.replace("//", "//bob:hidden@") + "/y?sig=hidden", MOST)
    assert base64.b64encode(b"bob:hidden").decode() in web.heads[-1]
    assert "hidden" not in str(caught.value)


@pytest.mark.usefixtures("netrc")
def test_foreign_data_reaches_public_addresses_alone(
    web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = f"{web.url}/a%20b.png"
    with closing(Storage(PATIENCE)) as storage, web_server(tmp_path / "served") as intern:
        storage.name(f"{web.url}/list.csv", is_source=True)
        inside = f"{by_another_name(intern.url)}/a%20b.png"
        web.answers["/x"] = status(302, Location=inside)
        for url in (inside, f"{web.url}/x", inside.replace("localhost", "[::ffff:127.0.0.1]")):
            with pytest.raises(NotFetched, match="VOUCH_ALLOWED_ORIGINS=http://") as caught:
                storage.read(url, MOST)
            assert "is not a public address" in str(caught.value)
        assert intern.heads == []
        assert storage.read(named, MOST) == b"an image"
        monkeypatch.setenv("HTTP_PROXY", web.url)  # which would pass the request on
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        storage.close()
        n_asked = len(web.heads)
        with pytest.raises(NotFetched, match="is not a public address"):
            storage.read(inside, MOST)
        assert (len(web.heads), intern.heads) == (n_asked, [])


def test_a_name_that_changes_its_address_reaches_nothing(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is public when it is looked up, and another when it is connected to."""

    async def public(*_: object, **__: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.216.34", 80))]

    monkeypatch.setattr("asyncio.base_events.BaseEventLoop.getaddrinfo", public)
    storage.name("http://elsewhere.example/list.csv", is_source=True)
    guard = Guard(lambda: storage.trust)
    asyncio.run(guard.check("rebinding.example", 80))
    with pytest.raises(NotFetched, match=r"rebinding\.example has the address 127\.0\.0\.1"):
        guard.check_peer("rebinding.example", 80, "127.0.0.1")


@pytest.mark.parametrize(
    ("address", "by_own", "by_foreign"),
    [
        ("93.184.216.34", True, True),
        ("2606:2800:220:1::1", True, True),
        ("127.0.0.1", True, False),
        ("::1", True, False),
        ("10.0.0.1", True, False),
        ("172.16.0.1", True, False),
        ("192.168.1.1", True, False),
        ("100.64.0.1", True, False),
        ("0.0.0.0", True, False),
        ("fc00::1", True, False),
        ("::ffff:10.0.0.1", True, False),
        ("2002:7f00:1::", True, False),
        ("169.254.169.254", False, False),
        ("::ffff:169.254.169.254", False, False),
        ("fe80::1%eth0", False, False),
        ("224.0.0.1", False, False),
    ],
)
def test_trust_admits_addresses_by_where_data_is_from(
    address: str, by_own: bool, by_foreign: bool
) -> None:
    assert Trust().admits(address) is by_own
    assert Trust(is_foreign=True).admits(address) is by_foreign


@pytest.mark.parametrize("text", ["images.example", "ftp://a", "http://", '["a', "/etc/passwd"])
def test_trust_of_no_origin_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOUCH_ALLOWED_ORIGINS", text)
    with pytest.raises(ConfigError, match="not a list of origins"):
        Storage()


def test_a_foreign_source_names_no_bucket_that_the_command_does_not(storage: Storage) -> None:
    storage.name("s3://strangers/list.csv", is_source=True)
    with pytest.raises(NotFetched, match="VOUCH_ALLOWED_ORIGINS=s3://own"):
        storage.read("s3://own/secret.png", MOST)


def test_a_netrc_that_cannot_be_read_is_not_quoted(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine x pasword hidden\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with pytest.raises(DatasetError, match="cannot be read") as caught:
        storage.read("http://127.0.0.1:9/", MOST)
    assert "hidden" not in str(caught.value)


class TestCopies:
    def test_the_same_content_has_the_same_date(
        self, web: WebServer, storage: Storage, tmp_path: Path
    ) -> None:
        (web.folder / "list.csv").write_text("path\n")
        first = storage.copied(f"{web.url}/list.csv?sig=1", tmp_path / "1")
        again = storage.copied(f"{web.url}/list.csv?sig=2", tmp_path / "2")
        assert first.read_text() == again.read_text() == "path\n"
        assert first.stat().st_mtime_ns == again.stat().st_mtime_ns
        (web.folder / "list.csv").write_text("path\na.png\n")
        changed = storage.copied(f"{web.url}/list.csv?sig=1", tmp_path / "1")
        assert changed.read_text() == "path\na.png\n"
        assert changed.stat().st_mtime_ns != again.stat().st_mtime_ns

    def test_what_has_not_changed_is_not_copied_again(
        self, web: WebServer, storage: Storage, tmp_path: Path
    ) -> None:
        sent = []

        def tagged(request: Handler) -> None:
            request.send(b"x" * 10, ETag='"1"')
            sent.append(1)

        web.answers["/a.tar"] = tagged
        copy = storage.copied(f"{web.url}/a.tar", tmp_path)
        copy.chmod(0o400)
        inode = copy.stat().st_ino
        assert storage.copied(f"{web.url}/a.tar", tmp_path).stat().st_ino == inode
        web.answers["/a.tar"] = lambda request: request.send(b"y", ETag='"2"')
        assert storage.copied(f"{web.url}/a.tar", tmp_path).read_bytes() == b"y"
        assert not list(tmp_path.glob("*.partial"))

    def test_a_note_that_a_full_disk_cut_off_is_none(
        self, web: WebServer, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        web.answers["/a.tar"] = lambda request: request.send(b"x", ETag='"1"')
        write_text = Path.write_text

        def full(path: Path, text: str) -> int:
            write_text(path, text[:10])
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(Path, "write_text", full)
            with pytest.raises(OSError, match="No space left"):
                storage.copied(f"{web.url}/a.tar", tmp_path)
        assert storage.copied(f"{web.url}/a.tar", tmp_path).read_bytes() == b"x"

    def test_a_broken_connection_goes_on_from_where_it_broke(
        self, web: WebServer, storage: Storage, tmp_path: Path
    ) -> None:
        whole = os.urandom(5 * 2**20)
        ranges = []

        def breaking(request: Handler) -> None:
            ranges.append(request.headers.get("Range"))
            start = int((ranges[-1] or "bytes=0-")[6:-1])
            request.send_response(206 if start else 200)
            request.send_header("Content-Length", str(len(whole) - start))
            request.send_header("Content-Range", f"bytes {start}-{len(whole) - 1}/{len(whole)}")
            request.send_header("ETag", '"1"')
            request.end_headers()
            request.wfile.write(whole[start : start + 2**20 + 5000])
            request.close_connection = True

        web.answers["/a.tar"] = breaking
        assert storage.copied(f"{web.url}/a.tar", tmp_path).read_bytes() == whole
        assert len(ranges) == 5
        assert ranges[0] is None
        assert None not in ranges[1:]

    def test_without_a_tag_it_begins_anew(
        self, web: WebServer, storage: Storage, tmp_path: Path
    ) -> None:
        web.answers["/a.csv"] = at_second_try(
            promises_more(b"bad"), lambda request: request.send(b"good")
        )
        assert storage.copied(f"{web.url}/a.csv", tmp_path).read_bytes() == b"good"

    @pytest.mark.parametrize("answer", [status(404), hangs_up])
    def test_what_cannot_be_copied_is_said(
        self, web: WebServer, storage: Storage, tmp_path: Path, answer: Answer
    ) -> None:
        web.answers["/a.csv"] = answer
        with pytest.raises(SourceUnavailable, match=r"a\.csv cannot be copied: http://127"):
            storage.copied(f"{web.url}/a.csv?sig=hidden", tmp_path)
        assert not (tmp_path / "a.csv").exists()

    def test_an_endless_file_does_not_fill_the_disk(
        self, web: WebServer, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        usage = shutil.disk_usage(tmp_path)
        free = iter(range(10**6, 0, -10_000))
        monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=next(free)))
        web.answers["/a.csv"] = endless
        with pytest.raises(DatasetError, match="run directory has no space for more"):
            storage.copied(f"{web.url}/a.csv", tmp_path / "copies")
        assert not list((tmp_path / "copies").iterdir())


LISTING = """<ListBucketResult><Name>photographs</Name><IsTruncated>false</IsTruncated>
<Contents><Key>%s</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>"1"</ETag>
<Size>3</Size></Contents></ListBucketResult>"""


class TestHostileBuckets:
    """A service that says it is S3."""

    @pytest.fixture(autouse=True)
    def _named_in_the_environment(self, web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", web.url)
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
        web.answers["/photographs"] = self.listing("x.png")

    def listing(self, key: str) -> Answer:
        return lambda request: request.send((LISTING % key).encode())

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "answer",
        [
            silent,
            dribbling_head,
            dribbling_body,
            endless,
            promises_more(b"1"),
            hangs_up,
            status(500),
        ],
    )
    def test_a_file_that_does_not_come_costs_no_more_than_itself(
        self, web: WebServer, hasty: Storage, answer: Answer
    ) -> None:
        web.answers["/photographs/x.png"] = answer
        started = time.monotonic()
        with pytest.raises(NotFetched, match=r"s3://photographs/x\.png"):
            hasty.read("s3://photographs/x.png", MOST)
        assert time.monotonic() - started < 10

    def test_a_bucket_that_is_gone_is_told_from_a_file(
        self, web: WebServer, storage: Storage
    ) -> None:
        with pytest.raises(NotFetched, match=r"There is no s3://photographs/gone\.png"):
            storage.read("s3://photographs/gone.png", MOST)
        web.answers["/photographs"] = status(404)
        with pytest.raises(SourceUnavailable, match="s3://photographs no longer exists"):
            storage.read("s3://photographs/gone.png", MOST)

    def test_who_may_read_and_not_list_may_miss_a_file(
        self, web: WebServer, storage: Storage
    ) -> None:
        web.answers["/photographs"] = status(403)
        web.answers["/photographs/x.png"] = status(403)
        with pytest.raises(NotFetched, match="could not be read"):
            storage.read("s3://photographs/x.png", MOST)

    def test_a_key_that_is_no_path_is_said(self, web: WebServer, storage: Storage) -> None:
        web.answers["/photographs"] = self.listing("a//x.png")
        with pytest.raises(
            SourceUnavailable, match="A file name in the bucket is not a valid path"
        ):
            list(storage.listed("s3://photographs"))

    def test_the_web_has_no_folders(self, web: WebServer, storage: Storage) -> None:
        with pytest.raises(DatasetError, match=r"cannot be listed: .*Name a manifest"):
            list(storage.listed(web.url))


@pytest.mark.parametrize("value", ['"swordfish"', '{"private_key": "swordfish"}', '{"swordfish'])
def test_credentials_of_a_cloud_that_are_wrong_are_not_quoted(
    value: str, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", value)
    with pytest.raises(DatasetError, match="Set the credentials in the") as caught:
        storage.read("gs://bucket/a.png", MOST)
    assert "swordfish" not in str(caught.value)
