"""The configuration of an encoder for a protocol."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from index_builder.configuration.build import CalibrationConfig
from index_builder.configuration.encoder import EncoderConfig
from index_builder.configuration.section import Section


class ProtocolDataset(Section):
    """The table `[dataset]` of a protocol."""

    protocol: str = Field(description="A name of `PROTOCOLS`.")
    path: Path | None = Field(
        None, description="The folder of data sets. [default: VOUCH_DATA_DIR]"
    )
    allow_partial: bool = Field(False, description="Accept incomplete data.")
    download: bool = Field(False, description="Download missing data, if torchvision can.")
    validation_share: float = Field(
        0.02,
        ge=0,
        lt=1,
        description="Share of each label's training images that is used for validation.",
    )


class ProtocolConfig(EncoderConfig):
    """Configuration of an encoder, the data of a protocol, and the calibration."""

    dataset: ProtocolDataset
    calibration: CalibrationConfig = CalibrationConfig()
