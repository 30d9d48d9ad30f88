"""The image encoder: an ONNX file that maps pixels to a Gaussian over embeddings.

Every posterior has the same contract:

===================  ==================  ================================================
name                 shape, type         meaning
===================  ==================  ================================================
images               (B, H, W, 3) uint8  RGB; scaling and normalisation are in the graph
embedding_mean       (B, D) float32      mean of the embedding, before normalisation
embedding_variance   (B, D) float32      diagonal variance of the embedding, squared units
features             (B, F) float32      penultimate activations φ(x)
===================  ==================  ================================================

An encoder for vectors (`model_store.encoder.contract`) has the input ``vectors``, (B, n)
float32, instead of images.

The metadata of the file contains the preprocessing and the name of the posterior. So preprocessing
and weights are always stored together.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from model_store.encoder.runs import BoundRuns, Placement, profile_first_run, run_profiled
from model_store.errors import EncoderContractError, EncodingFailed, ProviderUnavailable
from model_store.images import content_of
from model_store.machine import int8_sums_overflow, usable_processors

# Disable the telemetry of ONNX Runtime before the import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
import onnxruntime

from model_store.encoder.contract import (
    INPUT_NAME,
    METADATA_KEY,
    OUTPUT_NAMES,
    VECTORS_NAME,
    Embeddings,
    EncoderMetadata,
    Inputs,
)
from model_store.machine import PROVIDERS, Provider, ProviderChoice

_ON_NVIDIA = (
    "Check the NVIDIA driver, CUDA 13 and cuDNN 9 (the `gpu` extra brings the libraries), or "
    "choose `cpu`."
)

_OPTIONS: Mapping[Provider, Mapping[str, str]] = {"cuda": {"use_tf32": "0"}}
"""Options of providers. By default, CUDA rounds factors to 10 bits (TF32). Embeddings would then
differ from the embeddings of a gallery that was embedded on a CPU."""

_GRAPHS: Mapping[Provider, str] = {"cuda": "enable_cuda_graph", "tensorrt": "trt_cuda_graph_enable"}

_DEVICES: Mapping[str, str] = {PROVIDERS["cuda"]: "cuda", PROVIDERS["tensorrt"]: "cuda"}
"""Providers with separate device memory, and the name of that device."""

_ADVICE: Mapping[Provider, str] = {
    "cpu": "Install `onnxruntime`.",
    "cuda": _ON_NVIDIA,
    "tensorrt": f"Install the TensorRT libraries. {_ON_NVIDIA}",
    "openvino": "Install `onnxruntime-openvino` instead of the installed package, or choose `cpu`.",
    "coreml": "CoreML needs macOS and the package `onnxruntime`. Choose `cpu` on other systems.",
}


class OnnxEncoder:
    """The encoder in an ONNX file, run by ONNX Runtime.

    Parameters
    ----------
    path : the file.
    provider : ``auto`` uses CUDA if the machine has a GPU, and otherwise the CPU. With ``auto``, a
        quantised graph always runs on the CPU, because only the CPU computes with integers. Any
        other provider must be available.
    threads : CPU threads of one call; 0 for all processors of this process.
    cuda_graphs : whether to record the kernels of each batch size as a CUDA graph, which later
        starts all kernels with one call. CUDA or TensorRT must then run all nodes.

    Raises
    ------
    EncoderContractError : inputs, outputs or metadata differ from the contract.
    ProviderUnavailable : a provider other than the CPU was requested, but the profile of a run does
        not confirm that this provider ran the encoder.
    """

    def __init__(
        self,
        path: Path,
        provider: ProviderChoice = "auto",
        threads: int = 0,
        *,
        cuda_graphs: bool = False,
    ) -> None:
        content = path.read_bytes()
        if (found := content_of(content[:512])) is not None:
            raise EncoderContractError(
                f"{path.name} is not an ONNX graph: it is {found.name}. "
                f"{found.advice or 'Give the file of the encoder.'}"
            )
        self.fingerprint = hashlib.sha256(content).hexdigest()
        chosen = choose_provider(provider, content)
        other = chosen != "cpu"
        with TemporaryDirectory(prefix="vouch-profile-") if other else nullcontext() as profile:
            self._session = _start_session(content, chosen, threads, profile, cuda_graphs)
            self.metadata = _check_contract(self._session, path)
            self.placement = _where_nodes_run(self._session, self.metadata) if other else None
        self._input_name = self.metadata.input_name
        self.provider = running_provider(self._session.get_providers(), self.placement)
        if provider not in {"auto", "cpu"}:
            require_provider(chosen, self.provider, self.placement)
        shapes = {output.name: output.shape for output in self._session.get_outputs()}
        self.dim = int(shapes["embedding_mean"][1])
        self.n_features = int(shapes["features"][1])
        sizes = self.dim, self.dim, self.n_features
        outputs = dict(zip(OUTPUT_NAMES, sizes, strict=True))
        device = _DEVICES.get(self.provider)
        self._bound = None if device is None else BoundRuns(self._session, device, outputs)

    def encode(self, images: Inputs, at_once: int | None = None) -> Embeddings:
        """Embed ``images`` (B, H, W, 3) uint8 in batches of ``at_once``; if None, in one batch.

        Raises
        ------
        EncodingFailed : ONNX Runtime cannot run the graph on these images.
        """
        size = at_once or max(1, len(images))
        parts = [self._run(images[i : i + size]) for i in range(0, max(1, len(images)), size)]
        return parts[0] if len(parts) == 1 else Embeddings.concatenate(parts)

    def _run(self, images: Inputs) -> Embeddings:
        name = self._input_name
        try:
            if self._bound is not None:
                return Embeddings(*self._bound.run(name, images))
            return Embeddings(*self._session.run(list(OUTPUT_NAMES), {name: images}))
        except Exception as error:  # ONNX Runtime has many exception classes
            raise EncodingFailed(f"The encoder's graph has failed. {reason_of(error)}") from error

    def close(self) -> None:
        """Do nothing: the memory is freed with the object."""


def open_graph(
    content: bytes, provider: ProviderChoice = "auto", threads: int = 0
) -> onnxruntime.InferenceSession:
    """Start ONNX Runtime on any graph, for example a part of an encoder.

    Parameters
    ----------
    provider, threads : see `OnnxEncoder`. If both arguments are equal, the results are
        bit-identical.

    Raises
    ------
    ProviderUnavailable
    """
    return _start_session(content, choose_provider(provider, content), threads)


def reason_of(error: Exception) -> str:
    """Return the reason why ONNX Runtime cannot run a graph, with advice.

    Paths of source files are removed from the text.
    """
    text = str(error)
    opset = re.search(r"Opset (\d+) is under development.*till opset (\d+)", text, re.DOTALL)
    if opset is not None:
        return (
            f"It is of opset {opset[1]}; ONNX Runtime {onnxruntime.__version__} reads opsets up to "
            f"{opset[2]}. Export it with opset_version={opset[2]} or lower, or update ONNX Runtime."
        )
    version = re.search(r"model IR version: (\d+), max supported IR version: (\d+)", text)
    if version is not None:
        return (
            f"It is of IR version {version[1]}; ONNX Runtime {onnxruntime.__version__} reads "
            f"versions up to {version[2]}. Save it with ir_version={version[2]}, or update ONNX "
            "Runtime."
        )
    text = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    source = r"/\S*onnxruntime\S*:\d+ .*?\) (?:\S.*? was false\. )?(?=[A-Z])"
    text = re.sub(source, "", text, flags=re.DOTALL)
    return f"ONNX Runtime says: {text.strip()[:500]}"


def running_provider(providers: Sequence[str], placement: Placement | None) -> str:
    """Return the first provider that ran a node.

    If the placement is not known, the result is the first of all ``providers``.
    """
    return next(name for name in providers if placement is None or name in placement)


def require_provider(wanted: Provider, provider: str, placement: Placement | None) -> None:
    """Refuse an encoder that does not run on the requested provider.

    Parameters
    ----------
    provider : result of `running_provider`.

    Raises
    ------
    ProviderUnavailable
    """
    if provider != PROVIDERS[wanted]:
        raise ProviderUnavailable(
            f"The {PROVIDERS[wanted]} was requested, but no node of the encoder runs on it here "
            f"(running: {provider}). {_ADVICE[wanted]}"
        )
    if placement is None:
        raise ProviderUnavailable(
            f"The {PROVIDERS[wanted]} was requested, but the profile of a first run does not show "
            f"this provider. {_ADVICE[wanted]}"
        )


def choose_provider(provider: ProviderChoice, content: bytes) -> Provider:
    """Return the provider to start; raise `ProviderUnavailable` if it is not available."""
    if provider == "auto" and b"QuantizeLinear" in content:
        return "cpu"  # other providers round each operator, which changes the embeddings
    if provider == "auto":
        has_gpu = Path("/dev/nvidiactl").exists()
        return "cuda" if has_gpu and _is_offered("cuda") else "cpu"
    if not _is_offered(provider):
        raise ProviderUnavailable(
            f"The {PROVIDERS[provider]} was requested, but this installation of ONNX Runtime "
            f"offers only {', '.join(onnxruntime.get_available_providers())}. {_ADVICE[provider]}"
        )
    return provider


def _start_session(
    content: bytes,
    chosen: Provider,
    threads: int,
    profile: str | None = None,
    cuda_graphs: bool = False,
) -> onnxruntime.InferenceSession:
    """Start a session; if ``profile`` is a directory, write a profile into it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or usable_processors()
    options.inter_op_num_threads = 1
    # Threads that spin after an encoding would block the cores for the following search.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if int8_sums_overflow():
        # Without this setting, the embeddings of a quantised encoder depend on the processor. For
        # MobileNetV2, the cosine between two processors' embeddings is 0.6 to 0.98. With this
        # setting, the embeddings are identical.
        options.add_session_config_entry("session.x64quantprecision", "1")
    options.log_severity_level = 3
    if profile is not None:
        profile_first_run(options, Path(profile))
    providers = providers_of(chosen, cuda_graphs=cuda_graphs)
    try:
        return onnxruntime.InferenceSession(content, options, providers=providers)
    except Exception as error:  # ONNX Runtime has many exception classes
        if not cuda_graphs:
            raise EncoderContractError(
                f"The encoder's graph cannot be run. {reason_of(error)}"
            ) from error
        raise ProviderUnavailable(
            f"The encoder cannot be recorded as CUDA graphs: {error}. Turn cuda_graphs "
            "(VOUCH_CUDA_GRAPHS) off."
        ) from error


def providers_of(
    chosen: Provider, *, cuda_graphs: bool = False
) -> list[tuple[str, dict[str, str]]]:
    """Return the providers of a session in order of preference, and their options."""
    # CUDA runs the nodes that TensorRT does not support. The CPU runs all other nodes.
    names: dict[Provider, None] = dict.fromkeys([chosen, "cpu"])
    if chosen == "tensorrt":
        names = dict.fromkeys([chosen, "cuda", "cpu"])
    options = {name: dict(_OPTIONS.get(name, {})) for name in names}
    if cuda_graphs and chosen in _GRAPHS:
        options[chosen][_GRAPHS[chosen]] = "1"
    return [(PROVIDERS[name], options[name]) for name in names]


def _where_nodes_run(
    session: onnxruntime.InferenceSession, metadata: EncoderMetadata
) -> Placement | None:
    """Encode an empty image, and return the placement; None if the profile is unreadable."""
    blank = np.zeros((1, *metadata.input.shape), metadata.input.dtype)
    try:
        return run_profiled(session, {metadata.input_name: blank})
    except (OSError, ValueError):
        return None


def _is_offered(provider: Provider) -> bool:
    """Return whether this ONNX Runtime has the provider.

    For a provider of NVIDIA, the function also loads the NVIDIA libraries that pip has
    installed.
    """
    if PROVIDERS[provider] not in onnxruntime.get_available_providers():
        return False
    if provider in {"cuda", "tensorrt"}:
        onnxruntime.preload_dlls()
    return True


_MAKE_IT_ONE = (
    "Export it again with `vouch-build export`, or make an encoder of another graph with "
    "`vouch-build encoder --onnx`."
)


def _check_contract(session: onnxruntime.InferenceSession, path: Path) -> EncoderMetadata:
    """Refuse a file that violates the contract of this module."""
    inputs = {node.name: node.type for node in session.get_inputs()}
    outputs = {node.name: node.shape for node in session.get_outputs()}
    taken = {INPUT_NAME: "tensor(uint8)"}, {VECTORS_NAME: "tensor(float)"}
    if inputs not in taken or not set(OUTPUT_NAMES) <= set(outputs):
        raise EncoderContractError(
            f"{path.name} has inputs {inputs} and outputs {sorted(outputs)}; wanted one uint8 "
            f"input `{INPUT_NAME}` (or a float one, `{VECTORS_NAME}`) and the outputs "
            f"{', '.join(OUTPUT_NAMES)}. {_MAKE_IT_ONE}"
        )
    text = session.get_modelmeta().custom_metadata_map.get(METADATA_KEY)
    if text is None:
        raise EncoderContractError(
            f"{path.name} has no `{METADATA_KEY}` metadata, so its preprocessing is unknown. "
            f"{_MAKE_IT_ONE}"
        )
    batch = session.get_inputs()[0].shape[0]
    if isinstance(batch, int):
        raise EncoderContractError(
            f"{path.name} accepts only batches of {batch}; the batch dimension must be dynamic. "
            f"{_MAKE_IT_ONE}"
        )
    return EncoderMetadata.from_json(text)
