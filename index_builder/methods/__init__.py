"""Methods: each trains an encoder and gives its embeddings an uncertainty.

::

    method               the interface
    registry             methods by the name in `posterior.method`
    laplace              a Laplace posterior, fitted after or during training
    bayesian_triplet     a variance head, trained with the Bayesian triplet loss
    hedged_instance      hedged instance embeddings
    face_embeddings      probabilistic face embeddings
    dropout              Monte Carlo dropout
    ensemble             a deep ensemble
    embedding_norm       a concentration from the norm of the embedding
    loss_prediction      a head that predicts the retrieval loss of an image
    deterministic        no posterior
    votes                choice of a temperature on held-out images

The mathematics is in `index_builder.posteriors` and `index_builder.objectives`.
"""

from index_builder.methods.method import Method, Trained
from index_builder.methods.registry import METHODS, method_of

__all__ = ["METHODS", "Method", "Trained", "method_of"]
