"""Decoder processes: what kills them costs the culprit its place, and nobody else."""

from __future__ import annotations

import os
import platform
import signal
from pathlib import Path

import numpy as np
import psutil
import pytest

from index_builder.indexing.blocks import Block, Place
from index_builder.indexing.engines import DecoderProcesses, _started
from index_builder.indexing.prepare import BUDGET, budget_for, prepare_files
from model_store.images import ImageLimits, Preprocessing
from model_store.images.decode import DecodingBudget
from tests.support import hostile_images
from tests.support.image_files import encoded, picture
from tests.support.page_faults import PAGE, faults_of_blocks

PREPROCESSING = Preprocessing(16, 16)


@pytest.fixture(autouse=True)
def _decoders_are_forked() -> None:
    """Those of this file are the real ones."""


def block_of(folder: Path, **files: bytes) -> Block:
    places = []
    for name, data in files.items():
        (folder / name).write_bytes(data)
        places.append(Place(str(folder / name), None, len(data), 0))
    return Block(0, tuple(files), tuple(places))


@pytest.mark.process
def test_an_image_that_ends_its_decoder_is_left_out_alone(tmp_path: Path) -> None:
    """By more computing than is allowed: SIGPROF ends whoever decodes it."""
    block = block_of(
        tmp_path,
        first=encoded(picture(seed=1)),
        deadly=hostile_images.scan_bomb(20_000),
        last=encoded(picture(seed=2)),
    )
    decoders = DecoderProcesses(PREPROCESSING, 2, budget=DecodingBudget(cpu_s=0.3))
    try:
        found = decoders.result(decoders.submit(block), block)
        again = decoders.submit(block_of(tmp_path, other=encoded(picture()))).result()
    finally:
        decoders.close()
    assert (found.ids, list(found.failures)) == (block.ids, ["deadly"])
    assert "crashed its decoder" in found.failures["deadly"].reason
    sound = prepare_files(block_of(tmp_path, last=encoded(picture(seed=2))), PREPROCESSING)
    np.testing.assert_array_equal(found.images[2], sound.images[0])
    assert found.hashes[2] == sound.hashes[0]
    assert not again.failures


@pytest.mark.process
def test_a_killed_decoder_loses_nothing(tmp_path: Path) -> None:
    files = {f"{n}": encoded(picture(seed=n)) for n in range(40)}
    block = block_of(tmp_path, **files)
    of_others = set(psutil.Process().children())
    decoders = DecoderProcesses(PREPROCESSING, 1)
    try:
        decoders.result(decoders.submit(block), block)
        futures = [decoders.submit(block) for _ in range(3)]
        for child in set(psutil.Process().children()) - of_others:
            if "resource_tracker" not in " ".join(child.cmdline()):
                os.kill(child.pid, signal.SIGKILL)
        for future in futures:
            found = decoders.result(future, block)
            assert (found.ids, found.failures) == (block.ids, {})
            assert len(set(found.hashes)) == len(files)
    finally:
        decoders.close()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc that is tuned")
@pytest.mark.process
def test_a_decoder_keeps_the_memory_of_a_block() -> None:
    n_bytes, n_at_once = 10 * 2**20, 4
    with _started(1) as decoder:
        n_faults = decoder.submit(faults_of_blocks, n_bytes, n_at_once).result()
    assert n_faults < 2 * n_bytes * n_at_once // PAGE


def test_a_file_that_is_gone_may_come_back(tmp_path: Path) -> None:
    block = block_of(tmp_path, there=encoded(picture()), gone=b"")
    (tmp_path / "gone").unlink()
    found = prepare_files(block, PREPROCESSING)
    assert found.failures["gone"].passing
    assert "there is no " in found.failures["gone"].reason
    assert "with --root" in found.failures["gone"].reason
    assert found.images[0].any()
    assert not found.images[1].any()


def test_what_one_image_may_cost_grows_with_the_pixels_that_are_allowed() -> None:
    assert budget_for(ImageLimits()) == BUDGET
    assert budget_for(ImageLimits(max_pixels=1000)) == BUDGET
    double = budget_for(ImageLimits(max_pixels=2 * ImageLimits().max_pixels))
    assert (double.memory_bytes, double.cpu_s) == (2 * BUDGET.memory_bytes, 2 * BUDGET.cpu_s)
