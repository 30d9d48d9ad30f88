"""The steps train, fit and export with torch; each reads the files of earlier steps."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict

import torch
from safetensors.torch import load_file, save_file

from index_builder.configuration.encoder import EncoderConfig
from index_builder.datasets import LabelledImages, Splits
from index_builder.methods import Trained, method_of
from index_builder.networks import (
    MetricEncoder,
    build_encoder,
    load_encoder,
    load_pretrained,
    save_checkpoint,
)
from index_builder.networks.encoder import LinearNetwork, feature_blocks, trunk_fingerprint
from index_builder.posteriors.stored import ProbabilisticEncoder, load_posterior
from index_builder.progress import console
from index_builder.training import (
    ProcessGroup,
    feature_source,
    place_for_training,
    process_group,
    train,
    trunk_device,
)
from index_builder.vectors.encoder import OnnxTrunk, trunk_metadata
from index_builder.vectors.encoder_file import opened_once
from index_builder.vectors.images import VectorFile
from model_store.bundles.manifest import ENCODER_FILE

from .closed_form import (
    N_PARITY_IMAGES,
    metadata_of,
    require_enough,
    require_input,
    whitening_of,
    write_posterior,
    write_training,
)
from .export import export_encoder, export_trunk
from .graphs import write_head
from .run import POSTERIOR_REPORT, TRAINING_REPORT, Run, forget


def members_of(config: EncoderConfig, run: Run) -> list[tuple[EncoderConfig, Run]]:
    """Return the configuration and the run of each encoder that a build trains.

    A single encoder uses the run directory of the build. Each member of an ensemble has its own run
    directory, in a sub-folder.
    """
    configs = method_of(config).members(config)
    if len(configs) == 1:
        return [(configs[0], run)]
    return [(member, run.member(number)) for number, member in enumerate(configs)]


def trained_members(config: EncoderConfig, run: Run) -> list[Trained]:
    """Read the encoders from the step `train`.

    Raises
    ------
    StepNotReady : the encoders are not trained.
    ConfigError : the encoders were trained with another configuration.
    """
    run.require_trained(config)
    trained = []
    for member, place in members_of(config, run):
        checkpoint = place.require(place.checkpoint, "train")
        learned = load_file(place.require(place.objective, "train"))
        encoder = load_encoder(member.network, checkpoint)
        trained.append(Trained(encoder, learned, LinearNetwork(encoder)))
    return trained


def load_fitted(config: EncoderConfig, run: Run) -> ProbabilisticEncoder:
    """Read the encoder with its posterior from the step `fit`.

    Raises
    ------
    StepNotReady : the posterior is not fitted.
    ConfigError : the encoder was trained with another configuration.
    """
    encoders = [member.encoder for member in trained_members(config, run)]
    run.require(run.directory / POSTERIOR_REPORT, "fit")
    posterior = load_posterior(run.require(run.posterior, "fit"))
    return method_of(config).assemble(encoders, posterior)


def train_step(config: EncoderConfig, run: Run, splits: Splits) -> None:
    """Train the encoder; write checkpoint.safetensors, objective.safetensors and training.json.

    Each member of an ensemble has these files. If the training of an ensemble was interrupted, the
    training resumes with the first unfinished member. Under ``torchrun``, all processes train
    together, and the first one writes.
    """
    with process_group() as group:
        if len(members_of(config, run)) > 1:
            _train_members(config, splits, run, group)
        else:
            _train_alone(config, splits, run, group)


def _train_members(config: EncoderConfig, splits: Splits, run: Run, group: ProcessGroup) -> None:
    """Train the missing members of an ensemble; if no member is missing, train all again.

    All members use the same images, but different seeds.
    """
    started = time.perf_counter()
    report = run.directory / TRAINING_REPORT
    if group.writes and report.exists():
        forget(report, run.directory / POSTERIOR_REPORT, run.posterior)
        shutil.rmtree(run.members, ignore_errors=True)
    for number, (member, place) in enumerate(members_of(config, run), start=1):
        group.wait()  # all processes must skip the same finished members
        finished = place.directory / TRAINING_REPORT
        if finished.exists() and not member.changed_since(
            place.read_json(TRAINING_REPORT)["config"]
        ):
            continue
        console.print(f"member {number}")
        _train_alone(member, splits, place, group)
    if not group.writes:
        return
    write_training(config, run, splits, started)


def _train_alone(config: EncoderConfig, splits: Splits, run: Run, group: ProcessGroup) -> None:
    """Train one encoder."""
    started = time.perf_counter()
    images = splits.training
    require_enough(images)
    generator = torch.Generator().manual_seed(config.seed)
    encoder = build_encoder(config.network, generator)
    require_input(encoder.preprocessing, images)
    labels = torch.from_numpy(images.label_codes())
    if config.network.weights is not None:
        load_pretrained(encoder, config.network)
    elif config.network.encoder is None:
        encoder.standardise(torch.from_numpy(images.prepared(encoder.preprocessing)))
    encoder.eval()
    with threads_for(len(images)) if config.network.frozen else nullcontext():
        if group.size == 1:
            _store_features(config, run, encoder, images)
        if config.network.last_layer == "whitening":
            _whiten(encoder, images)
    objective = method_of(config).objective(config, encoder, labels, generator)
    if objective.sampling == "views" and not splits.labelled:
        objective.sampling = "pairs"  # an image and its view have the same label
    history = []
    if config.training.epochs:
        place_for_training(encoder, config.training)
        source = feature_source(encoder, images, config.training, generator, group)
        dropout = config.network.dropout
        history = train(
            encoder, objective, source, labels, config.training, generator, dropout, group
        )
        encoder.place_trunk(torch.device("cpu"))
    if not group.writes:
        return
    run.directory.mkdir(parents=True, exist_ok=True)
    forget(run.directory / TRAINING_REPORT, run.directory / POSTERIOR_REPORT, run.posterior)
    save_checkpoint(encoder.state_dict(), run.checkpoint, config.network.weights)
    save_file(objective.learned(), run.objective)
    write_training(config, run, splits, started, epochs=[asdict(epoch) for epoch in history])


def fit_step(config: EncoderConfig, run: Run, splits: Splits) -> None:
    """Fit the posterior; write posterior.safetensors and posterior.json."""
    started = time.perf_counter()
    members = trained_members(config, run)
    for (member, place), trained in zip(members_of(config, run), members, strict=True):
        _store_features(member, place, trained.encoder, splits.training)
        trained.encoder.place_trunk(trunk_device(config.training))
    with threads_for(len(splits.training)) if config.network.frozen else nullcontext():
        posterior, report = method_of(config).fit(config, members, splits)
    forget(run.directory / POSTERIOR_REPORT)
    posterior.save(run.posterior)
    write_posterior(config, run, splits, report, started)


def export_step(config: EncoderConfig, run: Run, splits: Splits) -> None:
    """Export the encoder with its posterior; write encoder.onnx."""
    fitted = load_fitted(config, run)
    run.staging.mkdir(parents=True, exist_ok=True)
    some = splits.training.at(range(N_PARITY_IMAGES))
    prepared = some.prepared(fitted.preprocessing)
    metadata = metadata_of(fitted.preprocessing, run)
    with threads_for(len(prepared)):
        difference = export_encoder(fitted, run.staging / ENCODER_FILE, metadata, prepared)
    if run.trunk.exists():
        write_head(run.staging / ENCODER_FILE, run.trunk, run.head, prepared)
    console.print(f"encoder.onnx agrees with torch to {difference:.1e} of the largest value")


def _store_features(
    config: EncoderConfig, run: Run, encoder: MetricEncoder, images: LabelledImages
) -> None:
    """Give the encoder a cache of features, so that the features are computed only once in a build.

    The cache is used only for a frozen trunk on a CPU. As for the gallery, ONNX Runtime computes
    the features.
    """
    if not config.network.frozen or trunk_device(config.training).type != "cpu":
        run.trunk.unlink(missing_ok=True)
        return
    metadata = trunk_metadata(trunk_fingerprint(encoder), encoder.preprocessing)
    if not run.trunk.exists() or opened_once(OnnxTrunk, run.trunk).metadata != metadata:
        run.directory.mkdir(parents=True, exist_ok=True)
        some = images.at(range(N_PARITY_IMAGES)).prepared(encoder.preprocessing)
        export_trunk(encoder, run.trunk, metadata, some)
    encoder.stored_features = opened_once(OnnxTrunk, run.trunk).vectors(VectorFile(run.vectors))


def _whiten(encoder: MetricEncoder, images: LabelledImages) -> None:
    """Set the last layer to a whitening that is fitted to the features of ``images``."""
    dim, n_features = encoder.last_layer.out_features, encoder.trunk.n_features
    blocks = (block.numpy() for block in feature_blocks(encoder, images))
    weight = whitening_of(blocks, images, dim, n_features)
    with torch.no_grad():
        encoder.last_layer.weight.copy_(torch.from_numpy(weight))
        encoder.last_layer.bias.zero_()


FEW = 10_000
"""Maximum number of images that are computed with one thread."""


@contextmanager
def threads_for(n_images: int) -> Iterator[None]:
    """Use one thread of torch if there are few images; afterwards restore the number of threads.

    Torch's threads use CPU time while they wait. On two busy cores, the whitening of 600
    photographs took 22 s of CPU time with two threads. With one thread, the whitening took 8 s.
    With one thread, sums do not depend on the number of processors.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1 if n_images <= FEW else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
