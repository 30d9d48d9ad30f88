"""Finds the files of an encoder; writes one for vectors that another system computes.

Galleries, calibrations and caches identify the encoder by this file, as for any other encoder.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from index_builder.output import writing
from model_store.bundles.directory import locate
from model_store.bundles.manifest import ENCODER_FILE, MANIFEST_FILE, read_manifest
from model_store.encoder.contract import METADATA_KEY, OUTPUT_NAMES, VECTORS_NAME, EncoderMetadata
from model_store.encoder.text import TEXT_ENCODER_FILE, TOKENIZER_FILE, open_text_encoder
from model_store.encoder.vector_input import VectorInput
from model_store.errors import BundleMismatch, BundleNotFound
from model_store.files import replacing


def find_encoder(path: Path) -> Path:
    """Return the encoder file at ``path``: a file, a bundle, or a directory of bundles.

    Raises
    ------
    BundleNotFound : there is no encoder file at ``path``.
    BundleTampered : the bundle of the encoder was changed.
    """
    if path.is_file() and path.suffix == ".onnx":
        return path
    if (path / ENCODER_FILE).is_file() and not (path / MANIFEST_FILE).exists():
        return path / ENCODER_FILE
    try:
        directory = locate(path)
    except (BundleNotFound, NotADirectoryError) as error:
        raise BundleNotFound(
            f"There is no encoder at {path}: wanted a file of `vouch-build encoder`, a "
            "bundle, a directory of bundles, or an .onnx file of one of these."
        ) from error
    read_manifest(directory)
    return directory / ENCODER_FILE


def text_files(encoder: Path, fingerprint: str) -> list[Path]:
    """Return the files of the text tower in the folder of an encoder; empty if there is none.

    Parameters
    ----------
    fingerprint : fingerprint of the encoder.

    Raises
    ------
    BundleMismatch : the text tower belongs to another encoder.
    """
    text = open_text_encoder(encoder.parent, threads=1)
    if text is None:
        return []
    if text.metadata.image_encoder != fingerprint:
        raise BundleMismatch(
            f"{TEXT_ENCODER_FILE} beside {encoder.name} is the text tower of the encoder "
            f"{text.metadata.image_encoder[:12]}, not of this encoder, {fingerprint[:12]}. Create "
            f"both again with `vouch-build encoder --text`, or remove {TEXT_ENCODER_FILE}."
        )
    return [encoder.parent / name for name in (TEXT_ENCODER_FILE, TOKENIZER_FILE)]


_OPSET, _IR_VERSION = 17, 8
"""Versions of the ONNX operators and of the ONNX format. The versions are fixed, so that the
fingerprint of the file does not depend on the installed version of onnx."""


def write_declared_encoder(path: Path, vectors: VectorInput) -> None:
    """Write an encoder that takes ``vectors`` and returns mean, variance and features.

    If the vectors have no variance, the encoder returns zero as the variance. If the vectors have
    no features, the encoder returns the mean as the features.

    Raises
    ------
    OutputError : the disk is full, or the directory is not writable.
    """
    sizes = vectors.sizes
    given = [name for name, size in zip(OUTPUT_NAMES, sizes, strict=True) if size]
    mean, variance, features = OUTPUT_NAMES
    nodes = [helper.make_node("Split", [VECTORS_NAME, "sizes"], given, axis=1)]
    if not vectors.with_variance:
        nodes.append(helper.make_node("Sub", [mean, mean], [variance]))
    if vectors.n_features is None:
        nodes.append(helper.make_node("Identity", [mean], [features]))
    lengths = vectors.dim, vectors.dim, vectors.n_features or vectors.dim
    graph = helper.make_graph(
        nodes,
        "declared",
        [helper.make_tensor_value_info(VECTORS_NAME, TensorProto.FLOAT, ["n", *vectors.shape])],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size])
            for name, size in zip(OUTPUT_NAMES, lengths, strict=True)
        ],
        [numpy_helper.from_array(np.array([size for size in sizes if size], np.int64), "sizes")],
    )
    opset = helper.make_opsetid("", _OPSET)
    model = helper.make_model(
        graph, opset_imports=[opset], ir_version=_IR_VERSION, producer_name="vouch"
    )
    posterior = "given" if vectors.with_variance else "deterministic"
    helper.set_model_props(model, {METADATA_KEY: EncoderMetadata(vectors, posterior).to_json()})
    with writing(f"the encoder in {path.parent}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            onnx.save(model, partial)
