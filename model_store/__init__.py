"""The core of Vouch: bundles of trained models, and search with them. Arrays in, arrays out.

>>> from pathlib import Path
>>> from model_store import open_bundle
>>> bundle = open_bundle(Path("bundles/demo"))  # doctest: +SKIP
>>> bundle.retriever.search(Path("photo.png").read_bytes())  # doctest: +SKIP

A query passes through these packages: `images` (bytes to pixels) → `encoder` (pixels to a Gaussian)
→ `predictive` (projection to the sphere, with `sphere`) → `search` (neighbours in a `gallery`) →
`decision` (probabilities and verdict). `retriever` combines these packages, and a bundle
(`bundles`) stores their data. `gaussian` computes with uncertain distances, and `errors` defines
all error classes.

::

    errors          all error classes
    messages        the words of answers; reasons as codes with parameters, and their sentences
    files           crash-safe files, checked paths, locks, disk space and errors of a full disk
    watch_states    drift tests and the share of absent queries, kept across restarts
    feedback        reviews of matches, and queries to review, in SQLite
    stores          adapters for vector databases
    gallery_map     the items of a gallery in two dimensions
    curation        near duplicates, and labels that neighbours contradict
    identities      queries without a match, grouped into new identities
    identity_pairs  the evidence that two images show the same identity
    queries         vectors and texts as queries, and the canary; result lists of other stores
    answers         answers to a query, and how answers change from one bundle to another
    truth           whether an item is a true match of a query
    records         parts of answers that the service sends unchanged
    sqlite          SQLite files that several processes use, and deadlines
    predictive      the distribution of a query, and the uncertainty of a similarity
    table           tables of columns, rows in half precision, and arrays on disk
    machine         processors that this process may use, and settings of its memory and BLAS
    installation    the installed distribution and its extras
    image_inputs    image arguments: paths, bytes, Pillow images, arrays
    items           rules for ids, labels and metadata of items
    text_values     lists and addresses in settings, and CSV cells without formulas
    programs        common conventions of all programs: --version, Ctrl+C, help
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from model_store.answers import Answer
    from model_store.bundles.bundle import Bundle, open_bundle
    from model_store.queries import NeighbourList, VectorQuery, decide_list, search_text
    from model_store.retriever import Retriever
else:
    _ROOMS = {
        "Answer": "model_store.answers",
        "Bundle": "model_store.bundles.bundle",
        "NeighbourList": "model_store.queries",
        "Retriever": "model_store.retriever",
        "VectorQuery": "model_store.queries",
        "decide_list": "model_store.queries",
        "open_bundle": "model_store.bundles.bundle",
        "search_text": "model_store.queries",
    }

    def __getattr__(name: str) -> object:
        """Import a module on first use, because not all programs need FAISS or ONNX Runtime."""
        if name not in _ROOMS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_ROOMS[name]), name)


__all__ = [
    "Answer",
    "Bundle",
    "NeighbourList",
    "Retriever",
    "VectorQuery",
    "decide_list",
    "open_bundle",
    "search_text",
]
