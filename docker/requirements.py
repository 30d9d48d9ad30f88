"""Print what an image installs, as uv.lock has it: ``requirements.py serve milvus``.

Versions and hashes are the lock's; an image installs these before it gets the source, so that a
change of the source installs nothing again. Without the extra `gpu`, ONNX Runtime's CPU build
stands in for its GPU build, which holds 300 MB of CUDA kernels.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from collections.abc import Sequence

TORCH = ("torch==", "torchvision==", "triton==", "cuda-", "nvidia-")
"""Beginnings of the lines of torch and of what PyPI's build of it brings for GPUs."""

OF_THE_HUB = ("huggingface-hub", "hf-xet", "fsspec")
"""What `tokenizers` names to fetch files from the Hub, and does not import for local files."""


def requirements(extras: Sequence[str], *, without_torch: bool = False) -> str:
    """Return a requirements file of the project's own needs and of those of ``extras``.

    Parameters
    ----------
    without_torch : leave out `TORCH`, for who takes a build without CUDA from elsewhere.
    """
    command = ["uv", "export", "--frozen", "--quiet", "--no-header", "--no-annotate"]
    command += ["--no-emit-project", *(f"--extra={extra}" for extra in extras)]
    if "hub" not in extras:
        command += [f"--no-emit-package={name}" for name in OF_THE_HUB]
    exported = subprocess.run(  # noqa: S603 - the arguments are the Dockerfiles'
        command, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    packages = re.split(r"\n(?=\w)", exported)  # the lines of its hashes are indented
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
