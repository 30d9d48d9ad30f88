"""What a GPU is worth, row by row: `tests.benchmarks.bench_gpu` puts them together.

::

    rows        a row that is measured, or says why it is not
    encoders    ONNX Runtime's providers: throughput, latency, parity
    fitting     posterior fits, and training steps, in torch
    serving     the service over the encoder alone
"""
