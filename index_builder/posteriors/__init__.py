"""Posteriors: the distribution of an embedding, given a trained network and an image.

The modules:

=====================  ==========================================================================
`laplace`              a Laplace posterior of the last layer: curvature, prior, prediction
`learned_variances`    heads that predict a variance or a loss: Bayesian triplet, PFE and HIB
`embedding_norm`       `EmbeddingNormPosterior`: the embedding's norm is its concentration
`baselines`            a point, Monte Carlo dropout, and a deep ensemble
`stored`               `load_posterior`: reads any posterior from its file
`encoders`             modules for export: images to mean, variance and features
=====================  ==========================================================================
"""
