"""``make bench``: every benchmark in one run, into build/bench.json.

The HTTP benchmark wants the Fashion-MNIST bundle. Where bundles/fashion-mnist has none, one is
built with a single epoch of training, which changes no shape and no time; it needs the images
(VOUCH_DATA_DIR, or a download) and some minutes.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import bench_curvature
import bench_http

BUILD = Path("build")
BUNDLES = Path("bundles/fashion-mnist")


def main() -> None:
    """Run, print, write."""
    BUILD.mkdir(exist_ok=True)
    results: dict[str, Any] = {"meta": _meta()}
    results |= bench_http.measure(_fashion_bundle())
    results |= bench_curvature.measure()
    text = json.dumps(results, indent=1, sort_keys=True)
    (BUILD / "bench.json").write_text(text + "\n", encoding="utf-8")
    print(text)


def _fashion_bundle() -> Path:
    if (BUNDLES / "CURRENT").exists():
        return BUNDLES
    built = BUILD / "bench-bundles"
    if not (built / "CURRENT").exists():
        source = resources.files("index_builder") / "configs" / "fashion-mnist.toml"
        text = source.read_text("utf-8")
        epochs = tomllib.loads(text)["training"]["epochs"]
        config = BUILD / "fashion-mnist-one-epoch.toml"
        config.write_text(text.replace(f"epochs = {epochs}", "epochs = 1"), encoding="utf-8")
        command = [sys.executable, "-m", "index_builder", "all", "--config", str(config)]
        command += ["--run", str(BUILD / "bench-run"), "--bundles", str(built)]
        subprocess.run(command, check=True)
    return built


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
