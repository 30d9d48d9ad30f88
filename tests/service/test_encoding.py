"""The encoder in a process of its own: the same numbers, and a death that costs little."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from index_builder.datasets.small_images import digits
from model_store.bundles.manifest import ENCODER_FILE
from model_store.encoder.onnx import OnnxEncoder
from model_store.errors import EncoderContractError, EncoderStopped, EncodingFailed
from service.encoding.process import ENCODE_TIMEOUT_S, EncoderProcess
from tests.laws.encoder_laws import EncoderLaws
from tests.support.waiting import TIMEOUT_S


@pytest.fixture(scope="module")
def encoder(digits_bundle: Path) -> Iterator[EncoderProcess]:
    running = EncoderProcess(digits_bundle / ENCODER_FILE, "cpu", 1)
    yield running
    running.close()


def images(n: int, encoder: EncoderProcess) -> NDArray[np.uint8]:
    preprocessing = encoder.metadata.preprocessing
    shape = (n, preprocessing.height, preprocessing.width, 3)
    return np.random.default_rng(3).integers(0, 256, shape, dtype=np.uint8)


class TestItIsAnEncoder(EncoderLaws):
    @pytest.fixture
    def encoder(self, encoder: EncoderProcess) -> EncoderProcess:
        return encoder


def test_it_gives_the_very_bits_of_the_encoder_in_this_process(
    encoder: EncoderProcess, digits_bundle: Path
) -> None:
    here = OnnxEncoder(digits_bundle / ENCODER_FILE, "cpu", 1)
    for name in ("fingerprint", "metadata", "provider", "placement", "dim", "n_features"):
        assert getattr(encoder, name) == getattr(here, name)
    asked = images(5, encoder)
    ours, theirs = encoder.encode(asked), here.encode(asked)
    for name in ("mean", "variance", "features"):
        assert getattr(ours, name).tobytes() == getattr(theirs, name).tobytes()


def test_several_batches_on_several_threads_give_the_bits_of_one(digits_bundle: Path) -> None:
    one = OnnxEncoder(digits_bundle / ENCODER_FILE, "cpu", 1)
    encoder = EncoderProcess(digits_bundle / ENCODER_FILE, "cpu", 2)
    asked = digits().at(range(16)).prepared(one.metadata.preprocessing)
    with closing(encoder):
        ours, theirs = encoder.encode(asked, 1), one.encode(asked, 1)
    for name in ("mean", "variance", "features"):
        assert getattr(ours, name).tobytes() == getattr(theirs, name).tobytes()


def test_what_it_refuses_it_survives(encoder: EncoderProcess) -> None:
    pid = encoder.pid
    with pytest.raises(EncodingFailed, match="cannot embed"):
        encoder.encode(np.zeros((1, 2, 3), dtype=np.uint8))
    encoder.encode(images(1, encoder))
    assert encoder.pid == pid


def test_killed_at_work_it_says_so_and_answers_again(
    encoder: EncoderProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = encoder.encode(images(1, encoder))
    killed, receive = encoder.pid, encoder._receive

    def killed_meanwhile(timeout_s: float) -> Any:
        os.kill(killed, signal.SIGKILL)  # the images have been sent
        return receive(timeout_s)

    os.kill(killed, signal.SIGSTOP)  # so that it is at work when it is killed
    with monkeypatch.context() as patched:
        patched.setattr(encoder, "_receive", killed_meanwhile)
        with pytest.raises(EncoderStopped, match="Send the image again"):
            encoder.encode(images(1, encoder))
    assert encoder.encode(images(1, encoder)).mean.tobytes() == wanted.mean.tobytes()
    assert encoder.pid != killed


def test_killed_while_idle_it_costs_nobody_anything(encoder: EncoderProcess) -> None:
    os.kill(encoder.pid, signal.SIGKILL)
    # Until it has ended with all its threads; the first of them is a zombie before the others are.
    os.waitid(os.P_PID, encoder.pid, os.WEXITED | os.WNOWAIT)
    encoder.encode(images(1, encoder))


def test_one_that_does_not_start_again_has_stopped(
    digits_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = EncoderProcess(digits_bundle / ENCODER_FILE, "cpu", 1)
    os.kill(encoder.pid, signal.SIGKILL)
    os.waitid(os.P_PID, encoder.pid, os.WEXITED | os.WNOWAIT)
    with monkeypatch.context() as patch:
        patch.setattr(encoder, "_file", lambda: digits_bundle / "gone.onnx")
        with pytest.raises(EncoderStopped, match="does not start again"):
            encoder.encode(images(1, encoder))

    def no_memory(*_: object, **__: object) -> None:
        raise BlockingIOError("no process can be started")

    with monkeypatch.context() as patch:
        patch.setattr("service.encoding.process.subprocess.Popen", no_memory)
        for _ in range(2):
            with pytest.raises(EncoderStopped, match="does not start again"):
                encoder.encode(images(1, encoder))
    encoder.encode(images(1, encoder))
    encoder.close()


def test_one_that_hangs_is_ended(encoder: EncoderProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.encoding.process.ENCODE_TIMEOUT_S", 0.2)
    hanging = encoder.pid
    os.kill(hanging, signal.SIGSTOP)
    with pytest.raises(EncoderStopped):
        encoder.encode(images(1, encoder))
    assert not psutil.pid_exists(hanging)
    monkeypatch.undo()
    encoder.encode(images(1, encoder))


def test_signals_to_the_whole_group_do_not_end_it(encoder: EncoderProcess) -> None:
    pid = encoder.pid
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(pid, number)
    encoder.encode(images(1, encoder))
    assert encoder.pid == pid


@pytest.mark.process
def test_what_cannot_be_opened_is_said_as_if_it_were_here(tmp_path: Path) -> None:
    from onnx import TensorProto, helper, save

    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [value],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    save(model, tmp_path / "other.onnx")
    with pytest.raises(EncoderContractError, match=r"other\.onnx"):
        EncoderProcess(tmp_path / "other.onnx", "cpu", 1)


def test_closed_it_is_gone(digits_bundle: Path) -> None:
    encoder = EncoderProcess(digits_bundle / ENCODER_FILE, "cpu", 1)
    pid = encoder.pid
    encoder.close()
    assert not psutil.pid_exists(pid)
    with pytest.raises(EncoderStopped):
        encoder.encode(np.zeros((1, 8, 8, 3), dtype=np.uint8))


def test_closing_does_not_wait_for_one_that_hangs(digits_bundle: Path) -> None:
    encoder = EncoderProcess(digits_bundle / ENCODER_FILE, "cpu", 1)
    os.kill(encoder.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(encoder.encode, images(1, encoder))
        time.sleep(0.2)
        encoder.close()
        with pytest.raises(EncoderStopped):
            waiting.result(timeout=ENCODE_TIMEOUT_S / 2)


def test_it_imports_nothing_of_the_web(encoder: EncoderProcess) -> None:
    """Such imports would multiply the time it takes to be back."""
    loaded = Path(f"/proc/{encoder.pid}/maps").read_text()
    assert "onnxruntime" in loaded
    assert "pydantic_core" not in loaded


PARENT = """
import sys, time
from pathlib import Path
from service.encoding.process import EncoderProcess
if __name__ == "__main__":
    print(EncoderProcess(Path(sys.argv[1]), "cpu", 1).pid, flush=True)
    time.sleep(60)
"""


def test_it_ends_with_a_parent_that_is_killed(digits_bundle: Path, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    command = [sys.executable, str(script), str(digits_bundle / ENCODER_FILE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        assert child.wait(TIMEOUT_S) is None or not child.is_running()
