"""Published protocols by name: data, splits, outliers, settings, and the papers' results.

=================  ==============================================================================
`protocol`         the parts of a protocol: training, validation, development, test, outliers
`closed_sets`      Fashion-MNIST (two ways), CIFAR-10, digits: test labels occur in training
`open_sets`        CUB, Cars, LFW, SOP, In-Shop, MSLS, Omniglot: test labels are new
`compared`         small protocols for comparing objectives
`published`        the papers' results
`configuration`    the configuration of a protocol's encoder
`registry`         all protocols by name, and their configurations
=================  ==============================================================================

The test is the complete published test. Training, calibration and choices do not use it. They use
the development task, a similar `Task` held out of the training images.
"""

from index_builder.reproduction.protocols.configuration import ProtocolConfig
from index_builder.reproduction.protocols.protocol import Outliers, Protocol, ProtocolData, Task
from index_builder.reproduction.protocols.registry import PROTOCOLS, load_protocol, protocol_config

__all__ = [
    "PROTOCOLS",
    "Outliers",
    "Protocol",
    "ProtocolConfig",
    "ProtocolData",
    "Task",
    "load_protocol",
    "protocol_config",
]
