"""Runs in memory that stays: here the processor's own, by the same calls as a GPU's.

No GPU took part: what is tested is that batches do not see each other's memory, and the options
that ONNX Runtime is given.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from model_store.encoder import onnx as encoder_module
from model_store.encoder.contract import OUTPUT_NAMES, Encoder
from model_store.encoder.onnx import OnnxEncoder, providers_of
from model_store.encoder.runs import MOST_SIZES, BoundRuns
from model_store.errors import EncoderContractError, ProviderUnavailable
from model_store.machine import PROVIDERS, Provider
from tests.laws.encoder_laws import EncoderLaws


def images(n: int, seed: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def session(digits_bundle: Path) -> onnxruntime.InferenceSession:
    content = (digits_bundle / "encoder.onnx").read_bytes()
    return onnxruntime.InferenceSession(content, providers=[PROVIDERS["cpu"]])


@pytest.fixture
def bound(session: onnxruntime.InferenceSession) -> BoundRuns:
    shapes = {output.name: output.shape[1] for output in session.get_outputs()}
    return BoundRuns(session, "cpu", {name: shapes[name] for name in OUTPUT_NAMES})


def expected(
    session: onnxruntime.InferenceSession, given: NDArray[np.uint8]
) -> list[NDArray[np.float32]]:
    found: list[NDArray[np.float32]] = session.run(list(OUTPUT_NAMES), {"images": given})
    return found


def test_they_answer_as_a_run_with_arrays_does(
    session: onnxruntime.InferenceSession, bound: BoundRuns
) -> None:
    """In any order of sizes; more of them than have memory of their own; and not in one piece."""
    sizes = [1, 4, 2, 4, 1, 8, 16, 4, 32, 1]
    assert len(set(sizes)) > MOST_SIZES
    for seed, n in enumerate(sizes):
        given = images(2 * n, seed)[::2]
        for ours, theirs in zip(bound.run("images", given), expected(session, given), strict=True):
            assert ours.tobytes() == theirs.tobytes()


def test_an_answer_stays_what_it_was(
    session: onnxruntime.InferenceSession, bound: BoundRuns
) -> None:
    first = bound.run("images", images(2, 0))
    bound.run("images", images(2, 1))
    for ours, theirs in zip(first, expected(session, images(2, 0)), strict=True):
        assert ours.tobytes() == theirs.tobytes()


def test_threads_get_their_own_answers(
    session: onnxruntime.InferenceSession, bound: BoundRuns
) -> None:
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda seed: bound.run("images", images(3, seed)), range(40)))
    for seed, answer in enumerate(found):
        for ours, theirs in zip(answer, expected(session, images(3, seed)), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


class TestAnEncoderWithMemoryOfItsOwn(EncoderLaws):
    """As on a GPU, but that the memory is the processor's."""

    @pytest.fixture
    def encoder(self, digits_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> Encoder:
        monkeypatch.setattr(encoder_module, "_DEVICES", {PROVIDERS["cpu"]: "cpu"})
        runs = BoundRuns.run
        self.n_runs = 0

        def counted(
            bound: BoundRuns, name: str, given: NDArray[np.uint8]
        ) -> list[NDArray[np.float32]]:
            self.n_runs += 1
            return list(runs(bound, name, given))

        monkeypatch.setattr(BoundRuns, "run", counted)
        return OnnxEncoder(digits_bundle / "encoder.onnx", "cpu", threads=1)

    def test_it_answers_to_the_bit_as_one_without(
        self, encoder: Encoder, digits_bundle: Path
    ) -> None:
        other = OnnxEncoder(digits_bundle / "encoder.onnx", "cpu", threads=1)
        ours = encoder.encode(images(6, 0), 2)
        assert self.n_runs == 3
        theirs = other.encode(images(6, 0), 2)
        for name in ("mean", "variance", "features"):
            assert getattr(ours, name).tobytes() == getattr(theirs, name).tobytes()


@pytest.mark.parametrize(
    ("chosen", "names"),
    [("cpu", ["cpu"]), ("cuda", ["cuda", "cpu"]), ("tensorrt", ["tensorrt", "cuda", "cpu"])],
)
def test_each_provider_has_those_behind_it(chosen: Provider, names: list[Provider]) -> None:
    assert [name for name, _ in providers_of(chosen)] == [PROVIDERS[name] for name in names]


def test_cuda_rounds_as_a_cpu_does() -> None:
    for chosen in ("cuda", "tensorrt"):
        options = dict(providers_of(chosen))
        assert options["CUDAExecutionProvider"] == {"use_tf32": "0"}


def test_an_encoder_that_cannot_be_recorded_says_what_to_do(
    digits_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise RuntimeError("nodes have not been partitioned")

    monkeypatch.setattr(onnxruntime, "InferenceSession", refused)
    with pytest.raises(ProviderUnavailable, match=r"not been partitioned.*VOUCH_CUDA_GRAPHS"):
        OnnxEncoder(digits_bundle / "encoder.onnx", "cpu", cuda_graphs=True)
    with pytest.raises(EncoderContractError, match="partitioned"):
        OnnxEncoder(digits_bundle / "encoder.onnx", "cpu")


def test_graphs_are_recorded_where_they_are_asked_for_and_known() -> None:
    asked = dict(providers_of("cuda", cuda_graphs=True))
    assert asked["CUDAExecutionProvider"] == {"use_tf32": "0", "enable_cuda_graph": "1"}
    asked = dict(providers_of("tensorrt", cuda_graphs=True))
    assert asked["TensorrtExecutionProvider"] == {"trt_cuda_graph_enable": "1"}
    assert asked["CUDAExecutionProvider"] == {"use_tf32": "0"}
    assert providers_of("cpu", cuda_graphs=True) == [("CPUExecutionProvider", {})]
