"""Print what some extras of pyproject.toml require: ``requirements.py service gpu``.

An image installs these before it gets the source, so that a change of the source installs nothing
again. Without the extra `gpu`, ONNX Runtime's CPU build stands in for its GPU build, which holds
300 MB of CUDA kernels.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path


def requirements(extras: Sequence[str]) -> list[str]:
    """Requirements of the project and of ``extras``."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    core: list[str] = project["dependencies"]
    if "gpu" not in extras:
        runtime = [line.partition(";")[0] for line in core if line.startswith("onnxruntime>")]
        core = [line for line in core if not line.startswith("onnxruntime")] + runtime
    optional = project["optional-dependencies"]
    return core + [line for extra in extras for line in optional[extra]]


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1:])))
