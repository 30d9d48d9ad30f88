"""Pools a network's tokens or feature map to one vector per image."""

from __future__ import annotations

from torch import Tensor

from index_builder.foreign_encoders.choices import GEM_EXPONENT, GEM_FLOOR, Pooling


def pooled(found: Tensor, pooling: Pooling, n_prefix: int = 0) -> Tensor:
    """Pool tokens (B, N, C) or a feature map (B, C, H, W) to (B, C).

    Parameters
    ----------
    pooling : any kind except ``default``. The generalised mean raises small values to `GEM_FLOOR`.
    n_prefix : number of tokens before the first patch: class token and registers.

    Raises
    ------
    ValueError : there is no class token, or ``found`` is neither tokens nor a feature map.
    """
    if found.ndim not in {3, 4}:
        raise ValueError(f"the features have the shape {tuple(found.shape)}: nothing to pool")
    if pooling is Pooling.class_token:
        if found.ndim == 4 or n_prefix == 0:
            raise ValueError("the network has no class token")
        return found[:, 0]
    patches, over = (found[:, n_prefix:], [1]) if found.ndim == 3 else (found, [2, 3])
    if pooling is Pooling.mean:
        return patches.mean(over)
    return patches.clamp_min(GEM_FLOOR).pow(GEM_EXPONENT).mean(over).pow(1 / GEM_EXPONENT)
