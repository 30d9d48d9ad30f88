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
        None, description="The folder of data sets. [default: VOUCH_DATA_DIR]"
    )
    allow_partial: bool = Field(False, description="Accept incomplete data.")
    download: bool = Field(False, description="Download missing data, if torchvision can.")
    validation_share: float = Field(
        0.02, ge=0, lt=1, description="Share of each label's training images that are validation."
    )


class ProtocolConfig(EncoderConfig):
    """An encoder, the data of its protocol, and the calibration of the decision layer."""

    dataset: ProtocolDataset
    calibration: CalibrationConfig = CalibrationConfig()
