"""Galleries that are created at a running service, and a kill while they are."""

from __future__ import annotations

import re
import shlex
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import pytest

from service.client import VouchClient, VouchProblem
from tests.end_to_end.processes import Service, wait_until

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "live-writes.md"


@contextmanager
def serving(bundle: Path, place: Path, log: str = "log") -> Iterator[tuple[Service, VouchClient]]:
    variables = {"VOUCH_GALLERIES": str(place / "galleries"), "VOUCH_DECODERS": "1"}
    with (
        Service(bundle, place / log, variables) as service,
        VouchClient(str(service.http.base_url)) as vouch,
    ):
        yield service, vouch


def test_many_galleries_have_one_encoder_and_the_readme_is_true(
    digits_bundle: Path, belonging: list[bytes], tmp_path: Path
) -> None:
    with serving(digits_bundle, tmp_path) as (service, vouch):
        for number in range(3):
            made = vouch.manage.create(f"acme-{number}", title=f"{number}")
            assert (made.n_items, made.title) == (0, f"{number}")
            vouch.put_item(f"acme-{number}", "one", belonging[0], label="x")
        vouch.manage.rename("acme-0", "acme-zero")
        for name, image in (("acme-zero", belonging[0]), ("acme-1", belonging[0])):
            found = vouch.search(name, image)
            assert (found.verdict, found.results[0].id) == ("not_calibrated", "one")
        with pytest.raises(VouchProblem, match="gallery_not_found"):
            vouch.gallery("acme-0")
        vouch.manage.describe("acme-1", description="Boots")
        assert vouch.gallery("acme-1").description == "Boots"
        vouch.manage.drop("acme-1")
        assert [one.name for one in vouch.galleries()] == [
            "acme-2",
            "acme-zero",
            "digits",
        ]
        assert vouch.manage.usage().scope == "admin"
        assert len(service.logged("encoder started")) == 1
        service.encoder().kill()  # it starts again, for all of them
        wait_until(lambda: _answers(vouch, "acme-2", belonging[0]), service)
        _run_page(service, tmp_path, belonging[0])


def _answers(vouch: VouchClient, gallery: str, image: bytes) -> bool:
    with suppress(VouchProblem):
        return bool(vouch.embed(gallery, image + b" ").direction)
    return False


def _run_page(service: Service, place: Path, image: bytes) -> None:
    (place / "photo.png").write_bytes(image)
    (commands,) = re.findall(
        r"^```sh\n([^`]*/acme-boots\?confirm[^`]*)```$", PAGE.read_text("utf-8"), re.MULTILINE
    )
    for command in commands.strip().splitlines():
        words = shlex.split(command.replace("127.0.0.1:8080", f"127.0.0.1:{service.port}"))
        subprocess.run([*words, "--fail", "--silent"], check=True, cwd=place, capture_output=True)


def test_a_kill_while_galleries_are_changed_leaves_those_that_were_acknowledged(
    digits_bundle: Path, belonging: list[bytes], tmp_path: Path
) -> None:
    acknowledged: dict[str, bool] = {}

    def change(vouch: VouchClient, who: int) -> None:
        """Create, rename and drop, until the service is gone."""
        with suppress(httpx2.TransportError, VouchProblem):
            for number in range(1000):
                name = f"of-{who}-{number}"
                vouch.manage.create(name)
                acknowledged[name] = True
                if number % 3:
                    acknowledged[name] = False  # from now on: maybe
                    vouch.manage.rename(name, f"{name}-new")
                    acknowledged[f"{name}-new"] = True
                if number % 3 == 2:
                    acknowledged[f"{name}-new"] = False
                    vouch.manage.drop(f"{name}-new")

    with serving(digits_bundle, tmp_path) as (service, vouch):
        changing = [threading.Thread(target=change, args=(vouch, who)) for who in range(3)]
        for thread in changing:
            thread.start()
        wait_until(lambda: len(acknowledged) > 10, service)
        service.popen.kill()
        for thread in changing:
            thread.join()
    certain = {name for name, there in acknowledged.items() if there}
    with serving(digits_bundle, tmp_path, "again") as (_, vouch):
        there = {one.name for one in vouch.galleries()} - {"digits"}
        assert certain <= there
        assert len(there - certain) <= 6  # what each was at when it was cut off
        for name in there:
            assert vouch.search(name, belonging[0]).results == []
        some = min(there)
        vouch.put_item(some, "one", belonging[0])
        assert vouch.search(some, belonging[0]).results[0].id == "one"
