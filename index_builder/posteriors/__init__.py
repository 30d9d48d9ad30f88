"""Posteriors: the distribution of an embedding, given a trained network and an image.

The modules:

=====================  ==========================================================================
`laplace`              a Laplace posterior of the last layer: curvature, prior, prediction
`learned_variances`    heads that predict a variance or a loss: Bayesian triplet, PFE and HIB
`baselines`            a point, the embedding's norm, Monte Carlo dropout, a deep ensemble
`stored`               `load_posterior` reads any posterior from its file; modules for export
=====================  ==========================================================================
"""
