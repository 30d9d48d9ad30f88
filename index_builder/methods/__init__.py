"""Methods: how an encoder is trained and gets its uncertainty. A file for each.

::

    method               the interface
    registry             methods by the name in `posterior.method`
    laplace              a Laplace posterior, fitted after or during training
    bayesian_triplet     a variance head, trained with the Bayesian triplet loss
    hedged_instance      hedged instance embeddings
    face_embeddings      probabilistic face embeddings
    dropout              Monte Carlo dropout
    ensemble             a deep ensemble
    embedding_norm       the norm of the embedding as its concentration
    loss_prediction      a head that predicts an image's retrieval loss
    deterministic        no posterior
    votes                choice of a temperature on held-out images

The mathematics are in `index_builder.posteriors` and `index_builder.objectives`.
"""

from index_builder.methods.method import Method, Trained
from index_builder.methods.registry import METHODS, method_of

__all__ = ["METHODS", "Method", "Trained", "method_of"]
