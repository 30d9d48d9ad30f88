from __future__ import annotations

import numpy as np
import pytest

from index_builder.reproduction.retrieval import nearest
from model_store.sphere import unit_direction


@pytest.mark.parametrize("embedding_dim", [3, 16])
@pytest.mark.parametrize("among_themselves", [False, True])
def test_nearest_are_those_of_brute_force(embedding_dim: int, among_themselves: bool) -> None:
    generator = np.random.default_rng(0)
    gallery = unit_direction(generator.standard_normal((200, embedding_dim), dtype=np.float32))
    own = np.arange(0, 200, 3) if among_themselves else None
    queries = gallery[own] if among_themselves else gallery[:50] + np.float32(0.1)
    queries = unit_direction(queries)
    similarities = queries.astype(float) @ gallery.T.astype(float)
    if among_themselves:
        similarities[np.arange(len(queries)), own] = -np.inf
    expected = np.argsort(-similarities, axis=1)[:, :5]
    found, told = nearest(queries, gallery, 5, own)
    assert (found == expected).all()
    np.testing.assert_allclose(told, np.take_along_axis(similarities, expected, 1), atol=1e-6)
