"""The offline part of Vouch: makes a bundle for the service from labelled images.

Each step is a sub-command of ``vouch-build`` (`commands`). Steps exchange files in a run directory
(`pipeline`), so each step can be repeated alone:

==========  ==========================================================  =========================
step        input → output                                              package
==========  ==========================================================  =========================
train       images → encoder and parameters of its objective            `training`, `methods`
fit         encoder → posterior: Laplace, ensemble, learned, …          `methods`
export      encoder and posterior → ONNX, compared with its source      `pipeline.export`
index       gallery images → FAISS, variances, items                    `indexing`
calibrate   held-out queries → decision layer                           `calibration`
evaluate    other held-out queries → table and JSON                     `calibration`, `metrics`
publish     all parts → a verified bundle, by one rename                `model_store.bundles`
==========  ==========================================================  =========================

`pipeline` imports two chains of packages. The chain ``methods → training → objectives → posteriors
→ networks`` needs torch where something is trained. An existing encoder with a whitening and a
Laplace posterior has a closed form: `pipeline.closed_form` builds it without torch, and `arrays`
lets the same mathematics work on arrays of NumPy and on tensors. The chain ``indexing → calibration
→ datasets`` never needs torch.
`vectors` caches features and embeddings for all steps. `storage` reads files from buckets and the
web. `configuration` defines the settings. `progress` shows progress, `output` reports write errors,
`child_processes` starts child processes that ignore Ctrl+C. `whitening` fits a last layer in closed
form. `encoders` has the built-in encoder, and finds other encoders by name or path.
`foreign_encoders` exports encoders of other libraries. `certificates` writes and verifies signed
certificates of a bundle's guarantees. `exchange` copies bundles to and from other places.
`reproduction` runs published methods on published protocols.
"""
