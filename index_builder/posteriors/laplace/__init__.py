"""Laplace posteriors of the last layer.

::

    fit                    a posterior from features, labels and curvature
    curvature              the generalised Gauss-Newton matrix: full, positives, fixed
    pairs                  curvature of single pairs
    all_pairs              curvature summed over all pairs, exactly
    minibatches            curvature of batches
    kronecker              Kronecker factors and what a posterior makes of them
    kronecker_pairs        Kronecker factors summed over all pairs
    kronecker_posterior    the posterior of Kronecker factors
    last_layer             the diagonal posterior
    online                 curvature kept up to date while training
    targets                which pairs attract and which repel
    prior                  its precision: by curvature, by marginal likelihood
    held_out               prior and temperature by held-out labels and images
    validation             a temperature by a criterion on validation images
    votes                  the likelihood of neighbours' labels
    feature_blocks         checks of features that come in blocks
"""
