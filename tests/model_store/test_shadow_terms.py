"""What is tried in the shadow is written down, whoever writes at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from model_store.bundles.directory import SHADOW_FILE, ShadowTerms, read_shadow, write_shadow
from model_store.files import replacing


def test_two_who_write_at_once_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As two processes do that are told of a shadow: to each it would look as if it could not."""
    both = threading.Barrier(2)

    @contextmanager
    def slowly(path: Path) -> Iterator[Path]:
        with replacing(path) as staged:
            yield staged
            with suppress(threading.BrokenBarrierError):
                both.wait(0.3)

    monkeypatch.setattr("model_store.bundles.directory.replacing", slowly)
    terms = [ShadowTerms("0" * 16, share) for share in (0.25, 0.5)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(partial(write_shadow, tmp_path), terms))
    assert read_shadow(tmp_path) in terms
    write_shadow(tmp_path, None)
    assert not (tmp_path / SHADOW_FILE).exists()
