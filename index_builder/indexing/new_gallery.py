"""Publishes an empty gallery with an encoder; its items are added while the gallery is served."""

from __future__ import annotations

import shutil
from pathlib import Path

from index_builder.configuration.environment import signing
from index_builder.indexing.assemble import describe
from index_builder.output import writing
from index_builder.vectors.encoder_file import find_encoder, text_files
from model_store.bundles.bundle import open_parts
from model_store.bundles.directory import bundle_ids
from model_store.bundles.empty import no_features
from model_store.bundles.manifest import ENCODER_FILE
from model_store.bundles.publish import publish
from model_store.encoder.onnx import OnnxEncoder
from model_store.errors import OutputError
from model_store.files import work_folder
from model_store.gallery import write_faiss_parts
from model_store.gallery.opening import index_description


def new_gallery(bundles: Path, name: str, encoder: Path, description: str = "") -> Path:
    """Publish an empty gallery; return its bundle.

    Parameters
    ----------
    bundles : directory of bundles to create; it must not have bundles yet.
    name : name of the gallery.
    encoder : the encoder, see `find_encoder`. Its file is copied.

    Raises
    ------
    OutputError : the directory already has bundles, or cannot be written.
    BundleNotFound : there is no encoder.
    EncoderError : the encoder cannot be used.
    WriteRefused : the bundle needs a signature, and there is no key.
    SigningKeyError : the key file is missing or invalid.
    """
    if bundle_ids(bundles):
        raise OutputError(
            f"{bundles} already has bundles. Name another gallery, or another directory with "
            "--bundles."
        )
    signing().key_for(bundles)  # fails before the encoder is opened
    file = find_encoder(encoder)
    opened = OnnxEncoder(file, "cpu", threads=1)
    with writing(f"the gallery in {bundles}"):
        bundles.mkdir(parents=True, exist_ok=True)
        with work_folder(bundles, ".new-") as place:
            staging = place / "bundle"
            staging.mkdir()
            shutil.copyfile(file, staging / ENCODER_FILE)
            for path in text_files(file, opened.fingerprint):
                shutil.copyfile(path, staging / path.name)
            write_faiss_parts(staging, (0, opened.dim), (), opened.fingerprint)
            no_features(opened.n_features).save(staging)
            index = index_description(staging)
            manifest = describe(open_parts(staging, "cpu", threads=1), index, name, description)
            return publish(staging, manifest, bundles, keep=False, signing=signing())
