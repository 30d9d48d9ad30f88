"""Laplace posteriors of the last layer.

::

    fit                    a posterior from features, labels and curvature
    curvature              the generalised Gauss-Newton matrix: full, positives, fixed
    all_pairs              exact curvature, summed over all pairs
    minibatches            curvature of batches
    kronecker              Kronecker-factored curvature
    kronecker_posterior    the matrix normal posterior
    last_layer             the diagonal posterior
    online                 curvature as a running average during training
    targets                weights of positive and negative pairs
    prior                  prior precision by curvature or marginal likelihood
    held_out               prior and temperature from held-out labels and images
"""
