"""``vouch-build encoder``: exports and checks an encoder of another library."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import Field
from rich.markup import escape
from rich.table import Table

from index_builder.commands.command_line import Options, with_options
from index_builder.commands.index import declared
from index_builder.encoders import ENCODERS, file_name
from index_builder.foreign_encoders.choices import Door, Pooling, Precision
from index_builder.progress import console, working
from model_store.bundles.manifest import ENCODER_FILE
from model_store.errors import OutputError, UsageError


class EncoderOptions(Options):
    """Options of the command."""

    timm: str | None = None
    """A timm model, or hf-hub:NAME (extra `timm`)."""
    open_clip: str | None = None
    """Image tower of an OpenCLIP model: MODEL/PRETRAINED (extra `open-clip`)."""
    hf: str | None = None
    """A transformers model: a name on the hub, or a directory (extra `transformers`). Code from the
    repository is never run."""
    torchvision: str | None = None
    """A model of torchvision."""
    torch: str | None = None
    """FILE.py:FACTORY; the factory returns a torch.nn.Module. The file is run."""
    onnx: str | None = None
    """A foreign ONNX file."""
    vectors: Path | None = None
    """Instead of a model: a table of vectors. The written encoder takes vectors of this size as
    queries; --encoder-name names the encoder."""
    encoder_name: str | None = None
    """With --vectors: name of the model that produced the vectors."""
    weights: str | None = None
    """A local file of weights; for --torchvision, also a name of torchvision's weights."""
    preprocess: Path | None = None
    """File of the preprocessing, from OpenCLIP (preprocess_cfg.json), timm (config.json) or
    transformers (preprocessor_config.json). [default: the model's preprocessing; for --torch and
    --onnx, a file of this name beside the model]"""
    pooling: Pooling = Pooling.default
    """Pooling of tokens or a feature map; default: the model's own."""
    prefix_tokens: int = Field(0, ge=0)
    """With --onnx: number of tokens before the first patch."""
    output: str | None = None
    """With --onnx: name of the output to use, if the graph has several outputs."""
    untrained: bool = False
    """Use random weights, to test the export."""
    seed: int = Field(0, ge=0)
    """Seed of random weights."""
    reduced_decoding: bool = False
    """Decode large JPEGs at reduced size: up to five times faster, but the pixels differ from the
    pixels that the library decodes."""
    text: bool = False
    """Also export the text tower, for text queries. Needs --open-clip, --hf, or a --torch module
    with `text_tower` and `tokenizer` (extra `text`)."""
    precision: Precision = Precision.float32
    """Number format of the weights. For formats other than float32, the command measures the loss
    of recall."""
    recall_tolerance: float = Field(0.01, ge=0, le=1)
    """Maximum loss of recall at 1 that a lower precision may cause."""
    images: Path | None = None
    """Folder of images for the comparison. A lower precision needs labelled images, one sub-folder
    for each label. [default: photographs from scikit-learn]"""
    out: Path | None = None
    """Directory to write. [default: encoders/<name>]"""

    @property
    def door(self) -> tuple[Door, str]:
        """The chosen library, and the name of the library's model.

        Raises
        ------
        UsageError : no library is chosen, or several libraries are chosen.
        """
        named = [(door, getattr(self, door)) for door in Door if getattr(self, door) is not None]
        if len(named) != 1:
            doors = ", ".join(map(_option, Door))
            if not named:
                raise UsageError(f"Name a model with one of {doors}, or a table with --vectors.")
            given = ", ".join(_option(door) for door, _ in named)
            raise UsageError(f"{given} exclude each other. Give one of {doors}.")
        return named[0]

    def require_consistent(self) -> None:
        """Refuse options that contradict each other.

        Raises
        ------
        UsageError
        """
        if (self.vectors is None) != (self.encoder_name is None):
            raise UsageError("--vectors and --encoder-name need each other. Give both.")
        if self.vectors is not None:
            alone = EncoderOptions(
                vectors=self.vectors, encoder_name=self.encoder_name, out=self.out
            )
            if self != alone:
                raise UsageError(
                    "--vectors takes only --encoder-name and --out. Remove the other options."
                )
            return
        door, _ = self.door
        own = door in {Door.torch, Door.onnx}
        if self.untrained and (self.weights or own):
            raise UsageError(
                "--untrained draws random weights for a library's model. Remove "
                + (_option(door) if own else "--weights")
                + ", or --untrained."
            )
        if self.weights and own:
            raise UsageError(f"{_option(door)} has its weights in the file. Remove --weights.")
        if door is not Door.onnx and (self.output or self.prefix_tokens):
            raise UsageError("--output and --prefix-tokens need --onnx. Remove them.")
        if self.text and door not in {Door.open_clip, Door.hf, Door.torch}:
            raise UsageError("--text needs --open-clip, --hf or --torch. Remove it.")


@with_options(EncoderOptions)
def encoder_command(options: EncoderOptions) -> None:
    """Export an encoder of another library, and compare it with that library.

    Use the written directory with `index --encoder` and `all --encoder`. For each real image, the
    library's vector is compared with Vouch's vector. If the cosine of the two vectors is below
    0.9999, the export fails. With --encoder-name, no model is exported: the encoder has only a
    name, and takes vectors unchanged.
    """
    options.require_consistent()
    if options.vectors is not None and options.encoder_name is not None:
        from index_builder.vectors.table import open_table  # noqa: PLC0415 - slow

        out = options.out or _directory(options.encoder_name)
        if out.exists() and {path.name for path in out.iterdir()} - {ENCODER_FILE}:
            raise OutputError(f"{out} already exists and has other files. Name another directory.")
        print(declared(out, open_table(options.vectors), options.encoder_name).parent)
        return
    from index_builder.foreign_encoders.bundle import write_encoder  # noqa: PLC0415 - slow
    from index_builder.foreign_encoders.doors import DOORS, EncoderChoices  # noqa: PLC0415
    from index_builder.foreign_encoders.parity import MOST_IMAGES, parity_images  # noqa: PLC0415

    door, name = options.door
    choices = EncoderChoices(
        options.weights,
        options.preprocess,
        options.pooling,
        options.prefix_tokens,
        options.output,
        options.untrained,
        options.seed,
        options.reduced_decoding,
        options.text,
    )
    small = options.precision is not Precision.float32
    with working(f"exporting {name}"):
        images = None
        if options.images is not None:
            images = parity_images(options.images, MOST_IMAGES * (8 if small else 1))
        source = DOORS[door](name, choices)
        written = write_encoder(
            options.out or _directory(name),
            source,
            images or parity_images(None),
            options.precision,
            options.recall_tolerance,
        )
    table = Table("encoder", "")
    for row in written.rows:
        table.add_row(row[0], escape(row[1]))
    console.print(table)
    print(written.directory)


def _option(door: Door) -> str:
    return f"--{door.replace('_', '-')}"


def _directory(name: str) -> Path:
    """Return the directory to write, named after the last part of the model's name."""
    last = re.sub(r"\.(py|onnx)(:.*)?$", "", name.removeprefix("hf-hub:"))
    if Path(name.partition(":")[0]).exists():
        last = Path(last).name
    return ENCODERS / file_name(last)
