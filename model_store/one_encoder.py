"""Checks that all parts of a retriever were made with the same encoder."""

from __future__ import annotations

from model_store.decision import Calibration
from model_store.encoder.contract import Encoder, TextEncoder
from model_store.errors import BundleMismatch
from model_store.gallery import Gallery


def require_one_encoder(
    encoder: Encoder,
    gallery: Gallery,
    calibration: Calibration | None,
    text: TextEncoder | None,
    text_calibration: Calibration | None,
) -> None:
    """Refuse a gallery, calibration or text encoder that was made with another encoder.

    Raises
    ------
    BundleMismatch
    """
    made_with = [("gallery", gallery.encoder_fingerprint, encoder.fingerprint)]
    if calibration is not None:
        made_with.append(("calibration", calibration.encoder_fingerprint, encoder.fingerprint))
    if text is not None:
        made_with.append(("text encoder", text.metadata.image_encoder, encoder.fingerprint))
    if text_calibration is not None:
        own = "" if text is None else text.fingerprint
        made_with.append(("calibration of texts", text_calibration.encoder_fingerprint, own))
    for part, fingerprint, wanted in made_with:
        if fingerprint != wanted:
            raise BundleMismatch(
                f"The {part} was made with encoder {fingerprint[:12]}, the encoder here is "
                f"{wanted[:12] or 'none'}. Run `vouch-build index` and "
                "`vouch-build calibrate` with this encoder."
            )
