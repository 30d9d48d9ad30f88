"""Posteriors: the distribution of an embedding, given a trained network and an image.

The modules:

=====================  ==========================================================================
`laplace`              a Laplace posterior of the last layer: curvature, prior, prediction
`variance_head`        `VarianceHeadPosterior`: a head predicts the variance from the features
`uncertainty_module`   `UncertaintyModulePosterior`: the variance network of PFE and HIB
`embedding_norm`       `EmbeddingNormPosterior`: the embedding's norm is its concentration
`predicted_loss`       `PredictedLossPosterior`: a predicted loss scales the variance
`point`                `PointPosterior`: no posterior, the deterministic baseline
`dropout`              `DropoutPosterior`: Monte Carlo dropout, closed form in the last layer
`ensemble`             `fit_ensemble`: independently trained encoders, aligned to one space
`stored`               `load_posterior`: reads any posterior from its file
`encoders`             modules for export: images to mean, variance and features
=====================  ==========================================================================
"""
