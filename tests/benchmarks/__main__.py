"""``make bench``: every benchmark in one run, into build/bench.json.

The HTTP benchmark wants the Fashion-MNIST bundle. Where bundles/fashion-mnist has none, the single
epoch that `bench_fit` trains is made into one, which changes no shape and no time; it needs the
images (VOUCH_DATA_DIR, or a download) and some minutes. The benchmarks of throughput, indexing,
the first hour and a busy machine want photographs (VOUCH_DATA_DIR), of which they build a bundle
once. Left out, because they take an hour and print tables: posteriors, decision,
label-free, roll-up, review, unknown; because it installs another server: load; because it wants a
GPU: gpu; and because they build galleries of a million items and more: gallery, ten-million,
filters, tenants. `make bench NAME=load` runs one.
"""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

from index_builder.datasets import load_splits
from index_builder.pipeline.build import (
    calibrate_step,
    evaluate_step,
    index_step,
    publish_step,
)
from index_builder.pipeline.run import Run
from index_builder.pipeline.steps import export_step
from tests.benchmarks import (
    bench_busy,
    bench_curvature,
    bench_decoding,
    bench_first_hour,
    bench_fit,
    bench_http,
    bench_indexing,
    bench_objectives,
    bench_overhead,
    bench_prediction,
    bench_throughput,
)
from tests.benchmarks.measured import record_figures

BUILD = Path("build")
RUN = BUILD / "run"
BUNDLES = Path("bundles/fashion-mnist")


def main() -> None:
    """Run, print, write."""
    BUILD.mkdir(exist_ok=True)
    results: dict[str, Any] = {"meta": _meta()}
    results |= bench_curvature.measure()
    results |= bench_prediction.measure()
    results |= bench_decoding.measure()
    results |= bench_fit.measure(RUN)
    results |= bench_objectives.measure()
    bundle = _fashion_bundle()
    results |= bench_http.measure(bundle)
    results |= bench_overhead.measure(bundle)
    results["meta"]["left_out"] = [
        "posteriors",
        "decision",
        "label-free",
        "gallery",
        "ten-million",
        "gpu",
        "filters",
        "tenants",
        "roll-up",
        "review",
        "unknown",
        "load",
    ]
    if "VOUCH_DATA_DIR" in os.environ:
        results |= bench_throughput.measure()
        results |= bench_indexing.measure()
        results |= bench_busy.measure(bench_throughput.BUNDLES)
        results |= bench_first_hour.measure()
    else:
        results["meta"]["left_out"].append(
            "bench_throughput.py, bench_indexing.py, bench_busy.py, bench_first_hour.py: "
            "VOUCH_DATA_DIR is not set"
        )
    text = json.dumps(results, indent=1, sort_keys=True)
    (BUILD / "bench.json").write_text(text + "\n", encoding="utf-8")
    print(text)
    record_figures("speed", results, globals(), "make bench")


def _fashion_bundle() -> Path:
    """The built bundle; or one of the encoder that `bench_fit` has just trained."""
    if (BUNDLES / "CURRENT").exists():
        return BUNDLES
    config, run = bench_fit.one_epoch(), Run(RUN)
    export_step(config, run, load_splits(config))
    for step in (index_step, calibrate_step, evaluate_step):
        step(config, run)
    return publish_step(config, run, BUILD / "bundles").parent


def _meta() -> dict[str, Any]:
    return {
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "http_images": bench_http.N_IMAGES,
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


if __name__ == "__main__":
    main()
