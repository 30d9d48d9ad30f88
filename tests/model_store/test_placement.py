"""Where an encoder's nodes run: read from real profiles of the CPU, and from made up ones of a GPU.

The events of a GPU have the form that ONNX Runtime writes; no GPU took part in these tests.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import onnxruntime
import pytest

from model_store.encoder import onnx as encoder_module
from model_store.encoder.onnx import OnnxEncoder, require_provider, running_provider
from model_store.encoder.runs import (
    Placement,
    ProviderPart,
    placement_of,
    profile_first_run,
    run_profiled,
)
from model_store.errors import EncoderContractError, ProviderUnavailable
from model_store.machine import PROVIDERS, Provider

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
BLANK = {"images": np.zeros((1, 32, 32, 3), dtype=np.uint8)}


def profiled_session(bundle: Path, directory: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    # As they stand in the file: optimised graphs have fewer, with names of their own.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    profile_first_run(options, directory)
    return onnxruntime.InferenceSession(
        (bundle / "encoder.onnx").read_bytes(), options, providers=[CPU]
    )


def ran(name: str, provider: str, us: int, op: str = "Conv") -> dict[str, Any]:
    """The event of a node that ran."""
    args = {"op_name": op, "provider": provider, "node_index": "1"}
    return {"cat": "Node", "name": f"{name}_kernel_time", "dur": us, "ts": 9, "args": args}


class TestARealProfile:
    def test_every_node_of_the_file_ran_on_the_cpu(
        self, digits_bundle: Path, tmp_path: Path
    ) -> None:
        graph = onnx.load(digits_bundle / "encoder.onnx").graph
        placement = run_profiled(profiled_session(digits_bundle, tmp_path), BLANK)
        assert set(placement) == {CPU}
        # Constants are no nodes that run.
        wanted = sum(node.op_type != "Constant" for node in graph.node)
        assert (placement[CPU].nodes, placement[CPU].share) == (wanted, 1.0)
        assert 0 < placement[CPU].seconds < 60

    def test_afterwards_the_session_answers_as_any_other(
        self, digits_bundle: Path, tmp_path: Path
    ) -> None:
        session = profiled_session(digits_bundle, tmp_path)
        run_profiled(session, BLANK)
        [written] = tmp_path.iterdir()
        size = written.stat().st_size
        again = session.run(None, BLANK)
        assert written.stat().st_size == size
        fresh = profiled_session(digits_bundle, tmp_path).run(None, BLANK)
        for ours, theirs in zip(again, fresh, strict=True):
            assert ours.tobytes() == theirs.tobytes()

    def test_one_that_is_not_profiled_says_so(self, digits_bundle: Path) -> None:
        content = (digits_bundle / "encoder.onnx").read_bytes()
        session = onnxruntime.InferenceSession(content, providers=[CPU])
        with pytest.raises(ValueError, match="without a profile"):
            run_profiled(session, BLANK)


class TestAProfileOfAGpu:
    EVENTS: tuple[dict[str, Any], ...] = (
        {"cat": "Session", "name": "model_run", "dur": 900, "ts": 1, "args": {}},
        ran("conv_1", CUDA, 50),
        ran("conv_2", CUDA, 30),
        ran("gemm", CUDA, 20, op="Gemm"),
        ran("shape", CPU, 5, op="Shape"),
        ran("Memcpy", CUDA, 400, op="MemcpyFromHost"),
        {"cat": "Node", "name": "conv_1_fence_before", "dur": 1, "ts": 1, "args": {}},
        {"cat": "Kernel", "name": "cudnn_kernel_time", "dur": 70, "ts": 1, "args": {"stream": 7}},
    )

    def test_nodes_are_counted_once_and_copies_not_at_all(self) -> None:
        placement = placement_of(self.EVENTS)
        assert list(placement) == [CUDA, CPU]
        on_gpu, on_cpu = placement[CUDA], placement[CPU]
        assert (on_gpu.nodes, on_gpu.share) == (3, 0.75)
        assert (on_cpu.nodes, on_cpu.share) == (1, 0.25)
        assert [on_gpu.seconds, on_cpu.seconds] == pytest.approx([100e-6, 5e-6])

    def test_one_that_says_nothing_of_nodes_is_not_taken_for_an_empty_one(self) -> None:
        events = [event for event in self.EVENTS if not event["name"].endswith("_kernel_time")]
        with pytest.raises(ValueError, match="no node with its provider"):
            placement_of([*events, ran("copy", CUDA, 1, op="MemcpyToHost")])


class TestWhatReallyRuns:
    ON_GPU: ClassVar[Placement] = {
        CUDA: ProviderPart(1, 0.1, 1.0),
        CPU: ProviderPart(9, 0.9, 1.0),
    }
    ON_CPU: ClassVar[Placement] = {CPU: ProviderPart(9, 1.0, 1.0)}

    def test_it_is_the_first_that_ran_a_node(self) -> None:
        assert running_provider([CUDA, CPU], self.ON_GPU) == CUDA
        assert running_provider([CUDA, CPU], self.ON_CPU) == CPU
        assert running_provider([CPU], None) == CPU

    def test_a_gpu_that_runs_no_node_is_refused(self) -> None:
        provider = running_provider([CUDA, CPU], self.ON_CPU)
        with pytest.raises(ProviderUnavailable, match=r"no node .*CPUExecutionProvider.*`cpu`"):
            require_provider("cuda", provider, self.ON_CPU)

    def test_so_is_one_of_which_nothing_is_known(self) -> None:
        with pytest.raises(ProviderUnavailable, match="does not show"):
            require_provider("cuda", running_provider([CUDA, CPU], None), None)

    def test_one_that_runs_is_not(self) -> None:
        require_provider("cuda", running_provider([CUDA, CPU], self.ON_GPU), self.ON_GPU)

    def test_on_the_cpu_nothing_is_profiled(self, digits_bundle: Path) -> None:
        assert OnnxEncoder(digits_bundle / "encoder.onnx", "cpu").placement is None


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or Path("/dev/nvidiactl").exists(),
    reason="needs a machine whose CUDA provider cannot start",
)
@pytest.mark.skipif(
    CUDA not in onnxruntime.get_available_providers(), reason="ONNX Runtime was built without CUDA"
)
class TestACudaProviderThatFallsBack:
    """On a machine without a GPU ONNX Runtime answers from the CPU, and the profile shows it."""

    def test_asked_for_it_fails_the_start(self, digits_bundle: Path) -> None:
        with pytest.raises(ProviderUnavailable, match=r"no node .*running: CPUExecutionProvider"):
            OnnxEncoder(digits_bundle / "encoder.onnx", "cuda")

    def test_chosen_by_itself_it_is_named_for_what_it_is(
        self, digits_bundle: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(encoder_module, "choose_provider", lambda *_: "cuda")
        encoder = OnnxEncoder(digits_bundle / "encoder.onnx", "auto")
        assert encoder.provider == CPU
        assert encoder.placement is not None
        assert encoder.placement[CPU].share == 1.0
        on_cpu = OnnxEncoder(digits_bundle / "encoder.onnx", "cpu")
        images = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
        assert encoder.encode(images).mean.tobytes() == on_cpu.encode(images).mean.tobytes()

    def test_a_broken_file_is_still_refused_for_what_is_broken(
        self, digits_bundle: Path, tmp_path: Path
    ) -> None:
        file = onnx.load(digits_bundle / "encoder.onnx")
        del file.metadata_props[:]
        onnx.save(file, tmp_path / "broken.onnx")
        with pytest.raises(EncoderContractError, match="metadata"):
            OnnxEncoder(tmp_path / "broken.onnx", "cuda")


@pytest.mark.parametrize("name", ["tensorrt", "openvino", "coreml"])
def test_a_provider_that_is_not_offered_is_refused_with_what_is(
    digits_bundle: Path, name: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CPU])
    with pytest.raises(
        ProviderUnavailable, match=rf"{PROVIDERS[name]} was requested, .* only {CPU}"
    ):
        OnnxEncoder(digits_bundle / "encoder.onnx", name)


def test_the_profile_leaves_no_file_behind(
    digits_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(encoder_module, "choose_provider", lambda *_: "cuda")
    placement = OnnxEncoder(digits_bundle / "encoder.onnx", "auto").placement
    assert placement is not None
    assert list(tmp_path.iterdir()) == []
