from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torchvision import models

from index_builder.configuration.encoder import NetworkConfig, TrainingConfig
from index_builder.datasets.small_images import digits
from index_builder.networks import build_encoder, load_pretrained
from index_builder.networks.trunk import dropped_out
from index_builder.objectives import ContrastiveLoss, contrastive_loss
from index_builder.training import (
    WARM_UP_STEPS,
    Augmentation,
    _parameter_groups,
    balanced_batches,
    feature_source,
    place_for_training,
    rate_at,
    train,
    trunk_device,
)
from model_store.errors import ConfigError, TrainingDiverged
from tests.support.narrowing import not_none

IMAGES = digits().at(range(200))
LABELS = torch.tensor([int(label) for label in IMAGES.labels])


def test_the_loss_is_the_contrastive_loss_pair_by_pair() -> None:
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(9, 4, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2])
    unit = embeddings / embeddings.norm(dim=1, keepdim=True)
    margin, pulls, pushes = 1.3, [], []
    for i in range(9):
        for j in range(9):
            distance = (unit[i] - unit[j]).norm().item()
            if i != j and labels[i] == labels[j]:
                pulls.append(distance**2 / 2)
            elif labels[i] != labels[j] and distance < margin:
                pushes.append((margin - distance) ** 2 / 2)
    expected = np.mean(pulls) + np.mean(pushes)
    assert 3 < len(pushes) < 52
    assert contrastive_loss(embeddings, labels, margin).item() == pytest.approx(expected)


def test_coinciding_embeddings_are_finite_and_still_pushed_apart() -> None:
    embeddings = torch.tensor([[1.0, 0.0], [1.0, 1e-3], [1.0, 0.0]], requires_grad=True)
    loss = contrastive_loss(embeddings, torch.tensor([0, 1, 0]), margin=1.0)
    loss.backward()
    gradient = not_none(embeddings.grad)
    assert torch.isfinite(gradient).all()
    assert gradient[1, 1] < -0.4


def test_batches_hold_as_many_of_each_label() -> None:
    labels = torch.tensor([0] * 50 + [1] * 3 + [2] * 20)
    config = TrainingConfig(labels_per_batch=2, images_per_label=5)
    for rows in balanced_batches(labels, config, 20, torch.Generator().manual_seed(0)):
        counts = torch.bincount(labels[rows], minlength=3)
        wanted = [5 if n else 0 for n in counts.tolist()]
        wanted[1] = min(wanted[1], 3)  # all there are
        assert counts.tolist() == wanted
        assert len(rows.unique()) == len(rows)


def test_every_image_is_seen_before_any_is_seen_again() -> None:
    labels = torch.tensor([0] * 10 + [1] * 10)
    config = TrainingConfig(labels_per_batch=2, images_per_label=5)
    rows = torch.cat(list(balanced_batches(labels, config, 4, torch.Generator().manual_seed(0))))
    assert sorted(rows[:20].tolist()) == sorted(rows[20:].tolist()) == list(range(20))


def test_no_hand_holds_an_image_twice_where_the_deck_is_shuffled_anew() -> None:
    labels = torch.tensor([0] * 7 + [1] * 7)
    config = TrainingConfig(labels_per_batch=2, images_per_label=5)
    seen = torch.zeros(14, dtype=torch.int64)
    for rows in balanced_batches(labels, config, 70, torch.Generator().manual_seed(0)):
        assert len(rows.unique()) == len(rows) == 10
        seen += torch.bincount(rows, minlength=14)
        assert seen.max() - seen.min() <= 2
    assert seen.tolist() == [50] * 14


def test_dropout_follows_the_generator_and_keeps_the_mean() -> None:
    features = torch.rand(200, 300)
    first, again = (dropped_out(features, 0.3, torch.Generator().manual_seed(2)) for _ in range(2))
    assert torch.equal(first, again)
    assert float((first == 0).double().mean()) == pytest.approx(0.3, abs=0.01)
    assert float(first.mean()) == pytest.approx(float(features.mean()), rel=0.01)
    assert dropped_out(features, 0.0, torch.Generator()) is features


def test_a_loss_that_is_no_number_ends_the_training() -> None:
    encoder = build_encoder(NetworkConfig(embedding_dim=4), torch.Generator().manual_seed(0))
    source = lambda rows: torch.full((len(rows), 9216), float("inf"))  # noqa: E731
    config = TrainingConfig(epochs=1, labels_per_batch=2, images_per_label=4)
    with pytest.raises(TrainingDiverged, match="Lower training"):
        train(encoder, ContrastiveLoss(1.0), source, LABELS, config, torch.Generator())


@pytest.mark.parametrize("frozen", [False, True])
def test_a_pretrained_trunk_is_frozen_or_fine_tuned(frozen: bool, tmp_path: Path) -> None:
    state = models.resnet18(weights=None).state_dict()
    save_file(state, tmp_path / "w.safetensors")
    network = NetworkConfig(
        trunk="resnet18",
        weights=str(tmp_path / "w.safetensors"),
        frozen=frozen,
        input_size=32,
        embedding_dim=8,
    )
    generator = torch.Generator().manual_seed(0)
    encoder = build_encoder(network, generator)
    load_pretrained(encoder, network)
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    few = IMAGES.at(range(40))
    config = TrainingConfig(epochs=1, labels_per_batch=4, images_per_label=3)
    source = feature_source(encoder.eval(), few, config, generator)
    train(encoder, ContrastiveLoss(1.0), source, LABELS[:40], config, generator)
    changed = {
        name for name, value in encoder.state_dict().items() if (value != before[name]).any()
    }
    assert {"last_layer.weight", "last_layer.bias"} <= changed
    assert ("trunk.backbone.conv1.weight" in changed) is not frozen
    assert not any("running" in name for name in changed)


def test_the_prior_of_online_laplace_is_its_only_decay() -> None:
    layer = build_encoder(NetworkConfig(embedding_dim=4), torch.Generator().manual_seed(0))
    for objective, decay in ((ContrastiveLoss(1.0), 0.1), (HoldsPrior(1.0), 0.0)):
        groups = _parameter_groups(layer, objective, TrainingConfig(weight_decay=0.1))
        (of_last_layer,) = [
            group["weight_decay"]
            for group in groups
            if any(p is layer.last_layer.weight for p in group["params"])
        ]
        assert of_last_layer == decay
        assert sum(len(group["params"]) for group in groups) == len(list(layer.parameters()))


class HoldsPrior(ContrastiveLoss):
    holds_prior = True


def test_a_short_training_warms_up_in_a_tenth_of_it() -> None:
    rates = [rate_at(step, 50) for step in range(50)]
    assert max(rates) == rates[5] > 0.95


def test_images_too_many_to_hold_are_decoded_batch_by_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder = build_encoder(NetworkConfig(embedding_dim=4), torch.Generator().manual_seed(0)).eval()
    rows, config = torch.tensor([3, 1, 7]), TrainingConfig()
    held = feature_source(encoder, IMAGES, config, torch.Generator())(rows)
    monkeypatch.setattr("index_builder.training.PREPARED_BYTES", 0)
    assert torch.equal(feature_source(encoder, IMAGES, config, torch.Generator())(rows), held)


def test_the_rate_warms_up_and_ends_at_nothing() -> None:
    rates = [rate_at(step, 1000) for step in range(1001)]
    assert rates[0] == pytest.approx(1 / WARM_UP_STEPS)
    assert max(rates) == rates[WARM_UP_STEPS - 1] > 0.97
    assert rates[550] == pytest.approx(0.5 * (1 + math.cos(math.pi * 0.55)))
    assert rates[1000] == pytest.approx(0)


def test_pixels_are_standardised_by_the_training_images() -> None:
    images = torch.randint(20, 120, (7, 28, 28, 3), dtype=torch.uint8)
    encoder = build_encoder(NetworkConfig(embedding_dim=4), torch.Generator().manual_seed(0))
    encoder.standardise(images)
    values = images.double() / 255
    assert encoder.pixel_mean.flatten().tolist() == pytest.approx([values.mean().item()] * 3)
    deviation = values.std(correction=0).item()
    assert encoder.pixel_std.flatten().tolist() == pytest.approx([deviation] * 3, rel=1e-5)


def test_augmentation_moves_and_mirrors_but_keeps_shape() -> None:
    images = torch.randint(0, 256, (40, 6, 6, 3), dtype=torch.uint8)
    config = TrainingConfig(flip=True, shift=1)
    moved = Augmentation.drawn(len(images), config, torch.Generator().manual_seed(0))(images)
    assert moved.shape == images.shape
    assert moved.dtype == torch.uint8
    assert not torch.equal(moved, images)
    candidates = []
    for source in (images[0], images[0].flip(1)):
        padded = torch.nn.functional.pad(source, (0, 0, 1, 1, 1, 1))
        candidates += [padded[i : i + 6, j : j + 6] for i in range(3) for j in range(3)]
    assert any(torch.equal(moved[0], candidate) for candidate in candidates)


def test_without_augmentation_images_stay() -> None:
    images = torch.randint(0, 256, (4, 6, 6, 3), dtype=torch.uint8)
    unchanged = Augmentation.drawn(len(images), TrainingConfig(), torch.Generator())
    assert torch.equal(unchanged(images), images)


def trained(seed: int, epochs: int = 3) -> Tensor:
    """Unit embeddings (200, 8) of the images after training on them."""
    generator = torch.Generator().manual_seed(seed)
    encoder = build_encoder(NetworkConfig(embedding_dim=8), generator)
    prepared = torch.from_numpy(IMAGES.prepared(encoder.preprocessing))
    config = TrainingConfig(epochs=epochs, labels_per_batch=10, images_per_label=4, shift=1)
    encoder.standardise(prepared)
    source = feature_source(encoder, IMAGES, config, generator)
    if epochs:
        history = train(encoder, ContrastiveLoss(1.0), source, LABELS, config, generator)
        assert len(history) == epochs
    with torch.inference_mode():
        return torch.nn.functional.normalize(encoder(prepared))


def separation(embeddings: Tensor) -> float:
    """Mean squared distance between labels over that within labels."""
    squared = torch.cdist(embeddings, embeddings) ** 2
    same = LABELS[:, None] == LABELS
    return float(squared[~same].mean() / squared[same].mean())


@pytest.mark.slow
def test_training_separates_labels_and_repeats_to_the_bit() -> None:
    embeddings = trained(seed=0, epochs=6)
    assert separation(embeddings) > 2 * separation(trained(seed=0, epochs=0))
    assert torch.equal(embeddings, trained(seed=0, epochs=6))
    assert not torch.equal(embeddings, trained(seed=1, epochs=6))


def test_without_a_gpu_the_trunk_stays_on_the_cpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert trunk_device(TrainingConfig()).type == "cpu"
    with pytest.raises(ConfigError, match="finds no GPU"):
        trunk_device(TrainingConfig(device="cuda"))


def test_mixed_precision_moves_features_by_little_and_leaves_nothing_behind() -> None:
    encoder = build_encoder(NetworkConfig(), torch.Generator().manual_seed(0))
    images = torch.randint(0, 256, (4, 28, 28, 3), dtype=torch.uint8)
    expected = encoder.train().features(images)
    place_for_training(encoder, TrainingConfig(device="cpu", precision="mixed"))
    mixed = encoder.features(images)
    assert mixed.dtype == torch.float32
    assert (mixed - expected).abs().max() > 1e-4  # another layout alone rounds by far less
    torch.testing.assert_close(mixed, expected, rtol=0.05, atol=0.05)
    mixed.sum().backward()
    gradients = [not_none(weight.grad) for weight in encoder.trunk.parameters()]
    assert {gradient.dtype for gradient in gradients} == {torch.float32}
    encoder.place_trunk(torch.device("cpu"))
    torch.testing.assert_close(encoder.features(images), expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_features_of_a_gpu_come_back_as_those_of_the_cpu() -> None:
    encoder = build_encoder(NetworkConfig(), torch.Generator().manual_seed(0)).eval()
    images = torch.randint(0, 256, (4, 28, 28, 3), dtype=torch.uint8)
    expected = encoder.features(images)
    encoder.place_trunk(torch.device("cuda"))
    torch.testing.assert_close(encoder.features(images), expected, rtol=1e-3, atol=1e-3)
    encoder.train().features(images).sum().backward()
    assert all(weight.grad is not None for weight in encoder.trunk.parameters())
