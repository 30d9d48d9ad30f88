"""The run directory of a build, which contains the files of all steps."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from index_builder.configuration.build import BuildConfig
from index_builder.configuration.encoder import EncoderConfig
from index_builder.configuration.file import effective_file
from index_builder.configuration.posterior import POST_HOC
from model_store.errors import ConfigError, StepNotReady
from model_store.files import json_text, replacing

TRAINING_REPORT = "training.json"
POSTERIOR_REPORT = "posterior.json"
CONFIG_FILE = "config.toml"

EVALUATION_TABLE = "evaluation.md"
"""File with all results of an evaluation as a Markdown table."""


class Run:
    """The directory in which the steps of `index_builder.pipeline.steps` read and write files.

    ::

        <run>/
          lock                    held by the running command
          config.toml             complete configuration of the last command
          checkpoint.safetensors  training.json     train
          objective.safetensors
          trunk.onnx                                train, for a frozen trunk
          members/<number>/                         train, for an ensemble
          posterior.safetensors   posterior.json    fit
          head.onnx                                 export, for a frozen trunk
          images/                                   all, for a source that is copied
          vectors.sqlite                            cache of embeddings of all steps
          index/                                    index, while it works
          calibration.md                            calibrate
          evaluation.json  evaluation.md            evaluate
          bundle/                                   export, index, calibrate, evaluate
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.checkpoint = directory / "checkpoint.safetensors"
        self.objective = directory / "objective.safetensors"
        self.posterior = directory / "posterior.safetensors"
        self.trunk = directory / "trunk.onnx"
        self.head = directory / "head.onnx"
        self.vectors = directory / "vectors.sqlite"
        self.members = directory / "members"
        self.staging = directory / "bundle"

    def member(self, number: int) -> Run:
        """Return the run of one member of an ensemble; it has the files of one encoder."""
        return Run(self.members / str(number))

    @contextmanager
    def occupied(self, *, to_write: bool = True) -> Iterator[None]:
        """Lock the run directory; under ``torchrun``, only the first process locks it.

        Parameters
        ----------
        to_write : whether write access is required. If write access is not required, a read-only
            directory is used without a lock.

        Raises
        ------
        RunInUse : another process has locked the directory.
        OutputError : the directory cannot be created or written.
        """
        from index_builder.indexing.workdir import occupied  # noqa: PLC0415 - slow

        if _is_first() and (to_write or os.access(self.directory, os.W_OK)):
            with occupied(self.directory):
                yield
        else:
            yield

    def write_config(self, config: BuildConfig) -> None:
        """Write the complete configuration; the build can be repeated with this file."""
        if _is_first():
            self.directory.mkdir(parents=True, exist_ok=True)
            with replacing(self.directory / CONFIG_FILE) as partial:
                partial.write_text(effective_file(config), encoding="utf-8")

    def require(self, path: Path, step: str) -> Path:
        """Return ``path``; if it does not exist, raise an error that names the step to run.

        Raises
        ------
        StepNotReady
        """
        if not path.exists():
            raise StepNotReady(f"{path} is missing. Run `vouch-build {step}` first.")
        return path

    def require_trained(self, config: EncoderConfig) -> Path:
        """Return the checkpoint of the step `train`.

        Raises
        ------
        StepNotReady : the encoder is not trained.
        ConfigError : the encoder was trained with another configuration.
        """
        self.require(self.directory / TRAINING_REPORT, "train")
        then = self.read_json(TRAINING_REPORT)["config"]
        parts = ["dataset", "network", "training", "seed"]
        if not {then["posterior"]["method"], config.posterior.method} <= POST_HOC:
            parts.append("posterior")
        differing = config.changed_since(then)
        changed = [part for part in parts if part in differing]
        if changed:
            raise ConfigError(
                f"{self.directory} was trained with other values of `{'`, `'.join(changed)}` than "
                "the configuration. Run `vouch-build train` again, or set another --run directory."
            )
        return self.checkpoint

    def read_json(self, name: str) -> dict[str, Any]:
        """Read the report of a step."""
        content: dict[str, Any] = json.loads((self.directory / name).read_text(encoding="utf-8"))
        return content

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a report of a step."""
        self.directory.mkdir(parents=True, exist_ok=True)
        write_json(self.directory / name, content)


def _is_first() -> bool:
    """Return whether this process writes files; under ``torchrun``, only the first one writes."""
    return int(os.environ.get("RANK", "0")) == 0


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write ``content`` as formatted JSON, atomically."""
    with replacing(path) as partial:
        partial.write_text(json_text(content), encoding="utf-8")


def forget(*paths: Path) -> None:
    """Remove old results, because a step will rewrite the inputs of these results."""
    for path in paths:
        path.unlink(missing_ok=True)
