"""``vouch-build encoder``: an encoder that was made elsewhere, checked and ready to index with."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from index_builder.commands.index_options import declared
from index_builder.commands.options_class import with_options
from index_builder.encoders.resolve import ENCODERS, file_name
from index_builder.foreign_encoders.choices import Door, Pooling, Precision
from index_builder.progress import console, working
from model_store.bundles.manifest import ENCODER_FILE
from model_store.errors import OutputError, UsageError


@dataclass(frozen=True, slots=True)
class EncoderOptions:
    """Every given option of the command."""

    timm: Annotated[
        str | None, typer.Option(help="A model of timm, or hf-hub:NAME (the extra `timm`).")
    ] = None
    open_clip: Annotated[
        str | None,
        typer.Option(help="The image tower of OpenCLIP's MODEL/PRETRAINED (`open-clip`)."),
    ] = None
    hf: Annotated[
        str | None,
        typer.Option(
            help="A model of transformers: a name on the hub, or a directory (`transformers`). "
            "Code that comes with it is never run."
        ),
    ] = None
    torchvision: Annotated[str | None, typer.Option(help="A model of torchvision.")] = None
    torch: Annotated[
        str | None,
        typer.Option(help="FILE.py:FACTORY, which returns a torch.nn.Module. The file is run."),
    ] = None
    onnx: Annotated[str | None, typer.Option(help="A foreign ONNX file.")] = None
    vectors: Annotated[
        Path | None,
        typer.Option(
            help="None of these: a table of vectors, whose encoder stays where it is. What is "
            "written takes such vectors, and is named by --encoder-name."
        ),
    ] = None
    encoder_name: Annotated[
        str | None, typer.Option(help="With --vectors: the name of what made them.")
    ] = None
    weights: Annotated[
        str | None,
        typer.Option(
            help="A local file of weights; for --torchvision also one of its weight names."
        ),
    ] = None
    preprocess: Annotated[
        Path | None,
        typer.Option(
            help="How images are prepared, as OpenCLIP (preprocess_cfg.json), timm (config.json) "
            "or transformers (preprocessor_config.json) write it. [default: as the library's "
            "model says; for --torch and --onnx, one of these beside the file]"
        ),
    ] = None
    pooling: Annotated[
        Pooling, typer.Option(help="Of tokens or a feature map; default: the model's own.")
    ] = Pooling.default
    prefix_tokens: Annotated[
        int, typer.Option(min=0, help="With --onnx: tokens before the first patch.")
    ] = 0
    output: Annotated[
        str | None, typer.Option(help="With --onnx: the output to take, where there are several.")
    ] = None
    untrained: Annotated[
        bool, typer.Option("--untrained", help="Random weights, to try the way without any.")
    ] = False
    seed: Annotated[int, typer.Option(min=0, help="Of random weights.")] = 0
    reduced_decoding: Annotated[
        bool,
        typer.Option(
            "--reduced-decoding",
            help="Decode large JPEGs at a fraction of their size: up to five times faster, and "
            "other pixels than the library's.",
        ),
    ] = False
    text: Annotated[
        bool,
        typer.Option(
            "--text",
            help="With its text tower, for searches in words: of --open-clip, --hf, or a --torch "
            "module with `text_tower` and `tokenizer` (the extra `text`).",
        ),
    ] = False
    precision: Annotated[
        Precision, typer.Option(help="Of the file; smaller numbers are measured, see the card.")
    ] = Precision.float32
    recall_tolerance: Annotated[
        float,
        typer.Option(min=0, max=1, help="Fall of recall at 1 that smaller numbers may cost."),
    ] = 0.01
    images: Annotated[
        Path | None,
        typer.Option(
            help="A folder of images to compare on; with smaller numbers, of labelled ones, a "
            "sub-folder a label. [default: photographs that come with scikit-learn]"
        ),
    ] = None
    out: Annotated[
        Path | None, typer.Option(help="Directory to write. [default: encoders/<name>]")
    ] = None

    @property
    def door(self) -> tuple[Door, str]:
        """The named library, and its argument.

        Raises
        ------
        ConfigError : none, or several.
        """
        named = [(door, getattr(self, door)) for door in Door if getattr(self, door) is not None]
        if len(named) != 1:
            doors = ", ".join(map(_option, Door))
            if not named:
                raise UsageError(f"Name a model by one of {doors}; or a table by --vectors.")
            given = ", ".join(_option(door) for door, _ in named)
            raise UsageError(f"{given} exclude each other. Give one of {doors}.")
        return named[0]

    def require_consistent(self) -> None:
        """Raise where options contradict each other.

        Raises
        ------
        ConfigError
        """
        if (self.vectors is None) != (self.encoder_name is None):
            raise UsageError("--vectors and --encoder-name need each other. Give both.")
        if self.vectors is not None:
            alone = EncoderOptions(
                vectors=self.vectors, encoder_name=self.encoder_name, out=self.out
            )
            if self != alone:
                raise UsageError(
                    "--vectors only names an encoder: it takes --encoder-name and --out. Remove "
                    "the other options."
                )
            return
        door, _ = self.door
        own = door in {Door.torch, Door.onnx}
        if self.untrained and (self.weights or own):
            raise UsageError(
                "--untrained draws the weights of a library's model. Remove "
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

    The directory that is written is for `index --encoder` and `all --encoder`. Nothing is written
    unless the vectors of real images by the library and by Vouch have a cosine of 0.9999 or more.
    An encoder that is only named (--encoder-name) takes vectors unchanged.
    """
    options.require_consistent()
    if options.vectors is not None and options.encoder_name is not None:
        from index_builder.vectors.table import open_table  # noqa: PLC0415 - slow

        out = options.out or _directory(options.encoder_name)
        if out.exists() and {path.name for path in out.iterdir()} - {ENCODER_FILE}:
            raise OutputError(f"{out} is there already, with other files in it. Name another.")
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
    """Return the directory to write, called like the last part of a model's name."""
    last = re.sub(r"\.(py|onnx)(:.*)?$", "", name.removeprefix("hf-hub:"))
    if Path(name.partition(":")[0]).exists():
        last = Path(last).name
    return ENCODERS / file_name(last)
