"""Trunks compute the features of images: their interface, and the trunks that can be trained.

The small trunks are those of the Laplace metric-learning paper (Warburg et al. 2023, G.2). A trunk
of torchvision is a backbone without its classifier, and a pooling of its feature map.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from index_builder.configuration.defaults import N_FEATURES
from model_store.encoder.contract import EncoderInput
from model_store.errors import WeightsError
from model_store.images import Preprocessing


class Trunk(nn.Module):
    """Computes features, which are the input of the last layer.

    Attributes
    ----------
    preprocessing : the preprocessing of an upright RGB image, or the shape of the input vectors.
    n_features : F.
    """

    preprocessing: EncoderInput
    n_features: int

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """Features (B, F) of standardised ``images`` (B, 3, H, W)."""


@contextmanager
def drawn_from(generator: torch.Generator) -> Iterator[None]:
    """Seed torch from ``generator`` in this context; afterwards restore torch's random state."""
    seed = int(torch.randint(2**62, (), generator=generator))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def dropped_out(values: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Set a random ``share`` of ``values`` to zero and scale up the rest (Srivastava 2014).

    Parameters
    ----------
    values : (B, ...); entries are dropped independently.
    share : in [0, 1).
    """
    if not share:
        return values
    mask = torch.rand(values.shape, generator=generator) >= share
    return kept(values, mask.to(values.device), share)


def kept(values: Tensor, mask: Tensor, share: float) -> Tensor:
    """Set ``values`` to zero where ``mask`` is false, and divide the rest by 1 − ``share``.

    Parameters
    ----------
    values : (B, ...).
    mask : bool, broadcast against ``values``.
    """
    return values * mask / (1 - share)


def dropout_masks(
    n_passes: int, shape: Sequence[int], share: float, generator: torch.Generator
) -> Tensor:
    """Draw masks (T, *shape), bool; true means that the entry is kept."""
    return torch.rand(n_passes, *shape, generator=generator) >= share


_FIRST = 2
"""Number of layers before the dropout: the first convolution and its activation."""


class SmallCNN(Trunk):
    """Two 3 × 3 convolutions and one pooling: from a grey image, 28 × 28, to 9,216 features.

    The trunk is for grey images, so it averages the colour channels. The paper applies ReLU before
    the pooling. This trunk applies ReLU after the pooling: the result is the same, with a quarter
    of the operations.

    Parameters
    ----------
    dropout : in training, the dropped share of the activations between the convolutions.
    generator : draws the masks.
    """

    preprocessing = Preprocessing(height=28, width=28, decoding="reduced")
    n_features = 64 * 12 * 12
    hidden_shape = (32, 26, 26)
    """Shape of the activations between the convolutions."""

    def __init__(self, dropout: float = 0.0, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.dropout = dropout
        self.generator = generator

    def forward(self, images: Tensor) -> Tensor:
        """Features (B, 9216) of standardised ``images`` (B, 3, 28, 28)."""
        hidden = self._hidden(images)
        if self.training and self.generator is not None:
            hidden = dropped_out(hidden, self.dropout, self.generator)
        features: Tensor = self.layers[_FIRST:](hidden)
        return features

    def masked_features(self, images: Tensor, masks: Tensor) -> list[Tensor]:
        """Return features (B, 9216) for each mask of ``masks`` (T, *hidden_shape), bool."""
        hidden = self._hidden(images)
        return [self.layers[_FIRST:](kept(hidden, mask, self.dropout)) for mask in masks]

    def _hidden(self, images: Tensor) -> Tensor:
        hidden: Tensor = self.layers[:_FIRST](images.mean(dim=1, keepdim=True))
        return hidden


class ColourCNN(Trunk):
    """Three 3 × 3 convolutions and two poolings: from an RGB image, 32 × 32, to 1,024 features.

    The layers are the same as in the authors' code. The text of the paper (G.2) describes one input
    channel and one pooling. But CIFAR-10 images have three channels, and the size of the paper's
    last layer requires two poolings. The trunk applies ReLU after each pooling instead of before
    it. The result is the same, with a quarter of the operations.
    """

    preprocessing = Preprocessing(height=32, width=32, decoding="reduced")
    n_features = 64 * 4 * 4

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 32, 3),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(),
            nn.Flatten(),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Features (B, 1024) of standardised ``images`` (B, 3, 32, 32)."""
        features: Tensor = self.layers(images)
        return features


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
