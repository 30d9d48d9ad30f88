"""Methods: how an encoder is trained, and comes by its uncertainty. A file for each.

::

    method               the interface
    registry             `posterior.method` of a configuration → its method
    laplace              a Laplace posterior, after training or kept up while training
    bayesian_triplet     a variance head, by the Bayesian triplet loss
    hedged_instance      hedged instance embeddings
    face_embeddings      probabilistic face embeddings
    dropout              Monte Carlo dropout
    ensemble             a deep ensemble
    embedding_norm       the length of the embedding as its concentration
    loss_prediction      how badly an image will be found, predicted
    deterministic        no posterior
    votes                held-out images that choose a prior or a temperature

The mathematics are in `index_builder.posteriors` and `index_builder.objectives`.
"""

from index_builder.methods.method import Method, Trained
from index_builder.methods.registry import METHODS, method_of

__all__ = ["METHODS", "Method", "Trained", "method_of"]
