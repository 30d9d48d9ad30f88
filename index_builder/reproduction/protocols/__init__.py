"""Protocols of the literature by name: data, splits, outliers, settings, the papers' own figures.

=================  ==============================================================================
`protocol`         what a protocol is: training, validation, development, test, outliers
`closed_sets`      Fashion-MNIST (two ways), CIFAR-10, digits: the test's labels were learned from
`open_sets`        CUB, Cars, LFW, SOP, In-Shop, MSLS, Omniglot: they were not
`compared`         small ones, to compare objectives on
`published`        the authors' own figures
`configuration`    the configuration of an encoder that a protocol trains
`registry`         all of them by name, and the configuration of each
=================  ==============================================================================

The test is the published one, whole. It trains nothing, calibrates nothing and chooses nothing:
for that a `Task` like it is held out of the training images, the development task.
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
