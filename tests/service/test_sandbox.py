"""A decoder that a file has taken over gets at no secret; any other decodes as ever."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from model_store.bundles.bundle import Bundle
from model_store.errors import ImageError
from service.decoding.decoder import DecoderPool
from service.decoding.sandbox import PARTS, SandboxMode
from tests.end_to_end.questions import search
from tests.support.hostile_images import contrived
from tests.support.scene_encodings import same_scene
from tests.torture.taken_over import PREPROCESSING, out_of_reach, planted, tried

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="the kernel that confines is Linux"),
]

StartClient = Callable[..., TestClient]


@pytest.fixture
def target(tmp_path: Path, bundle: Bundle) -> Iterator[dict[str, Any]]:
    """What a decoder should not get at."""
    with out_of_reach(tmp_path, bundle.directory) as target:
        yield target


DEEP = {name: data for name, data in same_scene().items() if name.startswith(("TIFF", "PNG c"))}
"""Files that other libraries than Pillow have a part in."""

TAKES_SECONDS = {"JPEG of thousands of scans", "TIFF of 200,000 strips"}
"""Files that end at the limit of time, or near it, whichever process decodes them."""


@pytest.mark.anyio
class TestADecoderThatWasTakenOver:
    @pytest.fixture(autouse=True)
    def _planted(self) -> Iterator[None]:
        with planted():
            yield

    async def test_gets_at_nothing(self, target: dict[str, Any]) -> None:
        found = await tried(target, "required")
        assert [name for name, came in found["outcomes"].items() if came == "done"] == []
        assert len(found["outcomes"]) == 16
        assert found["secrets"] == []

    async def test_would_get_at_much_without(self, target: dict[str, Any]) -> None:
        """The attempts are such that succeed where nothing confines them."""
        outcomes = (await tried(target, "off"))["outcomes"]
        done = {name for name, came in outcomes.items() if came == "done"}
        # Of other processes a system may itself keep some.
        assert done >= set(outcomes) - {"memory of the service"}


@pytest.mark.anyio
async def test_every_file_is_decoded_as_without() -> None:
    outcomes: dict[str, dict[str, object]] = {}
    modes: tuple[SandboxMode, SandboxMode] = ("off", "required")
    for mode in modes:
        found = outcomes[mode] = {}
        async with DecoderPool(1, sandbox=mode) as pool:
            assert set(pool.sandbox) == (set() if mode == "off" else set(PARTS))
            for name, data in {**contrived(), **DEEP}.items():
                if name in TAKES_SECONDS:
                    continue
                try:
                    made = await pool.decode(data, PREPROCESSING, measured=True, thumbnail=True)
                except ImageError as error:
                    found[name] = str(error)
                else:
                    found[name] = (made.format, made.warnings, made.pixels.tobytes())
    assert outcomes["required"] == outcomes["off"]


@pytest.mark.anyio
async def test_where_it_is_required_and_not_to_be_had_nothing_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "pyseccomp.py").write_text("raise RuntimeError('no libseccomp')", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RuntimeError, match="do not start"):
        await DecoderPool(1, sandbox="required").__aenter__()
    async with DecoderPool(1, sandbox="available") as pool:
        assert pool.sandbox == ("landlock",)


def test_what_is_in_force_is_said(start: StartClient, digit: bytes) -> None:
    client = start(decoders=1, decoder_sandbox="required")
    assert search(client, digit).status_code == 200
    assert set(client.get("/readyz").json()["decoder_sandbox"]) == set(PARTS)
    assert start(decoders=0).get("/readyz").json()["decoder_sandbox"] == []
