"""The benchmark of GPUs runs where there is none, and says of each row what it would need."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from model_store.encoder.contract import Embeddings
from model_store.errors import ProviderUnavailable
from tests.benchmarks.gpu.encoders import compared, encoder_rows
from tests.benchmarks.gpu.rows import Row, row, timed
from tests.benchmarks.gpu.serving import serving_row

no_gpu = pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a GPU here")


@pytest.fixture
def bench_gpu() -> ModuleType:
    """The benchmark, which imports torch."""
    from tests.benchmarks import bench_gpu

    return bench_gpu


def test_a_row_that_cannot_be_measured_says_why_and_the_others_go_on() -> None:
    def missing() -> Row:
        raise ProviderUnavailable("There is none.")

    def broken() -> Row:
        raise RuntimeError("out of memory")

    assert row({"a": 1}, missing) == {"a": 1, "not_run": "needs a GPU: There is none."}
    assert row({"a": 2}, broken) == {"a": 2, "failed": "RuntimeError: out of memory"}
    assert row({"a": 3}, lambda: {"b": 4}) == {"a": 3, "b": 4}


def test_a_rate_is_of_images() -> None:
    calls: list[None] = []
    found = timed(lambda: calls.append(None), 10, 0.01)
    assert len(calls) > 3
    assert found["images_per_s"] == pytest.approx(10_000 / found["p50_ms"], rel=2)
    assert found["p50_ms"] <= found["p95_ms"]


def test_parity_tells_the_largest_difference() -> None:
    ones = np.ones((2, 4), np.float32)
    off = ones + np.array([[0], [0.5]], np.float32) * np.eye(4, dtype=np.float32)[0]
    found = compared(Embeddings(off, ones, ones), Embeddings(ones, 2 * ones, ones))
    assert found["mean_off"] == pytest.approx(0.5)
    assert found["variance_off"] == pytest.approx(0.5)
    assert found["features_off"] == 0
    assert found["least_cosine"] == pytest.approx(4.5 / (2 * (1.5**2 + 3) ** 0.5))


@no_gpu
def test_an_encoder_is_measured_on_the_processor_and_its_rows_on_a_gpu_say_what_they_need(
    digits_bundle: Path, bench_gpu: ModuleType
) -> None:
    path, photographs = digits_bundle / "encoder.onnx", bench_gpu.taken()[:2]
    found = list(encoder_rows(path, "float32", "cpu", (1, 2), photographs, 0.01))
    ways = [(one["way"], one.get("batch")) for one in found]
    assert ways == [
        ("parity", None),
        *[(way, batch) for batch in (1, 2) for way in ("roofline", "encoder", "decoded")],
    ]
    assert found[0]["least_cosine"] == pytest.approx(1)
    assert found[0]["mean_off"] == 0
    assert all(one["images_per_s"] > 0 for one in found[1:])
    assert all(one["over_roofline"] > 0 for one in found if one["way"] in {"encoder", "decoded"})
    for provider in ("cuda", "tensorrt"):
        found = list(encoder_rows(path, "float32", provider, (1, 2), photographs, 0.01))
        assert len(found) == 3  # of a batch that has no roofline nothing else is asked
        assert all(one["not_run"].startswith("needs a GPU") for one in found)


@no_gpu
@pytest.mark.slow
def test_fits_and_training_steps_are_measured_where_torch_can() -> None:
    from tests.benchmarks.gpu.fitting import Sizes, fitting_rows

    tiny = Sizes(200, 16, 8, 20, batch=4, network="small_cnn")
    found = {
        (one["kind"], one["device"], one.get("precision")): one for one in fitting_rows(tiny, 0.01)
    }
    assert found["fit", "cpu", None]["seconds"] > 0
    for precision in ("float32", "mixed"):
        assert found["training_step", "cpu", precision]["images_per_s"] > 0
        assert "needs a GPU" in found["training_step", "cuda", precision]["not_run"]


@no_gpu
@pytest.mark.process
def test_the_service_is_measured_over_its_encoder(
    digits_bundle: Path, bench_gpu: ModuleType
) -> None:
    photographs = bench_gpu.taken()[:4]
    found = serving_row(digits_bundle.parent, "cpu", 2, photographs, 8, 0.05)
    assert found["failed"] == 0
    assert found["over_encoder"] == pytest.approx(
        found["service_images_per_s"] / found["encoder_images_per_s"]
    )
    found = serving_row(digits_bundle.parent, "cuda", 2, photographs, 8, 0.05)
    assert found["not_run"].startswith("needs a GPU")


@pytest.mark.process  # importing the benchmark looks for libraries with ldconfig
def test_the_report_is_there_after_each_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bench_gpu: ModuleType
) -> None:
    report = tmp_path / "build" / "gpu.json"
    seen = []

    def rows(_: object) -> list[Row]:
        made: list[Row] = [
            {"kind": "encoder"},
            {
                "kind": "service",
                "provider": "cuda",
                "precision": "float16",
                "batch": 64,
                "over_encoder": 0.8,
            },
        ]

        def one_by_one() -> object:
            for one in made:
                yield one
                seen.append(json.loads(report.read_text()))

        return one_by_one()  # type: ignore[return-value]

    monkeypatch.setattr(bench_gpu, "rows", rows)
    found = bench_gpu.measure(bench_gpu.QUICK, report)
    assert [len(one["rows"]) for one in seen] == [1, 2]
    assert found["gpu_service_over_encoder_fp16_b64"] == 0.8
    assert seen[1] == found
