"""Distributions on the unit sphere: von Mises-Fisher and projected normal.

::

    normaliser         log C_D, A_D and A_D' of the von Mises-Fisher distribution
    von_mises_fisher   κ from a resultant length, or from samples; draws of the distribution
    projected_normal   a Gaussian embedding on the sphere: summary, draws, fixed noise

D, ``dim``, is the dimension of the space that contains the sphere. κ, ``concentration``, is 0 for
the uniform distribution. Results are float64, but embeddings keep their data type.
"""

from model_store.sphere.normaliser import (
    cumulant_generating_function,
    log_normaliser,
    mean_resultant_length,
    mean_resultant_length_derivative,
)
from model_store.sphere.projected_normal import (
    base_noise,
    direction_and_concentration,
    resultant_length_of_gaussian,
    sample_projected_normal,
    spherical_variance,
)
from model_store.sphere.von_mises_fisher import (
    MAX_CONCENTRATION,
    approximate_concentration,
    concentration_of,
    debiased_resultant_length,
    fit_von_mises_fisher,
    kl_divergence,
    kl_divergence_to_uniform,
    log_bhattacharyya_coefficient,
    log_expected_likelihood,
    sample_von_mises_fisher,
    unit_direction,
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
