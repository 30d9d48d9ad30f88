"""The directory of one build: what each step leaves for the next."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from index_builder.configuration.build import BuildConfig
from index_builder.configuration.file import effective_file
from model_store.errors import StepNotReady
from model_store.files import json_text, replacing

POSTERIOR_REPORT = "posterior.json"
CONFIG_FILE = "config.toml"

EVALUATION_TABLE = "evaluation.md"
"""All numbers of an evaluation, for people."""


@dataclass(frozen=True, slots=True)
class Run:
    """A directory that the steps of `index_builder.pipeline.steps` read from and write to.

    ::

        <run>/
          lock                    held by the command that works here
          config.toml             every key of the build, as the last command understood it
          checkpoint.safetensors  training.json     train
          objective.safetensors
          trunk.onnx                                train, of a trunk that is only read
          members/<number>/                         train, of an ensemble, instead
          posterior.safetensors   posterior.json    fit
          head.onnx                                 export, of such a trunk
          images/                                   all, of a source that is no folder here
          vectors.sqlite                            what was computed of images, by any step
          index/                                    index, while it works
          calibration.md                            calibrate
          evaluation.json  evaluation.md            evaluate
          bundle/                                   export, index, calibrate, evaluate
    """

    directory: Path

    @property
    def checkpoint(self) -> Path:
        """The trained encoder's weights."""
        return self.directory / "checkpoint.safetensors"

    @property
    def objective(self) -> Path:
        """The file with the tensors that the objective learned beside the encoder."""
        return self.directory / "objective.safetensors"

    @property
    def posterior(self) -> Path:
        """The file with the posterior."""
        return self.directory / "posterior.safetensors"

    @property
    def trunk(self) -> Path:
        """The graph of a trunk that nothing trains; see `index_builder.vectors.halves`."""
        return self.directory / "trunk.onnx"

    @property
    def head(self) -> Path:
        """The graph from such a trunk's features to embeddings."""
        return self.directory / "head.onnx"

    @property
    def vectors(self) -> Path:
        """Features and embeddings of images that some step has seen; see `VectorFile`."""
        return self.directory / "vectors.sqlite"

    def member(self, number: int) -> Run:
        """Return the run of an ensemble's member, which is laid out as that of an encoder alone."""
        return Run(self.members / str(number))

    @property
    def members(self) -> Path:
        """The folder of an ensemble's members."""
        return self.directory / "members"

    @property
    def staging(self) -> Path:
        """The bundle in the making; `publish` copies it."""
        return self.directory / "bundle"

    @contextmanager
    def occupied(self, *, to_write: bool = True) -> Iterator[None]:
        """Lock the run directory; of the processes of ``torchrun``, the first stands for all.

        Parameters
        ----------
        to_write : whether it must be possible to write here; who may not only reads, alone or not.

        Raises
        ------
        RunInUse : another process does.
        OutputError : the directory cannot be made, or written to.
        """
        from index_builder.indexing.workdir import occupied  # noqa: PLC0415 - slow

        if _is_first() and (to_write or os.access(self.directory, os.W_OK)):
            with occupied(self.directory):
                yield
        else:
            yield

    def write_config(self, config: BuildConfig) -> None:
        """Write the configuration of the build, as a file that builds the same again."""
        if _is_first():
            self.directory.mkdir(parents=True, exist_ok=True)
            with replacing(self.directory / CONFIG_FILE) as partial:
                partial.write_text(effective_file(config), encoding="utf-8")

    def require(self, path: Path, step: str) -> Path:
        """Return ``path``, or say which step makes it.

        Raises
        ------
        StepNotReady
        """
        if not path.exists():
            raise StepNotReady(f"{path} is missing. Run `vouch-build {step}` first.")
        return path

    def read_json(self, name: str) -> dict[str, Any]:
        """Read a report that a step has written."""
        content: dict[str, Any] = json.loads((self.directory / name).read_text(encoding="utf-8"))
        return content

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a report of a step."""
        self.directory.mkdir(parents=True, exist_ok=True)
        write_json(self.directory / name, content)


def _is_first() -> bool:
    """Return whether this process is the one that writes, among those of ``torchrun``."""
    return int(os.environ.get("RANK", "0")) == 0


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write ``content`` for people and programs, atomically."""
    with replacing(path) as partial:
        partial.write_text(json_text(content), encoding="utf-8")


def forget(*paths: Path) -> None:
    """Remove what stands for a finished step, before what it was made of is written anew."""
    for path in paths:
        path.unlink(missing_ok=True)
