"""Print the locked requirements of a Docker image: ``requirements.py serve milvus``.

Versions and hashes come from ``uv.lock``. An image installs the requirements before the source is
copied, so that Docker caches this layer when only the source changes. Without the extra `gpu`, the
CPU build of ONNX Runtime replaces its GPU build, which has 300 MB of CUDA kernels.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from collections.abc import Sequence

TORCH = ("torch==", "torchvision==", "triton==", "cuda-", "nvidia-")
"""Prefixes of the lines of PyTorch, and of the GPU packages that its PyPI build requires."""

OF_THE_HUB = ("huggingface-hub", "hf-xet", "fsspec")
"""Packages that `tokenizers` requires, but imports only to fetch files from the Hub."""


def requirements(extras: Sequence[str], *, without_torch: bool = False) -> str:
    """Return a requirements file for the project and its ``extras``.

    Parameters
    ----------
    without_torch : omit the packages in `TORCH`, if the image gets a build without CUDA elsewhere.
    """
    command = ["uv", "export", "--frozen", "--quiet", "--no-header", "--no-annotate"]
    command += ["--no-emit-project", *(f"--extra={extra}" for extra in extras)]
    if "hub" not in extras:
        command += [f"--no-emit-package={name}" for name in OF_THE_HUB]
    exported = subprocess.run(  # noqa: S603 - the arguments are the Dockerfiles'
        command, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    packages = re.split(r"\n(?=\w)", exported)  # one package each; lines with hashes are indented
    if "gpu" not in extras:
        packages = [
            re.sub(r"^(onnxruntime==[^ ]+) ;[^\\\n]*", r"\1 ", one)  # on every machine
            for one in packages
            if not one.startswith("onnxruntime-gpu==")
        ]
    return "\n".join(one for one in packages if not (without_torch and one.startswith(TORCH)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("extras", nargs="*")
    parser.add_argument("--without-torch", action="store_true")
    options = parser.parse_args()
    print(requirements(options.extras, without_torch=options.without_torch))
