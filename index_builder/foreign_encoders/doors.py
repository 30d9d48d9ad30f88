"""The sources of encoders and their options. Libraries are imported at their first use.

A model is fetched from the Hugging Face Hub. If the Hub is unreachable, this fails within seconds.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from index_builder.foreign_encoders.bundle import EncoderSource
from index_builder.foreign_encoders.choices import Door, InputFormat, Pooling, read_preprocess_file
from index_builder.foreign_encoders.parity import TextSource, require_telling
from index_builder.storage.web import Probe
from model_store.encoder.contract import EncoderMetadata
from model_store.encoder.onnx import OnnxEncoder, reason_of
from model_store.errors import ConfigError, EncoderSourceError, VouchError
from model_store.installation import how_to_install

if TYPE_CHECKING:
    from index_builder.foreign_encoders.torch_modules import ForeignNetwork


_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_ENDPOINT = "https://huggingface.co"


class HubModel:
    """A model that a library fetches from the hub.

    Parameters
    ----------
    name : the model's name.
    is_local : True if nothing has to be fetched.
    """

    def __init__(self, name: str, *, is_local: bool) -> None:
        self._name, self._is_local = name, is_local
        is_set = (os.environ.get(one, "").lower() in {"1", "on", "yes", "true"} for one in _OFFLINE)
        self._offline = any(is_set)
        self._probe = None
        if not (is_local or self._offline):
            self._probe = Probe(os.environ.get("HF_ENDPOINT", _ENDPOINT))

    def require_any(self) -> None:
        """Fail early if the hub does not answer and the local cache is empty.

        Call this method before the imports of torch and of the library, which take seconds.

        Raises
        ------
        EncoderSourceError
        """
        if self._probe is None or self._probe.answers():
            return
        from huggingface_hub import constants  # noqa: PLC0415 - comes with the libraries

        if not any(Path(constants.HF_HUB_CACHE).glob("models--*")):
            raise self._refusal()

    @contextmanager
    def fetched(self) -> Iterator[None]:
        """Let the library fetch a model in this context; turn off log messages and useless retries.

        If the hub does not answer, the model comes from the local cache.

        Raises
        ------
        EncoderSourceError : the model is not in the cache, and the hub does not answer.
        """
        from huggingface_hub import constants  # noqa: PLC0415 - the library has imported it

        disabled, offline = logging.root.manager.disable, constants.HF_HUB_OFFLINE
        logging.disable(logging.ERROR)
        if self._probe is not None and not self._probe.answers():
            constants.HF_HUB_OFFLINE = True
        try:
            yield
        except EncoderSourceError as error:
            if self._is_local or not constants.HF_HUB_OFFLINE or not _is_of_the_hub(error):
                raise
            raise self._refusal() from error
        finally:
            constants.HF_HUB_OFFLINE = offline
            logging.disable(disabled)

    def _refusal(self) -> EncoderSourceError:
        why = "HF_HUB_OFFLINE is set"
        if self._probe is not None:
            why = f"there is no network, or {self._probe.url} does not answer"
        return EncoderSourceError(
            f"Cannot fetch {self._name!r}: {why}, and the model is not in the local cache of the "
            "hub. Give a local file or directory instead. Or fetch the model into the cache "
            "(HF_HOME), and set HF_HUB_OFFLINE=1."
        )


def _is_of_the_hub(error: BaseException) -> bool:
    """Return whether an error comes from huggingface_hub, or from missing files."""
    found: BaseException | None = error
    while found is not None:
        of_the_hub = type(found).__module__.partition(".")[0] == "huggingface_hub"
        if of_the_hub or isinstance(found, OSError):
            return True
        found = found.__cause__ or found.__context__
    return False


EXTRAS = {
    "timm": "timm",
    "open_clip": "open-clip",
    "transformers": "transformers",
    "tokenizers": "text",
}
"""For each module, the name of Vouch's optional extra that installs this module."""

_REPOSITORY = re.compile(r"[\w.-]*\w[\w.-]*(/[\w.-]+)?")
"""Pattern for names of repositories on the Hugging Face Hub. Absolute paths do not match."""

PREPROCESS_FILES = ("preprocess_cfg.json", "preprocessor_config.json", "config.json")
"""Names of preprocessing files. Preprocessing files are searched for in the folder of the model and
in the parent folder."""


@dataclass(frozen=True, slots=True)
class EncoderChoices:
    """The user's options for an encoder of a library.

    Attributes
    ----------
    weights : a file, or a name of torchvision's weights.
    preprocess : the preprocessing file. If None, the file is searched for.
    pooling, n_prefix, output : see `index_builder.foreign_encoders.onnx_graphs`.
    untrained : whether to use random weights.
    seed : seed of the random weights.
    reduced_decoding : whether to decode large JPEGs at reduced size.
    text : whether to export the text tower, too.
    """

    weights: str | None = None
    preprocess: Path | None = None
    pooling: Pooling = Pooling.default
    n_prefix: int = 0
    output: str | None = None
    untrained: bool = False
    seed: int = 0
    reduced_decoding: bool = False
    text: bool = False

    @property
    def brings_weights(self) -> bool:
        """True if no weights have to be fetched: the weights are in a file, or random."""
        return self.untrained or self.weights is not None

    def input_format(self, beside: Path) -> InputFormat:
        """Read the preprocessing from the given file, or search for a file.

        The file is searched for in the folder of the model file ``beside``, and in the parent
        folder.

        Raises
        ------
        ConfigError : there is no preprocessing file.
        EncoderSourceError : the file cannot be read.
        """
        if self.preprocess is not None:
            return self.decoded(read_preprocess_file(self.preprocess))
        for folder in (beside.parent, beside.resolve().parent.parent):
            for name in PREPROCESS_FILES:
                if (folder / name).is_file():
                    return self.decoded(read_preprocess_file(folder / name))
        raise ConfigError(
            "The preprocessing of the network is unknown. Give `--preprocess FILE`: OpenCLIP's "
            "preprocess_cfg.json, timm's config.json, or preprocessor_config.json of transformers."
        )

    def decoded(self, found: InputFormat) -> InputFormat:
        """Return the input format with the requested decoding."""
        if not self.reduced_decoding:
            return found
        return replace(found, preprocessing=replace(found.preprocessing, decoding="reduced"))


Open = Callable[[str, EncoderChoices], EncoderSource]


def timm_source(name: str, choices: EncoderChoices) -> EncoderSource:
    """Open a model of timm."""
    hub = HubModel(name, is_local=choices.brings_weights and ":" not in name)
    module = _library("timm", "classifiers", hub)
    weights = None if choices.weights is None else _file(choices.weights)
    with hub.fetched():
        return _of_torch(partial(module.timm_network, name, weights), choices)


def open_clip_source(name: str, choices: EncoderChoices) -> EncoderSource:
    """Open the image tower of a model of OpenCLIP."""
    names_weights = "/" in name and not choices.brings_weights
    hub = HubModel(name, is_local=not (names_weights or ":" in name))
    module = _library("open_clip", "open_clip_models", hub)
    weights = None if choices.weights is None else _file(choices.weights)
    with hub.fetched():
        return _of_torch(partial(module.open_clip_network, name, weights), choices)


def transformers_source(name: str, choices: EncoderChoices) -> EncoderSource:
    """Open a model of transformers."""
    if choices.weights is not None:
        raise ConfigError("--hf takes a directory that includes the weights. Drop --weights.")
    hub = HubModel(name, is_local=Path(name).is_dir() or not _REPOSITORY.fullmatch(name))
    module = _library("transformers", "transformers_models", hub)
    with hub.fetched():
        return _of_torch(partial(module.transformers_network, name), choices)


def torchvision_source(name: str, choices: EncoderChoices) -> EncoderSource:
    """Open a model of torchvision."""
    module = _library("torchvision", "classifiers")
    return _of_torch(partial(module.torchvision_network, name, choices.weights), choices)


def torch_source(place: str, choices: EncoderChoices) -> EncoderSource:
    """Open a torch module from the user's file."""
    module = _library("torch", "torch_modules")
    input_format = choices.input_format(Path(place.rpartition(":")[0]))
    return _exported(module.torch_network(place, input_format), choices)


def onnx_source(place: str, choices: EncoderChoices) -> EncoderSource:
    """Open a foreign ONNX graph."""
    graphs = _library("onnx", "onnx_graphs")
    path = _file(place)
    graph = graphs.read_graph(path, choices.output, choices.pooling, choices.n_prefix)
    input_format = choices.input_format(path)
    graphs.require_size(graph, input_format)
    reference = graphs.graph_reference(graph, input_format)
    require_telling(reference, input_format.preprocessing)

    def write(target: Path, pixels: NDArray[np.uint8]) -> None:
        dim = len(reference(Image.fromarray(pixels[0])))
        model = graphs.wrapped(graph, input_format, dim)
        target.write_bytes(model.SerializeToString(deterministic=True))
        _require_any_batch(target, pixels)

    origin = {"door": "onnx", "name": path.name, "graph_sha256": _sha256(path)}
    return EncoderSource(write, reference, input_format, origin)


DOORS: dict[Door, Open] = {
    Door.timm: timm_source,
    Door.open_clip: open_clip_source,
    Door.hf: transformers_source,
    Door.torchvision: torchvision_source,
    Door.torch: torch_source,
    Door.onnx: onnx_source,
}


def _of_torch(create: Callable[..., ForeignNetwork], choices: EncoderChoices) -> EncoderSource:
    """Create a library's model. Random weights come from a separate random generator."""
    import torch  # noqa: PLC0415 - slow

    from index_builder.networks.trunk import drawn_from  # noqa: PLC0415 - torch

    with drawn_from(torch.Generator().manual_seed(choices.seed)):
        network = create(choices.pooling, untrained=choices.untrained)
    return _exported(network, choices)


def _exported(network: ForeignNetwork, choices: EncoderChoices) -> EncoderSource:
    """Return the source of an encoder from a torch network."""
    from index_builder.foreign_encoders.torch_modules import (  # noqa: PLC0415 - torch
        ContractModule,
        plain_transform,
        reference_of,
    )
    from index_builder.pipeline.export import export_encoder  # noqa: PLC0415 - torch

    input_format = choices.decoded(network.input_format)
    reference = network.reference
    if choices.preprocess is not None:  # the weights may need another preprocessing
        input_format, reference = choices.decoded(read_preprocess_file(choices.preprocess)), None
    reference = reference or reference_of(plain_transform(input_format), network.module)
    if not choices.untrained:  # random weights may give equal vectors
        require_telling(reference, input_format.preprocessing)
    module = ContractModule(network.module, input_format)

    def write(target: Path, pixels: NDArray[np.uint8]) -> None:
        metadata = EncoderMetadata(input_format.preprocessing, "deterministic")
        export_encoder(module, target, metadata, pixels)

    origin = dict(network.origin)
    if choices.untrained:
        origin["weights"] = f"random, seed {choices.seed}"
    elif choices.weights is not None:
        path = Path(choices.weights)
        origin["weights"] = _sha256(path) if path.is_file() else choices.weights
    text = _text_tower(network, choices) if choices.text else None
    return EncoderSource(write, reference, input_format, origin, text)


def _text_tower(network: ForeignNetwork, choices: EncoderChoices) -> TextSource:
    """Open the text tower of a network.

    Raises
    ------
    EncoderSourceError : the network has no text tower, or the pooling changes the image vectors.
    """
    if network.text is None:
        raise EncoderSourceError(
            f"{network.origin['name']} has no text tower. Leave out --text, or name a model for "
            "images and texts, such as CLIP or SigLIP."
        )
    if choices.pooling is not Pooling.default:
        raise EncoderSourceError(
            f"With --pooling {choices.pooling}, image vectors cannot be compared with texts. "
            "Leave out --pooling or --text."
        )
    _library("tokenizers", "text_towers")
    return network.text()


def _library(name: str, module: str, hub: HubModel | None = None) -> Any:  # noqa: ANN401 - a module
    """Import the module of a source of encoders.

    If the library of the source is not installed, the error names the extra that installs it.

    Parameters
    ----------
    hub : the model that the library will fetch; None if nothing has to be fetched.

    Raises
    ------
    ConfigError : the library is not installed.
    EncoderSourceError : the model cannot be fetched.
    """
    try:
        if importlib.util.find_spec(name) is not None and hub is not None:
            hub.require_any()
        importlib.import_module(name)
    except ImportError as error:
        extra = EXTRAS.get(name, "build")
        raise ConfigError(f"{name} is not installed ({error}). {how_to_install(extra)}") from error
    return importlib.import_module(f".{module}", __package__)


def _require_any_batch(path: Path, pixels: NDArray[np.uint8]) -> None:
    """Refuse a graph with a fixed batch size."""
    try:
        encoder = OnnxEncoder(path, "cpu")
        for n in (1, 2, 3):
            encoder.encode(pixels[:n])
    except Exception as error:  # ONNX Runtime's
        why = str(error) if isinstance(error, VouchError) else f"{reason_of(error)}."
        raise EncoderSourceError(
            f"The graph does not run on batches of one, two and three images: {why} Export "
            "the graph with a dynamic batch dimension."
        ) from error


def _file(place: str) -> Path:
    path = Path(place).expanduser()
    if not path.is_file():
        raise EncoderSourceError(f"There is no file {place}.")
    return path


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
