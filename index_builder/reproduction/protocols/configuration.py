"""The configuration of a protocol's encoder."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from index_builder.configuration.build import CalibrationConfig
from index_builder.configuration.encoder import EncoderConfig
from index_builder.configuration.section import Section


class ProtocolDataset(Section):
    """The data of a protocol, with its splits and outliers."""

    protocol: str = Field(description="A name of `PROTOCOLS`.")
    path: Path | None = Field(
        None, description="The folder that data sets lie in. [default: VOUCH_DATA_DIR]"
    )
    allow_partial: bool = Field(
        False, description="Take data even where it is not all of the official."
    )
    download: bool = Field(False, description="Fetch what is missing, where torchvision can.")
    validation_share: float = Field(
        0.02, ge=0, lt=1, description="Share of each label's training images that are validation."
    )


class ProtocolConfig(EncoderConfig):
    """An encoder, the data of its protocol, and the calibration of the decision layer."""

    dataset: ProtocolDataset
    calibration: CalibrationConfig = CalibrationConfig()
