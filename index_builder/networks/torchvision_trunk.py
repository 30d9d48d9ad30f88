"""Trunks from torchvision: a backbone without its classifier, and a pooling of its feature map."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from index_builder.configuration.defaults import N_FEATURES
from index_builder.networks.trunk import Trunk
from model_store.errors import WeightsError
from model_store.images import Preprocessing

_FLOOR = 1e-6
"""Minimum value of an activation; the gradient of a fractional power is not finite at zero."""


class AveragePooling(nn.Module):
    """Average a feature map over height and width: (B, C, H, W) to (B, C)."""

    def forward(self, feature_map: Tensor) -> Tensor:
        """Pool ``feature_map``."""
        return feature_map.mean(dim=(2, 3))


class GeneralisedMeanPooling(nn.Module):
    """Generalised mean of a feature map over height and width: (mean xᵖ)^(1/p).

    Maps x ≥ 0 of shape (B, C, H, W) to (B, C). This is GeM of Radenović et al. 2019, Eq. 3, with
    one learned exponent p. As in Warburg et al. 2023, G.2, the exponent starts at 3. For p = 1 the
    result is the average; for p → ∞ the result approaches the maximum.
    """

    def __init__(self, exponent: float = 3.0) -> None:
        super().__init__()
        self.exponent = nn.Parameter(torch.tensor(exponent))

    def forward(self, feature_map: Tensor) -> Tensor:
        """Pool ``feature_map``; negative values are treated as zero."""
        powers = feature_map.clamp_min(_FLOOR).pow(self.exponent)
        return powers.mean(dim=(2, 3)).pow(1 / self.exponent)


TorchvisionName = Literal[
    "resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_large", "googlenet", "vit_b_16"
]
PoolingName = Literal["average", "gem"]

_OPTIONS: Mapping[TorchvisionName, Mapping[str, bool]] = {
    "googlenet": {"aux_logits": False, "init_weights": False}
}
"""Options of torchvision's constructors. Torchvision's GoogLeNet is the Inception network with
batch normalisation."""

_POOLINGS: Mapping[PoolingName, Callable[[], nn.Module]] = {
    "average": AveragePooling,
    "gem": GeneralisedMeanPooling,
}
CLASSIFIERS = ("fc.", "classifier.", "heads.", "aux1.", "aux2.")
"""Name prefixes of classifier parameters in torchvision's models; a trunk does not use them."""


class TorchvisionTrunk(Trunk):
    """A torchvision model without its classifier.

    Parameters
    ----------
    name : torchvision's name of the model.
    pooling : pooling of the feature map. A vision transformer has no pooling; its class token is
        used.
    input_size : height and width of the input, pixels.
    tensorflow_padding : whether to pad strided convolutions as TensorFlow does; weights that
        TensorFlow trained need this padding.
    """

    def __init__(
        self,
        name: TorchvisionName,
        pooling: PoolingName = "average",
        input_size: int = 224,
        *,
        tensorflow_padding: bool = False,
    ) -> None:
        from torchvision import models  # noqa: PLC0415 - slow: it brings torch's compiler

        super().__init__()
        self.preprocessing = Preprocessing(input_size, input_size, decoding="reduced")
        self.name: TorchvisionName = name
        self.n_features = N_FEATURES[name]
        options: dict[str, int] = {**_OPTIONS.get(name, {})}
        if name == "vit_b_16":
            options["image_size"] = input_size
        backbone = models.get_model(name, weights=None, **options)
        self.backbone: nn.Module
        self.pooling: nn.Module
        if name == "vit_b_16":
            backbone.heads = nn.Identity()
            self.backbone, self.pooling = backbone, nn.Identity()
        else:
            self.backbone, self.pooling = feature_map(backbone), _POOLINGS[pooling]()
        if tensorflow_padding:
            pad_as_tensorflow(self.backbone)

    def forward(self, images: Tensor) -> Tensor:
        """Features (B, F) of standardised ``images`` (B, 3, H, W)."""
        features: Tensor = self.pooling(self.backbone(images))
        return features

    def load_backbone(self, state: Mapping[str, Tensor]) -> None:
        """Load the weights of the torchvision model of this name; leave out the classifier.

        Raises
        ------
        WeightsError : a tensor is missing or unknown, or its shape is wrong.
        """
        kept = {name: value for name, value in state.items() if not name.startswith(CLASSIFIERS)}
        try:
            self.backbone.load_state_dict(kept)
        except RuntimeError as error:
            raise WeightsError(f"The weights do not fit the trunk. {shortened(error)}") from error


def shortened(error: RuntimeError, most: int = 400) -> str:
    """Shorten torch's error about a state dict, because the error names every tensor."""
    text = " ".join(str(error).split())
    return text if len(text) <= most else f"{text[:most]} …"


class _AsymmetricConv2d(nn.Conv2d):
    """A strided convolution with TensorFlow's "SAME" padding, for inputs of even size."""

    def forward(self, images: Tensor) -> Tensor:
        padded = nn.functional.pad(images, (0, 1, 0, 1))
        return nn.functional.conv2d(
            padded, self.weight, self.bias, self.stride, 0, self.dilation, self.groups
        )


def feature_map(backbone: nn.Module) -> nn.Module:
    """Return all layers before the global pooling; the layers keep torchvision's names."""
    convolutional = [
        (name, part)
        for name, part in backbone.named_children()
        if part is not None and name not in {"avgpool", "dropout", "fc", "classifier"}
    ]
    return nn.Sequential(OrderedDict(convolutional))


def pad_as_tensorflow(module: nn.Module) -> None:
    """Replace every strided 3 × 3 convolution in ``module``; load the weights afterwards."""
    for name, part in module.named_children():
        if isinstance(part, nn.Conv2d) and part.stride == (2, 2) and part.kernel_size == (3, 3):
            replacement = _AsymmetricConv2d(
                part.in_channels,
                part.out_channels,
                3,
                stride=2,
                groups=part.groups,
                bias=part.bias is not None,
            )
            setattr(module, name, replacement)
        else:
            pad_as_tensorflow(part)


def freeze_batch_norm(module: nn.Module) -> None:
    """Keep the batch-normalisation statistics of the pretraining.

    A batch contains few labels, so its statistics differ from the statistics of the pretraining.
    Fine-tuning would otherwise replace the statistics of the pretraining.
    """
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.eval()


def imagenet_normalisation() -> tuple[Tensor, Tensor]:
    """Return the pixel mean and standard deviation (3,) of torchvision's weights."""
    return torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
