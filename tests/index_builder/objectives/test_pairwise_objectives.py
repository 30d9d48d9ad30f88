"""Objectives of pairs, triplets and rankings against loops over them, and against the library."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from pytorch_metric_learning import distances, losses
from torch import Tensor

from index_builder.objectives import contrastive_loss
from index_builder.objectives.distances import MarginLoss, negative_odds, triplet_loss
from index_builder.objectives.similarities import (
    SOFTMAXES,
    fast_ap,
    multi_similarity,
    n_pairs_loss,
    similarity_loss,
    smooth_ap,
)
from tests.support.small_batches import (
    LABELS,
    LIMITS,
    embeddings,
    gradient,
    negatives,
    positives,
    total,
    unit,
)

Loss = Callable[[Tensor, Tensor], Tensor]
ROWS = range(len(LABELS))
TEMPERATURE = 0.3


def mean(values: list[Tensor]) -> Tensor:
    return torch.stack(values).mean()


def paying(values: list[Tensor]) -> Tensor:
    kept = [value for value in values if value > 0]
    assert 0 < len(kept) < len(values), "data that do not tell the mean over all from this one"
    return mean(kept)


def contrastive_by_loops(form: str, z: Tensor) -> Tensor:
    z, m = unit(z), 1.3
    pull, push = [], []
    for i in ROWS:
        for j in positives(LABELS, i):
            d = (z[i] - z[j]).norm()
            pull.append(d if form == "unsquared" else d**2 / 2)
        for j in negatives(LABELS, i):
            d = (z[i] - z[j]).norm()
            push.append(
                {
                    "hadsell": (m - d).clamp_min(0) ** 2 / 2,
                    "squared_margin": (m**2 - d**2).clamp_min(0) / 2,
                    "unsquared": (m - d).clamp_min(0),
                }[form]
            )
    return mean(pull) + paying(push)


def triplet_by_loops(
    z: Tensor, distance: str, mining: str, margin: float, *, soft: bool = False
) -> Tensor:
    z = unit(z)

    def d(i: int, j: int) -> Tensor:
        if distance == "cosine":
            return -(z[i] @ z[j]) + 1
        squared = (z[i] - z[j]).square().sum()
        return squared if distance == "squared" else squared.sqrt()

    def pays(gap: Tensor) -> Tensor:
        return torch.log1p(gap.exp()) if soft else (gap + margin).clamp_min(0)

    if mining == "hard":
        gaps = [
            max(d(a, p) for p in positives(LABELS, a)) - min(d(a, n) for n in negatives(LABELS, a))
            for a in ROWS
        ]
        return mean([pays(gap) for gap in gaps])
    gaps = [
        d(a, p) - d(a, n)
        for a in ROWS
        for p in positives(LABELS, a)
        for n in negatives(LABELS, a)
        if mining == "all" or d(a, p) < d(a, n) < d(a, p) + margin
    ]
    paid = [pays(gap) for gap in gaps]
    return mean(paid) if soft or mining == "semihard" else paying(paid)


def softmax_by_loops(kind: str, z: Tensor) -> Tensor:
    s = unit(z) @ unit(z).T / TEMPERATURE
    terms = []
    for i in ROWS:
        near, far = positives(LABELS, i), negatives(LABELS, i)
        everyone = total(s[i, k].exp() for k in near + far)
        if kind == "info_nce":
            others = total(s[i, k].exp() for k in far)
            terms += [-(s[i, p].exp() / (s[i, p].exp() + others)).log() for p in near]
        elif kind == "supcon":
            terms.append(mean([-(s[i, p].exp() / everyone).log() for p in near]))
        else:
            own = total(s[i, p].exp() for p in near)
            number = len(near) if kind == "soft_nearest_neighbours" else 1
            terms.append(-(own / everyone / number).log())
    return mean(terms)


def n_pairs_by_loops(z: Tensor) -> Tensor:
    terms = [
        torch.log1p(total((z[a] @ z[n] - z[a] @ z[p]).exp() for n in negatives(LABELS, a)))
        for a in ROWS
        for p in positives(LABELS, a)
    ]
    return mean(terms) + 0.02 * mean([row @ row for row in z])


def multi_similarity_by_loops(z: Tensor) -> Tensor:
    s, terms = unit(z) @ unit(z).T, []
    for i in ROWS:
        pull = total((-3 * (s[i, p] - 0.4)).exp() for p in positives(LABELS, i))
        push = total((20 * (s[i, n] - 0.4)).exp() for n in negatives(LABELS, i))
        terms.append(torch.log1p(pull) / 3 + torch.log1p(push) / 20)
    return mean(terms)


def fast_ap_by_loops(z: Tensor) -> Tensor:
    n_bins, losses_ = 7, []
    z = unit(z)
    width = 4 / n_bins
    for i in ROWS:
        squared = ((z - z[i]) ** 2).sum(1)

        def mass(b: int, rows: list[int], squared: Tensor = squared) -> Tensor:
            return total((1 - (squared[j] - b * width).abs() / width).clamp_min(0) for j in rows)

        near, everyone = positives(LABELS, i), positives(LABELS, i) + negatives(LABELS, i)
        ap = torch.zeros((), dtype=torch.float64)
        for b in range(n_bins + 1):
            before = total(mass(c, near) for c in range(b + 1))
            reached = total(mass(c, everyone) for c in range(b + 1))
            if reached > 0:
                ap = ap + mass(b, near) * before / reached / len(near)
        losses_.append(1 - ap)
    return mean(losses_)


def smooth_ap_by_loops(z: Tensor) -> Tensor:
    s, t, terms = unit(z) @ unit(z).T, 0.05, []
    for i in ROWS:
        near, everyone = positives(LABELS, i), positives(LABELS, i) + negatives(LABELS, i)

        def rank(p: int, among: list[int], i: int = i) -> Tensor:
            return 1 + total(((s[i, j] - s[i, p]) / t).sigmoid() for j in among if j != p)

        terms.append(1 - mean([rank(p, near) / rank(p, everyone) for p in near]))
    return mean(terms)


CASES: dict[str, tuple[Loss, Callable[[Tensor], Tensor]]] = {
    **{
        f"contrastive {form}": (
            partial(contrastive_loss, margin=1.3, form=form),
            partial(contrastive_by_loops, form),
        )
        for form in ("hadsell", "squared_margin", "unsquared")
    },
    **{
        f"triplet {distance} {mining}": (
            partial(
                triplet_loss,
                distance=distance,
                soft=False,
                mining=mining,
                margin=0.3,
            ),
            partial(triplet_by_loops, distance=distance, mining=mining, margin=0.3),
        )
        for distance in ("euclidean", "squared", "cosine")
        for mining in ("all", "semihard", "hard")
    },
    **{
        f"triplet soft {mining}": (
            partial(triplet_loss, distance="euclidean", soft=True, mining=mining),
            partial(triplet_by_loops, distance="euclidean", mining=mining, margin=0, soft=True),
        )
        for mining in ("all", "hard")
    },
    **{
        kind: (
            partial(similarity_loss, softmax=softmax, temperature=TEMPERATURE),
            partial(softmax_by_loops, kind),
        )
        for kind, softmax in SOFTMAXES.items()
    },
    "n_pairs": (partial(n_pairs_loss, norm_weight=0.02), n_pairs_by_loops),
    "multi_similarity": (multi_similarity(3.0, 20.0, 0.4), multi_similarity_by_loops),
    "fast_ap": (fast_ap(7), fast_ap_by_loops),
    "smooth_ap": (partial(smooth_ap, temperature=0.05), smooth_ap_by_loops),
}


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient_are_those_of_loops(name: str) -> None:
    loss, by_loops = CASES[name]
    z = embeddings()
    value, expected = loss(z, LABELS), by_loops(z)
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(gradient(value, z), gradient(expected, z), rtol=1e-6, atol=1e-9)


LIBRARY: dict[str, tuple[str, Loss]] = {
    "triplets of all": (
        "triplet euclidean all",
        losses.TripletMarginLoss(margin=0.3, triplets_per_anchor="all"),
    ),
    "soft triplets": (
        "triplet soft all",
        losses.TripletMarginLoss(margin=0, smooth_loss=True, triplets_per_anchor="all"),
    ),
    "squared triplets": (
        "triplet squared all",
        losses.TripletMarginLoss(
            margin=0.3, distance=distances.LpDistance(power=2), triplets_per_anchor="all"
        ),
    ),
    "InfoNCE": ("info_nce", losses.NTXentLoss(TEMPERATURE)),
    "SupCon": ("supcon", losses.SupConLoss(TEMPERATURE)),
    "SNCA": ("snca", losses.NCALoss(1 / TEMPERATURE, distance=distances.CosineSimilarity())),
    "the code of the Laplace paper": (
        "contrastive unsquared",
        losses.ContrastiveLoss(neg_margin=1.3),
    ),
}


@pytest.mark.parametrize("name", LIBRARY)
def test_where_the_library_has_the_formula_it_agrees(name: str) -> None:
    case, library = LIBRARY[name]
    z = embeddings()
    value, expected = CASES[case][0](z, LABELS), library(z, LABELS)
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(gradient(value, z), gradient(expected, z), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("name", CASES)
def test_limits_are_finite(name: str, limit: str) -> None:
    labels = LIMITS[limit]
    z = embeddings(len(labels))
    value = CASES[name][0](z, labels)
    assert math.isfinite(value.item())
    assert gradient(value, z).isfinite().all()


@pytest.mark.parametrize("name", CASES)
def test_embeddings_that_coincide_are_finite(name: str) -> None:
    z = torch.ones(len(LABELS), 5, dtype=torch.float64, requires_grad=True)
    value = CASES[name][0](z, LABELS)
    assert math.isfinite(value.item())
    assert gradient(value, z).isfinite().all()


@pytest.mark.parametrize("name", sorted(CASES.keys() - {"multi_similarity", "n_pairs"}))
def test_without_a_positive_pair_or_a_negative_nothing_is_pulled(name: str) -> None:
    z = embeddings(4)
    value = CASES[name][0](z, LIMITS["no positive"])
    if name.startswith("contrastive"):
        assert value > 0  # negatives push all the same
    else:
        assert value.item() == 0


def test_perfect_clusters_leave_little_to_pay() -> None:
    """With a denominator of negatives alone SupCon and soft neighbours would be below zero."""
    z = torch.eye(5, dtype=torch.float64)[LABELS]
    for kind in ("supcon", "soft_nearest_neighbours"):
        assert CASES[kind][0](z, LABELS).item() > 0
    assert CASES["smooth_ap"][0](z, LABELS).item() < 0.2


def test_soft_neighbours_are_at_most_supcon() -> None:
    """The slides have it the other way round; it is Jensen's inequality."""
    for seed in range(5):
        z = embeddings(seed=seed)
        soft, every = (CASES[kind][0](z, LABELS) for kind in ("soft_nearest_neighbours", "supcon"))
        assert soft < every


def test_the_librarys_smooth_ap_is_that_of_equal_labels_alone() -> None:
    """It takes the number of labels for the number of images of each."""
    with pytest.raises(ValueError, match="same number of elements"):
        losses.SmoothAPLoss()(embeddings(), LABELS)


class TestMargin:
    @staticmethod
    def loss(z: Tensor, labels: Tensor, margin: float = 0.2) -> Tensor:
        objective = MarginLoss(
            margin=margin, boundary=1.2, cutoff=0.5, generator=torch.Generator().manual_seed(0)
        ).double()
        layer = torch.nn.Linear(5, 5).double()
        torch.nn.init.eye_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
        return objective(z, labels, layer)  # type: ignore[no-any-return]

    def test_with_one_negative_there_is_nothing_to_draw(self) -> None:
        labels, z = torch.tensor([0, 0, 1]), embeddings(3)
        library = losses.MarginLoss(0.2, beta=1.2, triplets_per_anchor="all")
        value, expected = self.loss(z, labels), library.double()(z, labels)
        assert value.item() == pytest.approx(expected.item(), rel=1e-6)
        torch.testing.assert_close(gradient(value, z), gradient(expected, z), rtol=1e-5, atol=1e-8)

    @pytest.mark.parametrize("limit", LIMITS)
    def test_limits(self, limit: str) -> None:
        z = embeddings(4)
        value = self.loss(z, LIMITS[limit])
        assert math.isfinite(value.item())
        assert gradient(value, z).isfinite().all()
        assert (value == 0) == (limit != "one positive pair")

    def test_the_boundary_is_learned(self) -> None:
        objective = MarginLoss(margin=0.2, boundary=1.2, cutoff=0.5, generator=torch.Generator())
        assert {"boundary"} == set(objective.learned())

    def test_odds_are_the_inverse_of_the_density_of_distances(self) -> None:
        """Drawn by them, points uniform on the sphere have distances that are uniform."""
        dim, n = 6, 4000
        z = unit(torch.randn(n, dim, generator=torch.Generator().manual_seed(0)).double())
        apart = torch.cdist(z[:1], z)
        negative = torch.ones(1, n, dtype=torch.bool)
        odds = negative_odds(apart, negative, dim, 0.5)[0]
        mass = [
            odds[(apart[0] > low) & (apart[0] <= low + 0.2)].sum().item()
            for low in (0.6, 0.8, 1.0, 1.2)
        ]
        assert max(mass) / min(mass) < 1.25
        assert odds[apart[0] > 1.4].sum() == 0

    def test_where_all_negatives_are_too_far_any_is_drawn(self) -> None:
        odds = negative_odds(torch.full((2, 2), 1.9), ~torch.eye(2, dtype=torch.bool), 5, 0.5)
        assert odds.tolist() == [[0, 1], [1, 0]]


def test_tightness_is_ordered_as_lemma_1_says() -> None:
    """Boudiaf et al. 2020, of balanced labels on the sphere: SNCA ≤ center = contrastive ≤ MS.

    Up to constants: Σ_ij ‖z_i − z_j‖² of a label is 2 n Σ_i ‖z_i − c‖², and the mean is at most the
    logarithm of a mean of exponentials, of either sign. The last holds for α = 1 and m = 1.
    """
    labels, n = torch.arange(12) % 3, 4
    for seed in range(5):
        z = unit(embeddings(12, seed=seed))
        cosines, same = z @ z.T, labels[:, None] == labels
        contrastive = ((2 - 2 * cosines) * same).sum() / (2 * n * 12)
        centres = torch.stack([z[labels == k].mean(0) for k in range(3)])
        center = (z - centres[labels]).square().sum() / 12
        assert contrastive.item() == pytest.approx(center.item())
        masked = cosines.masked_fill(~same, -torch.inf)
        snca = 1 + math.log(n) - masked.logsumexp(1).mean()
        others = same & ~torch.eye(12, dtype=torch.bool)
        alike = torch.log1p(((1 - cosines).exp() * others).sum(1)).mean() - math.log(n)
        assert snca <= center + 1e-12
        assert center <= alike + 1e-12
