"""Defaults that depend on other keys, for configuration files and command lines.

============================  ===================================================================
key that is left out          its value
============================  ===================================================================
``dataset.kind``              ``vectors`` for a `path` with the suffix of a table of vectors, else
                              ``folder``
``name``                      the name of the folder or table; else the kind
``description``               folder or table, and the encoder
``network.encoder``           the built-in encoder, for a folder without `trunk`
``network.trunk``             ``onnx`` with an `encoder`
``network.frozen``            true with an `encoder`
``network.last_layer``        ``whitening`` on a frozen trunk
``network.embedding_dim``     for a whitened layer: 256, or fewer if the trunk has fewer features
``training.epochs``           0 if the last layer is the whitening of pretrained features, unless
                              [training] or ``posterior.method`` requires training
``outliers``                  60 digits with a folder, none with vectors
============================  ===================================================================

All other keys have the default value in their pydantic model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from index_builder.configuration.posterior import POST_HOC
from index_builder.configuration.schema import Section

ENCODER_IN_THE_BOX = "mobilenet_v2"
"""The built-in encoder; see `index_builder.encoders`."""

WHITENED_DIM = 256
"""Dimensions of a whitened last layer. A trunk with fewer features gets one dimension for each
feature."""

N_FEATURES: Mapping[str, int] = {
    "small_cnn": 9216,
    "colour_cnn": 1024,
    "resnet18": 512,
    "resnet50": 2048,
    "mobilenet_v2": 1280,
    "mobilenet_v3_large": 960,
    "googlenet": 1024,
    "vit_b_16": 768,
}
"""Number of features of each trunk and of the built-in encoder."""

VECTOR_SUFFIXES = frozenset({".npy", ".npz", ".parquet", ".arrow"})
"""File name suffixes of tables of vectors."""

_OUTLIERS: Mapping[str, Mapping[str, Any]] = {
    # All 900 digits would take a trunk at 224 pixels as long as the photographs.
    "folder": {"calibration": "digits", "evaluation": "digits", "n_images": 60},
    "vectors": {"calibration": "none", "evaluation": "none"},
}

_NOT_OF_TRAINING = frozenset({"epochs", "margin", "device", "precision"})
"""Keys of [training] that do not require training. For example, the Laplace posterior also uses
`margin`, and the computation of features also uses `device`."""


def of_build(fields: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the tables of a build with the defaults that depend on other keys.

    Invalid values stay in the tables, because the models refuse them later.

    Parameters
    ----------
    folder : the folder that relative paths start from.
    """
    dataset, network, outliers = (
        _table(fields, name) for name in ("dataset", "network", "outliers")
    )
    if dataset.get("path") is not None:
        dataset.setdefault("kind", _kind(dataset))
    kind = str(dataset.get("kind"))
    if kind == "folder" and "trunk" not in network and network.get("encoder") is None:
        network["encoder"] = ENCODER_IN_THE_BOX
    path = folder / Path(str(dataset.get("path") or ".")).expanduser()
    filled = {"name": _name(dataset, path.absolute()), **fields}
    if kind in _OUTLIERS:
        outliers = {**_OUTLIERS[kind], **outliers}
        filled.setdefault("description", _description(path.absolute(), network))
    return of_encoder(_with(filled, dataset=dataset, network=network, outliers=outliers))


def of_encoder(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return tables with the defaults that depend on the tables of the encoder."""
    network, training, posterior = (
        _table(fields, name) for name in ("network", "training", "posterior")
    )
    network = of_network(network)
    pretrained = network.get("encoder") is not None or network.get("weights") is not None
    method = str(posterior.get("method", "laplace"))
    is_closed_form = network.get("last_layer") == "whitening" and pretrained
    if is_closed_form and method in POST_HOC and not set(training) - _NOT_OF_TRAINING:
        training.setdefault("epochs", 0)
    return _with(fields, network=network, training=training)


def of_network(network: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table [network] with the defaults that depend on other keys of the table."""
    filled = dict(network)
    if filled.get("encoder") is not None:
        filled.setdefault("trunk", "onnx")
    if filled.get("trunk") == "onnx":
        filled.setdefault("frozen", True)
    if filled.get("frozen") is True:
        filled.setdefault("last_layer", "whitening")
    if filled.get("last_layer") == "whitening":
        network = filled.get("encoder") or filled.get("trunk", "small_cnn")
        # The number of features of another encoder is known only when the encoder is opened.
        most = N_FEATURES.get(str(network))
        filled.setdefault("embedding_dim", most and min(WHITENED_DIM, most))
    return filled


def gallery_name(called: str) -> str:
    """Return the gallery name of a folder; invalid characters become hyphens."""
    name = re.sub(r"[^a-z0-9._-]+", "-", called.lower()).strip("-._")
    return name[:63] or "photographs"


def _table(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the explicitly set keys of a table, with their values."""
    value = fields.get(name)
    if isinstance(value, Section):
        return {key: getattr(value, key) for key in value.model_fields_set}
    return dict(value) if isinstance(value, Mapping) else {}


def _with(fields: Mapping[str, Any], **tables: dict[str, Any]) -> dict[str, Any]:
    """Return ``fields`` updated with the ``tables`` that are not empty."""
    filled = dict(fields)
    for name, table in tables.items():
        if table and isinstance(filled.get(name, table), Mapping | Section):
            filled[name] = table
    return filled


def _kind(dataset: Mapping[str, Any]) -> str:
    suffix = Path(str(dataset["path"])).suffix.lower()
    return "vectors" if suffix in VECTOR_SUFFIXES or dataset.get("items") else "folder"


def _name(dataset: Mapping[str, Any], path: Path) -> str:
    kind = dataset.get("kind")
    if dataset.get("path") is None:
        return str(kind or "gallery")
    return gallery_name(path.stem if kind == "vectors" else path.name)


def _description(path: Path, network: Mapping[str, Any]) -> str:
    """Return a one-line description of a gallery: source and encoder."""
    encoder = Path(str(network.get("encoder") or network.get("trunk") or "small_cnn"))
    return f"{path.name}, encoder {encoder.stem if encoder.suffix == '.onnx' else encoder.name}"
