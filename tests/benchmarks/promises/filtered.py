"""Match probabilities under random filters, and what they cost."""

from __future__ import annotations

import time

import numpy as np

from index_builder.datasets import LabelledImages
from index_builder.metrics import calibration_error, reliability
from model_store.gallery.filters.grammar import Filter, parse_filter
from model_store.predictive import Predictive
from model_store.retriever import Retriever

from .measures import STATED, AnyWorld, Record, calibrate

N_FILTERS = 20
SMALLEST, LARGEST = 0.01, 0.5
"""Share of the gallery that a filter lets through."""

LIMIT = 10

N_MATCHED = 190
"""Queries that each filter is tried with; absent ones make up the stated share."""


def measure_filters(world: AnyWorld, seed: int) -> Record:
    """Judge the first item's probability and P(no match) under random filters.

    Half of the filters let whole labels through (``shelf``), half single items (``slot``). P(no
    match) says that no item of the query's label passes. A caller who knows that one does asks
    about such queries alone.
    """
    retriever = Retriever(world.encoder, world.gallery, calibrate(world, seed))
    lists_alone = Retriever(world.encoder, world.gallery, None)
    generator = np.random.default_rng([seed, 5])
    n_absent = round(STATED / (1 - STATED) * N_MATCHED)
    asked = [
        query
        for images, n in ((world.matched, N_MATCHED), (world.absent, n_absent))
        for query in _some(retriever, images, n, generator)
    ]
    label_of = dict(zip(world.gallery_images.ids, world.gallery_images.labels, strict=True))
    items = world.gallery.items(np.arange(world.gallery.n_items))
    labels = np.array([label_of[item.id] for item in items])
    said: dict[str, list[tuple[float, bool]]] = {"ece": [], "no_match_ece": [], "known_ece": []}
    seconds: dict[str, list[float]] = {"filtered": [], "unfiltered": [], "lists": []}
    for place in range(N_FILTERS):
        where = _filter(place, generator)
        passing = world.gallery.matching(where).mask()
        if not passing.any():
            continue
        allowed = set(labels[passing].tolist())
        for predictive, truth in asked:
            started = time.perf_counter()
            answer = retriever.find(predictive, LIMIT, where=where)
            between = time.perf_counter()
            retriever.find(predictive, LIMIT)
            then = time.perf_counter()
            lists_alone.find(predictive, LIMIT, where=where)
            seconds["filtered"].append(between - started)
            seconds["unfiltered"].append(then - between)
            seconds["lists"].append(time.perf_counter() - then)
            first, nothing = answer.matches[0], answer.decision.no_match_probability
            assert first.match_probability is not None
            assert nothing is not None
            said["ece"].append((first.match_probability, first.label == truth))
            said["no_match_ece"].append((nothing, truth not in allowed))
            if truth in allowed:
                known = retriever.find(predictive, 1, where=where, filter_means="known").matches[0]
                assert known.match_probability is not None
                said["known_ece"].append((known.match_probability, known.label == truth))
    errors = {
        name: calibration_error(
            reliability(np.array([p for p, _ in pairs]), np.array([came for _, came in pairs]))
        )
        for name, pairs in said.items()
        if pairs
    }
    medians = {name: float(np.median(of_all)) for name, of_all in seconds.items()}
    return {
        **errors,
        "time_over_unfiltered": medians["filtered"] / medians["unfiltered"],
        "time_over_lists_alone": medians["filtered"] / medians["lists"],
    }


def _filter(place: int, generator: np.random.Generator) -> Filter:
    """Draw a filter that lets about `SMALLEST` to `LARGEST` of the gallery through."""
    share = np.exp(generator.uniform(np.log(SMALLEST), np.log(LARGEST)))
    start = generator.uniform(0, 1 - share)
    field = "shelf" if place % 2 else "slot"
    return parse_filter({field: {"gte": float(start), "lt": float(start + share)}})


def _some(
    retriever: Retriever, images: LabelledImages, n: int, generator: np.random.Generator
) -> list[tuple[Predictive, str]]:
    """Draw n queries, with their true labels."""
    chosen = images.at(generator.permutation(len(images))[:n])
    prepared = chosen.prepared(retriever.encoder.metadata.preprocessing)
    return list(zip(retriever.embed(prepared), chosen.labels, strict=True))
