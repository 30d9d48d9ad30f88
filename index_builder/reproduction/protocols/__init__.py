"""Protocols by name: the data, splits, outliers, settings and results of published papers.

=================  ==============================================================================
`protocol`         the parts of a protocol: training, validation, development, test, outliers
`loaders`          closed sets: Fashion-MNIST (three ways), CIFAR-10, digits: test labels occur in
                   training; open sets: CUB, Cars, LFW, SOP, In-Shop, MSLS, Omniglot: test labels
                   are new; small protocols for comparing objectives
`published`        the papers' results
`registry`         all protocols by name, and their configurations
=================  ==============================================================================

The test of a protocol is the complete published test. Training, calibration and the choice of
settings do not use the test. They use the development task: a similar `Task` whose images are held
out of training.
"""

from index_builder.reproduction.protocols.protocol import Loading, Outliers, ProtocolData, Task
from index_builder.reproduction.protocols.registry import (
    PROTOCOLS,
    ProtocolConfig,
    load_protocol,
    protocol_config,
)

__all__ = [
    "PROTOCOLS",
    "Loading",
    "Outliers",
    "ProtocolConfig",
    "ProtocolData",
    "Task",
    "load_protocol",
    "protocol_config",
]
