"""Models that have to be fetched, where the hub does not answer."""

from __future__ import annotations

import logging
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants
from PIL import Image

from index_builder.foreign_encoders.choices import Door
from index_builder.foreign_encoders.doors import DOORS, EncoderChoices, HubModel
from index_builder.storage.web import Probe
from model_store.errors import ConfigError, EncoderSourceError
from tests.support.build_command import vouch_build

pytestmark = pytest.mark.process

NAMES = {
    Door.timm: "vit_small_patch14_dinov2.lvd142m",
    Door.open_clip: "ViT-B-16-SigLIP2/webli",
    Door.hf: "facebook/dinov2-base",
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub."""
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    return cache


@pytest.fixture
def _no_hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A hub that refuses connections; nothing waits before it tries again."""
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("waited for another try"))
    yield
    assert not constants.HF_HUB_OFFLINE
    assert logging.root.manager.disable == logging.NOTSET


@pytest.mark.usefixtures("_no_hub")
@pytest.mark.parametrize("door", NAMES)
def test_empty_cache_is_refused_before_the_library_is_imported(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("timm", "open_clip", "transformers"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(EncoderSourceError, match=r"no network, or http://127.* does not answer"):
        DOORS[door](NAMES[door], EncoderChoices())
    assert not {"timm", "open_clip", "transformers"} & set(sys.modules)


@pytest.mark.slow
@pytest.mark.usefixtures("_no_hub", "quiet")
@pytest.mark.parametrize("door", NAMES)
def test_model_that_is_not_cached_is_refused_without_retries_and_log_lines(
    door: Door, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (cache / "models--another--model").mkdir()
    with pytest.raises(EncoderSourceError, match=r"Cannot fetch .*Give a local file or directory"):
        DOORS[door](NAMES[door], EncoderChoices())
    assert not caplog.records


@pytest.mark.slow
@pytest.mark.usefixtures("_no_hub", "quiet")
def test_random_weights_need_no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Probe, "__init__", lambda *_: pytest.fail("asked the hub"))
    assert DOORS[Door.timm]("test_vit", EncoderChoices(untrained=True)).origin["name"] == "test_vit"
    with pytest.raises(EncoderSourceError, match=r"timm cannot load 'test_vat': Unknown model"):
        DOORS[Door.timm]("test_vat", EncoderChoices(untrained=True))


def test_offline_setting_is_named_as_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub = HubModel("one", is_local=False)
    hub.require_any()
    with (
        pytest.raises(EncoderSourceError, match="Cannot fetch 'one': HF_HUB_OFFLINE is set"),
        hub.fetched(),
    ):
        raise EncoderSourceError("no such file") from OSError()


@pytest.mark.usefixtures("_no_hub")
@pytest.mark.parametrize("command", ["all", "index", "encoder"])
def test_commands_end_with_one_line(command: str, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(256, size=(60, 8, 8), dtype=np.uint8)
    for number, image in enumerate(pixels):  # as many as a plan needs
        folder = tmp_path / "photographs" / str(number % 2)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{number}.png")
    arguments = {
        "all": ["all", "--images", "photographs", "--encoder", f"timm:{NAMES[Door.timm]}"],
        "index": ["index", "photographs", "--encoder", f"transformers:{NAMES[Door.hf]}"],
        "encoder": ["encoder", "--open-clip", NAMES[Door.open_clip]],
    }[command]
    done = vouch_build(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    *plan, line = done.stderr.splitlines()
    assert len(plan) == (4 if command == "all" else 0)
    assert line.startswith("error: Cannot fetch '")


def test_missing_library_is_named_with_the_extra_of_a_checkout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(ConfigError, match=r"In a checkout of Vouch: pip install '\.\[open-clip\]'"):
        DOORS[Door.open_clip]("ViT-B-32/openai", EncoderChoices())
