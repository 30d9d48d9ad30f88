"""Distributions on the unit sphere: von Mises-Fisher and projected normal.

::

    normaliser         log C_D, A_D and A_D' of the von Mises-Fisher distribution
    distributions      von Mises-Fisher: κ from a resultant length, or from samples; draws.
                       Projected normal, a Gaussian embedding on the sphere: summary, draws, noise

D, ``dim``, is the dimension of the space that contains the sphere. κ, ``concentration``, is 0 for
the uniform distribution. Results are float64, but embeddings keep their data type.
"""

from model_store.sphere.distributions import (
    MAX_CONCENTRATION,
    approximate_concentration,
    base_noise,
    concentration_of,
    debiased_resultant_length,
    direction_and_concentration,
    fit_von_mises_fisher,
    kl_divergence,
    kl_divergence_to_uniform,
    log_bhattacharyya_coefficient,
    log_expected_likelihood,
    resultant_length_of_gaussian,
    sample_projected_normal,
    sample_von_mises_fisher,
    spherical_variance,
    unit_direction,
)
from model_store.sphere.normaliser import (
    cumulant_generating_function,
    log_normaliser,
    mean_resultant_length,
    mean_resultant_length_derivative,
)

__all__ = [
    "MAX_CONCENTRATION",
    "approximate_concentration",
    "base_noise",
    "concentration_of",
    "cumulant_generating_function",
    "debiased_resultant_length",
    "direction_and_concentration",
    "fit_von_mises_fisher",
    "kl_divergence",
    "kl_divergence_to_uniform",
    "log_bhattacharyya_coefficient",
    "log_expected_likelihood",
    "log_normaliser",
    "mean_resultant_length",
    "mean_resultant_length_derivative",
    "resultant_length_of_gaussian",
    "sample_projected_normal",
    "sample_von_mises_fisher",
    "spherical_variance",
    "unit_direction",
]
