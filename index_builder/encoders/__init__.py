"""Finds or exports the encoder that a build names; contains the built-in encoder.

`mobilenet_v2` writes the built-in encoder as an ONNX file, without torch. `ORIGIN.md` names the
origin and the licence of its weights.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from difflib import get_close_matches
from pathlib import Path

from index_builder.configuration.build import BuildConfig
from index_builder.configuration.defaults import ENCODER_IN_THE_BOX, WHITENED_DIM
from index_builder.foreign_encoders.card import is_encoder, replacing_encoder, write_card
from index_builder.foreign_encoders.choices import Door
from index_builder.output import writing
from index_builder.progress import note
from model_store.bundles.manifest import ENCODER_FILE
from model_store.errors import ConfigError
from model_store.files import lock_between_processes
from model_store.installation import installed_version

ENCODERS = Path("encoders")
"""Directory of exported encoders, below the working directory."""

WEIGHTS_SHA256 = "b8385e2ad30f6789e50a7c1873275495bcef4cf55da7dd6b5f2b5028e23da301"
"""The SHA-256 of the weights of the built-in encoder."""

LIBRARIES: Mapping[str, Door] = {
    "timm": Door.timm,
    "open_clip": Door.open_clip,
    "transformers": Door.hf,
    "torchvision": Door.torchvision,
}
"""The libraries that a specification may name."""

FORMS = (
    "timm:NAME, open_clip:MODEL/PRETRAINED, transformers:NAME, torchvision:NAME or "
    "torchvision:NAME/WEIGHTS"
)
"""The forms in which a library's encoder can be specified, for messages and help."""


def resolve_encoder(spec: str | None, directory: Path = ENCODERS) -> Path:
    """Return the path of an encoder, for `find_encoder`.

    An encoder of a library is exported to ``directory`` once, and then reused. The built-in encoder
    is written if its file is missing or damaged.

    Parameters
    ----------
    spec : one of `FORMS`, or the path of an encoder; `ENCODER_IN_THE_BOX` or None for the built-in
        encoder.
    directory : directory of exported encoders.

    Raises
    ------
    ConfigError : the library or path does not exist, or the library is not installed.
    EncoderSourceError, WeightsError : the library cannot load the model or its weights.
    ParityError : the exported encoder disagrees with the library.
    OutputError : the encoder cannot be written to ``directory``.
    """
    if spec in {None, ENCODER_IN_THE_BOX}:
        origin = _origin_in_the_box()
        return _written(directory / ENCODER_IN_THE_BOX, origin, _write_encoder_in_the_box)
    assert spec is not None  # noqa: S101 - None is handled above
    require_form(spec)
    if Path(spec).expanduser().exists():
        return Path(spec).expanduser()
    library, _, name = spec.partition(":")
    door = LIBRARIES[library.replace("-", "_")]
    model, weights = name, None
    if door is Door.torchvision:
        model, _, given = name.partition("/")
        weights = given or None
    target = directory / file_name(f"{library}-{model}-{Path(weights or '').stem}")

    def write(path: Path) -> None:
        _export(path, spec, door, model, weights)

    if Path(model).expanduser().is_dir():  # the directory may have changed
        write(target)
        return target
    return _written(target, {"spec": spec}, write)


def require_form(spec: str | None) -> None:
    """Refuse a specification that is neither an existing path nor one of `FORMS`.

    Raises
    ------
    ConfigError
    """
    if spec in {None, ENCODER_IN_THE_BOX} or Path(spec or "").expanduser().exists():
        return
    library, colon, name = (spec or "").partition(":")
    if library.replace("-", "_") not in LIBRARIES or not name:
        raise ConfigError(_unknown(spec or "", library if colon else ""))


def file_name(name: str) -> str:
    """Return a directory name for the encoder ``name``."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:120] or "encoder"


def _written(target: Path, origin: Mapping[str, str], write: Callable[[Path], None]) -> Path:
    """Write the encoder if ``target`` has no encoder of this ``origin``; return ``target``."""
    if is_encoder(target, origin):
        return target
    with writing(f"the encoder in {target}"):
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = lock_between_processes(target.with_name(f".{target.name}.lock"))
        lock.acquire()
    try:
        if not is_encoder(target, origin):  # another process may have written it
            write(target)
    finally:
        lock.release()
    return target


def _write_encoder_in_the_box(target: Path) -> None:
    """Write the built-in encoder to ``target``; takes 0.2 seconds."""
    from index_builder.encoders import mobilenet_v2  # noqa: PLC0415 - onnx, which is slow

    content = mobilenet_v2.encoder_file(mobilenet_v2.read_weights())
    with replacing_encoder(target) as staging:
        (staging / ENCODER_FILE).write_bytes(content)
        write_card(
            staging,
            {
                "origin": _origin_in_the_box(),
                "input": {"preprocessing": asdict(mobilenet_v2.PREPROCESSING)},
                "dim": mobilenet_v2.N_FEATURES,
            },
        )


def _origin_in_the_box() -> dict[str, str]:
    """Return the origin of the built-in encoder: its weights, and the release that writes it."""
    return {
        "name": ENCODER_IN_THE_BOX,
        "weights": WEIGHTS_SHA256,
        "precision": "int8",
        "vouch": installed_version(),
    }


def _export(target: Path, spec: str, door: Door, model: str, weights: str | None) -> None:
    """Fetch a library's model and write it to ``target``."""
    from index_builder.foreign_encoders.bundle import write_encoder  # noqa: PLC0415 - slow
    from index_builder.foreign_encoders.doors import DOORS, EncoderChoices  # noqa: PLC0415
    from index_builder.foreign_encoders.parity import parity_images  # noqa: PLC0415

    source = DOORS[door](model, EncoderChoices(weights))
    note(f"Exporting {spec} to {target}, once")
    origin = {**source.origin, "spec": spec}
    write_encoder(target, replace(source, origin=origin), parity_images(None))


def _unknown(spec: str, library: str) -> str:
    """Return the error message for an unknown specification."""
    close = get_close_matches(library, LIBRARIES, 1) if library else ["timm"]
    meant = f" Did you mean {close[0]}:{spec.rpartition(':')[2]}?" if close else ""
    return (
        f"There is no encoder {spec!r}: it is neither a path nor one of {FORMS}.{meant} Leave out "
        "--encoder for the built-in encoder."
    )


def with_encoder(config: BuildConfig) -> BuildConfig:
    """Return the build with the path of its encoder file; exports the encoder if needed.

    Raises
    ------
    VouchError : the encoder does not exist; see `resolve_encoder`.
    """
    spec = config.network.encoder
    if spec is None:
        return config
    place = resolve_encoder(spec).absolute()
    network = config.network.model_copy(update={"encoder": str(place)})
    return with_dimensions(config.model_copy(update={"network": network}))


def as_named(build: BuildConfig, config: BuildConfig) -> BuildConfig:
    """Return ``build``, but replace the encoder's path with the encoder's name from ``config``."""
    named = {"encoder": config.network.encoder}
    return build.model_copy(update={"network": build.network.model_copy(update=named)})


def with_dimensions(config: BuildConfig) -> BuildConfig:
    """Return the build with its embedding dimension, if the encoder file exists."""
    network = config.network
    if network.embedding_dim is not None or not Path(str(network.encoder)).exists():
        return config
    from index_builder.vectors.encoder_file import encoder_on_cpu, find_encoder  # noqa: PLC0415

    encoder = encoder_on_cpu(find_encoder(Path(str(network.encoder))))
    counted = {"embedding_dim": min(WHITENED_DIM, encoder.n_features)}
    return config.model_copy(update={"network": network.model_copy(update=counted)})
