"""Laplace posteriors of the last layer.

::

    fit                    a posterior from features, labels and curvature, and its prior precision
    curvature              the generalised Gauss-Newton matrix: full, positives, fixed; weights of
                           positive and negative pairs
    all_pairs              exact curvature, summed over all pairs
    minibatches            curvature of batches
    kronecker              Kronecker-factored curvature
    kronecker_posterior    the matrix normal posterior
    last_layer             the diagonal posterior
    held_out               prior and temperature from held-out labels and images
"""
