"""The pool of decoders: equal to decoding at home, and no file takes more than itself down."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from model_store.errors import (
    CorruptImage,
    EmptyImage,
    ImageError,
    ImageTooCostly,
    ImageTooLarge,
    UnsupportedImage,
)
from model_store.images import MOST_PREVIEW_SIDE, ImageLimits, Preprocessing, decode_image
from model_store.images.decode import DecodingBudget
from model_store.images.quality import quality_measures
from service.decoding.decoder import DecoderPool, DecoderProcess, Prepared, read_reply
from service.decoding.worker import PREFIX
from service.shared_pixels import SharedPixels
from tests.support.hostile_images import contrived
from tests.support.image_files import encoded, picture, png, seeds, slow_png
from tests.support.waiting import TIMEOUT_S, until, wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.process]

PREPROCESSING = Preprocessing(20, 24, "cover", "bicubic")
GOOD = encoded(picture())
SLOW = slow_png()

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def decoded_here(
    data: bytes, preprocessing: Preprocessing = PREPROCESSING, *, measured: bool = False
) -> Prepared:
    decoded = decode_image(data, smallest_side=preprocessing.smallest_side)
    return Prepared(
        preprocessing(decoded.pixels),
        decoded.format,
        decoded.width,
        decoded.height,
        decoded.warnings,
        quality_measures(decoded.pixels, (decoded.width, decoded.height)) if measured else None,
    )


def assert_equal(prepared: Prepared, wanted: Prepared) -> None:
    np.testing.assert_array_equal(prepared.pixels, wanted.pixels)
    assert prepared.pixels.dtype == np.uint8
    np.testing.assert_equal(prepared.measures, wanted.measures)
    assert prepared.format == wanted.format
    assert (prepared.width, prepared.height) == (wanted.width, wanted.height)
    assert prepared.warnings == wanted.warnings


def ticks(pid: int) -> int:
    """How long a process has computed, in hundredths of a second."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return int(stat[11])


async def one_at_work(pool: DecoderPool) -> int:
    """The process that has begun to decode something slow."""
    before = {pid: ticks(pid) for pid in pool.pids}
    working: list[int] = []
    while not working:
        await asyncio.sleep(0.005)
        working = [pid for pid in before if ticks(pid) >= before[pid] + 5]
    return working[0]


def is_gone(pid: int) -> bool:
    """Whether a process has ended, whether or not anybody has asked for its exit status."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except FileNotFoundError:
        return True
    return stat.rpartition(")")[2].split()[0] in {"Z", "X"}


async def test_every_kind_of_file_is_decoded_as_at_home() -> None:
    others = [Preprocessing(28, 28), Preprocessing(26, 33), PREPROCESSING]
    async with DecoderPool(2) as pool:
        for turn, data in enumerate(seeds().values()):
            preprocessing = others[turn % len(others)]
            for measured in (True, False):
                prepared = await pool.decode(data, preprocessing, measured=measured)
                assert_equal(prepared, decoded_here(data, preprocessing, measured=measured))
        assert pool.n_lost == 0


async def test_a_large_photograph_is_decoded_as_the_encoder_wants_it() -> None:
    reduced = Preprocessing(20, 24, "cover", "bicubic", "reduced")
    turned = Image.Exif()
    turned[0x0112] = 6
    data = encoded(picture(1300, 700), "JPEG", exif=turned)
    async with DecoderPool(1) as pool:
        prepared = await pool.decode(
            data, reduced, measured=True, thumbnail=True, preview_side=1024
        )
        in_full = await pool.decode(data, PREPROCESSING, measured=True)
    assert_equal(replace(prepared, measures=None), decoded_here(data, reduced))
    assert (prepared.width, prepared.height) == (700, 1300)
    assert prepared.warnings == in_full.warnings
    assert not np.array_equal(prepared.pixels, in_full.pixels)
    assert prepared.measures is not None
    assert in_full.measures is not None
    assert prepared.measures[0] == in_full.measures[0] == 700  # its size in the file
    np.testing.assert_allclose(prepared.measures[1:4], in_full.measures[1:4], rtol=0.2)
    assert prepared.thumbnail is not None
    thumbnail = Image.open(io.BytesIO(prepared.thumbnail.data))
    assert thumbnail.size == (86, 160)
    preview = Image.open(io.BytesIO(prepared.preview))
    assert (preview.format, preview.size) == ("JPEG", (551, 1024))


async def test_the_largest_preview_comes_whole() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (1100, 1100, 3), dtype=np.uint8)
    async with DecoderPool(1) as pool:
        prepared = await pool.decode(
            encoded(noise), PREPROCESSING, thumbnail=True, preview_side=MOST_PREVIEW_SIDE
        )
    with Image.open(io.BytesIO(prepared.preview)) as preview:
        preview.load()
        assert preview.size == (1024, 1024)


async def test_many_at_once_each_get_their_own() -> None:
    files = [encoded(picture(seed=seed)) for seed in range(40)]
    async with DecoderPool(3) as pool:
        prepared = await asyncio.gather(*(pool.decode(data, PREPROCESSING) for data in files))
    for one, data in zip(prepared, files, strict=True):
        assert_equal(one, decoded_here(data))


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", EmptyImage),
        (b"hello", UnsupportedImage),
        (b"x" * 5000, ImageTooLarge),
        (png(2000, 2000, 8, 2, b""), ImageTooLarge),
        (GOOD[: len(GOOD) // 2], CorruptImage),
    ],
)
async def test_an_error_reads_as_at_home(data: bytes, error: type[ImageError]) -> None:
    limits = ImageLimits(max_bytes=4000, max_pixels=100_000)
    with pytest.raises(error) as at_home:
        decode_image(data, limits)
    async with DecoderPool(1, limits) as pool:
        with pytest.raises(error) as from_pool:
            await pool.decode(data, PREPROCESSING)
        assert str(from_pool.value) == str(at_home.value)
        assert pool.n_lost == 0


async def test_an_image_that_takes_too_long_costs_itself_only() -> None:
    async with DecoderPool(2, budget=DecodingBudget(cpu_s=0.1)) as pool:
        before = set(pool.pids)
        slow = asyncio.create_task(pool.decode(SLOW, PREPROCESSING))
        others = [pool.decode(GOOD, PREPROCESSING) for _ in range(20)]
        for prepared in await asyncio.gather(*others):
            assert_equal(prepared, decoded_here(GOOD))
        with pytest.raises(ImageTooCostly, match=r"more than 0\.1 s"):
            await slow
        assert pool.n_lost == 1
        await until(lambda: len(pool.pids) == 2)
        assert len(before & set(pool.pids)) == 1


@linux
async def test_a_decoder_that_stands_still_is_replaced() -> None:
    async with DecoderPool(1, budget=DecodingBudget(clock_s=3)) as pool:
        os.kill(pool.pids[0], signal.SIGSTOP)
        with pytest.raises(ImageTooCostly, match="given up"):
            await pool.decode(GOOD, PREPROCESSING)
        assert_equal(await pool.decode(GOOD, PREPROCESSING), decoded_here(GOOD))


@linux
async def test_an_image_that_takes_too_much_memory_is_refused() -> None:
    budget = DecodingBudget(memory_bytes=48 * 2**20)
    async with DecoderPool(1, budget=budget) as pool:
        for _ in range(3):
            with pytest.raises(ImageTooCostly, match="memory"):
                await pool.decode(SLOW, PREPROCESSING)
            assert_equal(await pool.decode(GOOD, PREPROCESSING), decoded_here(GOOD))
        assert pool.n_lost == 0


@linux
async def test_a_large_image_takes_little_more_than_its_pixels() -> None:
    large = Image.new("LA", (6000, 4000), (80, 90))
    async with DecoderPool(1, budget=DecodingBudget(memory_bytes=272 * 2**20)) as pool:
        prepared = await pool.decode(encoded(large), PREPROCESSING)
    assert (prepared.width, prepared.height) == (6000, 4000)


@linux
async def test_a_crash_costs_the_image_that_caused_it() -> None:
    async with DecoderPool(2) as pool:
        slow = asyncio.create_task(pool.decode(SLOW, PREPROCESSING))
        victim = await one_at_work(pool)
        others = [asyncio.create_task(pool.decode(GOOD, PREPROCESSING)) for _ in range(20)]
        os.kill(victim, signal.SIGSEGV)
        with pytest.raises(CorruptImage, match="crash"):
            await slow
        for prepared in await asyncio.gather(*others):
            assert_equal(prepared, decoded_here(GOOD))
        assert pool.n_lost == 1


DESCRIPTION: dict[str, Any] = {"format": "PNG", "width": 1, "height": 1, "warnings": []}


@pytest.mark.parametrize(
    "said",
    [
        b"no JSON",
        b"[" * 60_000,
        *(
            json.dumps(fields).encode()
            for fields in (
                {},
                {"error": "SystemExit", "detail": "as if"},
                {"error": "CorruptImage", "detail": ["as if"]},
                DESCRIPTION | {"colour": "red"},
                DESCRIPTION | {"width": "wide"},
                DESCRIPTION | {"width": -1},
                DESCRIPTION | {"height": 10**400},
                DESCRIPTION | {"warnings": [1]},
                DESCRIPTION | {"measures": [1.0]},
                DESCRIPTION | {"measures": [1.0, 2.0, 3.0, 4.0, float("nan")]},
                DESCRIPTION | {"measures": [10**400] * 5},
                DESCRIPTION | {"thumbnail": 5},
            )
        ),
    ],
    ids=lambda said: said[:70].decode(),
)
def test_nonsense_is_no_reply(said: bytes) -> None:
    pictures = SharedPixels()
    with pytest.raises(EOFError, match="malformed"):
        read_reply(said, pictures, PREPROCESSING)
    pictures.close()


async def test_a_decoder_that_answers_nonsense_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = DecoderProcess.ask

    async def nonsense(self: DecoderProcess, header: bytes, data: bytes) -> bytes:
        answer = await ask(self, header, data)
        return b"no JSON" if data else answer

    async with DecoderPool(1) as pool:
        with monkeypatch.context() as patch:
            patch.setattr(DecoderProcess, "ask", nonsense)
            with pytest.raises(ImageError):
                await pool.decode(GOOD, PREPROCESSING)
        assert_equal(await pool.decode(GOOD, PREPROCESSING), decoded_here(GOOD))
        assert pool.n_lost == 2


@linux
async def test_nobody_loses_by_a_decoder_that_is_killed_from_outside() -> None:
    wanted = decoded_here(SLOW)
    async with DecoderPool(2) as pool:
        slow = asyncio.create_task(pool.decode(SLOW, PREPROCESSING))
        victim = await one_at_work(pool)
        others = [asyncio.create_task(pool.decode(GOOD, PREPROCESSING)) for _ in range(20)]
        os.kill(victim, signal.SIGKILL)
        assert_equal(await slow, wanted)
        for prepared in await asyncio.gather(*others):
            assert_equal(prepared, decoded_here(GOOD))
        assert pool.n_lost == 1


async def test_idle_decoders_may_be_killed() -> None:
    async with DecoderPool(2) as pool:
        for pid in pool.pids:
            os.kill(pid, signal.SIGKILL)
        for prepared in await asyncio.gather(
            *(pool.decode(GOOD, PREPROCESSING) for _ in range(10))
        ):
            assert_equal(prepared, decoded_here(GOOD))


async def test_signals_to_end_are_left_to_the_service() -> None:
    async with DecoderPool(1) as pool:
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(pool.pids[0], number)
        assert_equal(await pool.decode(GOOD, PREPROCESSING), decoded_here(GOOD))
        assert pool.n_lost == 0


async def test_thirty_rounds_of_eight_with_one_bad() -> None:
    bad = [GOOD[:300], b"no image", png(60_000, 60_000, 8, 2, b"\x00" * 1000), SLOW]
    budget = DecodingBudget(cpu_s=0.1)
    wanted = decoded_here(GOOD)
    async with DecoderPool(2, budget=budget) as pool:
        for turn in range(30):
            files = [GOOD] * 8
            files[turn % 8] = bad[turn % len(bad)]
            answers = await asyncio.gather(
                *(pool.decode(data, PREPROCESSING) for data in files), return_exceptions=True
            )
            assert isinstance(answers.pop(turn % 8), ImageError)
            for prepared in answers:
                assert isinstance(prepared, Prepared)
                assert_equal(prepared, wanted)
        assert pool.n_lost == 7


async def test_files_made_to_hurt_are_decoded_or_refused() -> None:
    files = contrived()
    budget = DecodingBudget(cpu_s=1, memory_bytes=512 * 2**20)
    async with DecoderPool(2, budget=budget) as pool:
        answers = await asyncio.gather(
            *(pool.decode(data, PREPROCESSING) for data in files.values()), return_exceptions=True
        )
        assert_equal(await pool.decode(GOOD, PREPROCESSING), decoded_here(GOOD))
    outcomes = dict(zip(files, map(type, answers), strict=True))
    assert all(issubclass(outcome, Prepared | ImageError) for outcome in outcomes.values())
    assert outcomes["JPEG of thousands of scans"] is ImageTooCostly
    for name in (
        "PNG of 3.6 gigapixels",
        "GIF of one pixel on 4 gigapixels",
        "GIF whose frame lies far outside",
        "GIF of 100,000 frames",
        "TIFF of 5,000 pages",
        "TIFF whose pages go in a circle",
        "BMP of 4 exapixels",
        "WEBP of 268 megapixels",
        "WEBP of 1,200 frames",
    ):
        assert outcomes[name] is ImageTooLarge, name
    for name in ("PNG with zTXt bomb", "PNG with profile bomb", "PNG of no width"):
        assert outcomes[name] is CorruptImage, name
    for name in ("SVG", "PDF and JPEG", "HTML and PNG", "a AVIF file", "noise"):
        assert outcomes[name] is UnsupportedImage, name
    for name in ("GIF of 900 frames", "PNG with EXIF of zeros", "JPEG of 1 × 65500"):
        assert outcomes[name] is Prepared, name


@linux
async def test_a_cancelled_request_frees_its_place() -> None:
    async with DecoderPool(1) as pool:
        [pid] = pool.pids
        n_ticks = [ticks(pid)]
        await pool.decode(SLOW, PREPROCESSING)
        n_ticks.append(ticks(pid))
        at_the_decoder = asyncio.create_task(pool.decode(SLOW, PREPROCESSING))
        await asyncio.sleep(0.05)
        waiting = [asyncio.create_task(pool.decode(SLOW, PREPROCESSING)) for _ in range(50)]
        await asyncio.sleep(0.05)
        for task in (at_the_decoder, *waiting):
            task.cancel()
        ended = await asyncio.gather(at_the_decoder, *waiting, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ended)
        assert_equal(await pool.decode(GOOD, PREPROCESSING), decoded_here(GOOD))
        n_ticks.append(ticks(pid))
        for_one, for_all = np.diff(n_ticks)
        assert for_all < 10 * for_one  # the decoder computed for none of the fifty
        assert pool.n_lost == 0


async def test_the_event_loop_goes_on_while_images_are_decoded() -> None:
    async with DecoderPool(1) as pool:
        job = asyncio.create_task(pool.decode(SLOW, PREPROCESSING))
        n_turns = 0
        while not job.done():
            await asyncio.sleep(0.005)
            n_turns += 1
        await job
        assert n_turns >= 5


@linux
async def test_nothing_is_left_when_the_pool_closes() -> None:
    async with DecoderPool(2) as pool:
        pids = pool.pids
        job = asyncio.create_task(pool.decode(SLOW, PREPROCESSING))
        await asyncio.sleep(0.02)
    assert all(map(is_gone, pids))
    with pytest.raises(asyncio.CancelledError):
        await job


@linux
def test_no_decoder_outlives_a_service_that_is_killed(tmp_path: Path) -> None:
    script = """
import asyncio, sys
from pathlib import Path
from model_store.images import Preprocessing
from service.decoding.decoder import DecoderPool

async def main():
    async with DecoderPool(2) as pool:
        job = asyncio.create_task(pool.decode(Path(sys.argv[1]).read_bytes(), Preprocessing(8, 8)))
        await asyncio.sleep(0.02)
        print(*pool.pids, flush=True)
        await job
        await asyncio.sleep(60)

asyncio.run(main())
"""
    slow = tmp_path / "slow.png"
    slow.write_bytes(SLOW)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-c", script, str(slow)], stdout=subprocess.PIPE, env=environment
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(pids) == 2
    wait_until(lambda: all(map(is_gone, pids)))


@linux
async def test_a_decoder_holds_nothing_but_a_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOUCH_REDIS_URL", "redis://:secret@nowhere")
    async with DecoderPool(1) as pool:
        process = Path(f"/proc/{pool.pids[0]}")
        libraries = (process / "maps").read_text(encoding="utf-8")
        environment = (process / "environ").read_bytes()
    assert "libjpeg" in libraries
    for heavy in ("faiss", "onnxruntime", "pydantic", "/scipy/", "torch", "uvloop"):
        assert heavy not in libraries
    assert b"secret" not in environment


def test_a_decoder_imports_no_web() -> None:
    script = "import sys, service.decoding.worker; print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    listed = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, check=True, env=environment
    )
    modules = {name.split(".")[0] for name in listed.stdout.decode().split()}
    assert "PIL" in modules
    assert not modules & {"fastapi", "starlette", "pydantic", "faiss", "onnxruntime", "scipy"}


async def test_decoders_that_do_not_start_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="do not start"):
        async with DecoderPool(2):
            pass


@pytest.mark.process
def test_it_ends_in_silence_when_the_service_is_killed_before_it_has_heard_it() -> None:
    ours, theirs = socket.socketpair()
    pictures = SharedPixels()
    numbers = [theirs.fileno(), pictures.fileno()]
    settings = {
        "limits": asdict(ImageLimits()),
        "budget": asdict(DecodingBudget()),
        "sandbox": "off",
    }
    header = json.dumps(settings).encode()
    with subprocess.Popen(
        [sys.executable, "-m", "service.decoding.worker", *map(str, numbers)],
        pass_fds=numbers,
        stderr=subprocess.PIPE,
    ) as decoder:
        with ours, theirs:
            ours.sendall(PREFIX.pack(len(header), 0) + header)
            ours.recv(1, socket.MSG_PEEK)  # it has answered; nobody reads that any more
        _, said = decoder.communicate(timeout=TIMEOUT_S)
    pictures.close()
    assert (decoder.returncode, said) == (0, b"")
