"""A bundle's description of a gallery in a database."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from model_store.files import json_text


@dataclass(frozen=True, kw_only=True)
class Description:
    """A bundle's description of its gallery in a database.

    Attributes
    ----------
    uri : address of the database that the gallery was written to, without user and password.
    encoder : fingerprint of the encoder.
    n_items, dim : values at the time of the build.
    index : ``type``, search ``parameters``, ``recall_at_10``, and ``n_queries``: the number of
        queries that measured the recall.
    """

    file: ClassVar[str]
    library: ClassVar[str]
    uri: str
    encoder: str
    n_items: int
    dim: int
    index: Mapping[str, Any]

    @property
    def engine(self) -> str:
        """The index and its search parameters, in the notation of the library."""
        parameters = [f"{name}={value}" for name, value in self.index["parameters"].items()]
        return ",".join([f"{self.library} {self.index['type']}", *parameters])

    def save(self, directory: Path) -> None:
        """Write to ``directory``."""
        (directory / self.file).write_text(json_text(asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read what `save` wrote."""
        return cls(**json.loads((directory / cls.file).read_text(encoding="utf-8")))
