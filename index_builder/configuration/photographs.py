"""Makes the configuration of a build of images or vectors from command-line options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from index_builder.configuration.build import BuildConfig, build_config

_OPTIONS = {
    "name": "--name",
    "dataset.path": "--images",
    "dataset.items": "--items",
    "network.encoder": "--encoder",
}


def encoder_config(
    images: Path,
    encoder: Path | str | None = None,
    name: str | None = None,
    *,
    labelled: bool = True,
) -> BuildConfig:
    """Return the configuration of `vouch-build all --images`.

    Parameters
    ----------
    images : folder with a sub-folder for each label. If ``labelled`` is false, any folder of images
        is accepted.
    encoder : see `NetworkConfig.encoder`; None for the built-in encoder.
    name : name of the gallery; None for the folder's name.

    Raises
    ------
    ConfigError : a value is out of range.
    """
    tables: dict[str, Any] = {"dataset": {"kind": "folder", "path": images}}
    if not labelled:
        tables["dataset"]["labels"] = "none"
    if encoder is not None:
        tables["network"] = {"encoder": encoder}
    if name is not None:
        tables["name"] = name
    return build_config(tables, _OPTIONS)


def vectors_config(
    table: Path,
    items: Path | None,
    encoder: Path | str,
    made_by: str | None = None,
    name: str | None = None,
) -> BuildConfig:
    """Return the configuration of `vouch-build all --vectors`.

    Parameters
    ----------
    items : manifest with the fields of each row; None if the table itself has the fields.
    encoder : encoder that takes the vectors.
    made_by : name of the model that produced the vectors; None if ``encoder`` stores this name.
    name : name of the gallery; None for the table's name.

    Raises
    ------
    ConfigError : a value is out of range.
    """
    tables: dict[str, Any] = {
        "dataset": {"kind": "vectors", "path": table, "items": items},
        "network": {"encoder": encoder},
    }
    if made_by is not None:
        tables["description"] = f"{table.name}, encoder {made_by}"
    if name is not None:
        tables["name"] = name
    return build_config(tables, _OPTIONS | {"dataset.path": "--vectors"})
