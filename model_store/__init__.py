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
    messages        reasons as codes with parameters, and their sentences
    files           crash-safe files, checked paths, locks and disk space
    signing         keys and signatures of Ed25519
    watch_states    drift tests and the share of absent queries, kept across restarts
    feedback        reviews of matches, and queries to review, in SQLite
    stores          adapters for vector databases
    gallery_map     the items of a gallery in two dimensions
    curation        near duplicates, and labels that neighbours contradict
    identities      queries without a match, grouped into new identities
    vector_queries  vectors as queries, and result lists of other stores
    text_queries    texts as queries
    answers         answers to a query, and how answers change from one bundle to another
    pairs           the uncertainty of the similarity of query and item
    truth           whether an item is a true match of a query
    verdicts        the words of answers
    records         parts of answers that the service sends unchanged
    deadline        deadlines, after which work is cancelled
    canary          a query that shows whether a gallery answers
    table           tables of columns, and rows of numbers in half precision
    processors      processors that this process may use
    threads         number of threads for arithmetic
    memory          settings of the allocator
    installation    the installed distribution and its extras
    addresses       addresses of servers in settings, which may hold a password
    image_inputs    image arguments: paths, bytes, Pillow images, arrays
    item_ids        the rule for ids of items
    item_metadata   the rule for metadata of items
    spreadsheets    CSV cells without formulas
    lists           lists in options and environment variables
    programs        common conventions of all programs: --version, Ctrl+C, help
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from model_store.answers import Answer
    from model_store.bundles.bundle import Bundle, open_bundle
    from model_store.retriever import Retriever
    from model_store.text_queries import search_text
    from model_store.vector_queries import NeighbourList, VectorQuery, decide_list
else:
    _ROOMS = {
        "Answer": "model_store.answers",
        "Bundle": "model_store.bundles.bundle",
        "NeighbourList": "model_store.vector_queries",
        "Retriever": "model_store.retriever",
        "VectorQuery": "model_store.vector_queries",
        "decide_list": "model_store.vector_queries",
        "open_bundle": "model_store.bundles.bundle",
        "search_text": "model_store.text_queries",
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
