"""Batch normalisation of rows: statistics of all rows, running ones as on one device."""

from __future__ import annotations

from typing import Any

import torch

from dgcl.rows.gathering import gathered
from dgcl.rows.reductions import moments
from dgcl.rows.tensor import Rows, plain, rows


def batch_norm(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> Any:
    """``F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)`` of ``(rows, C, *)``."""
    names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    defaults = {"weight": None, "bias": None, "training": False, "momentum": 0.1, "eps": 1e-5}
    given = defaults | dict(zip(names, args, strict=False)) | kwargs
    own = given["input"]
    if type(own) is not Rows or own._axis != 0 or own.dim() < 2 or name != "batch_norm":
        return gathered(func, name, args, kwargs)
    local, space = own._local, own._space
    rest = {key: plain(given[key]) for key in names[1:]}
    if not given["training"]:
        return rows(func(local, **rest), space)
    dims = [at for at in range(own.dim()) if at != 1]
    count = own.numel() // own.shape[1]
    if count == 1:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {own.shape}")
    wide = local.to(torch.promote_types(local.dtype, torch.float32))
    mean, variance = moments(wide, space, dims, count, "batch_norm")
    if rest["running_mean"] is not None:
        with torch.no_grad():
            for running, value in (
                (rest["running_mean"], mean),
                (rest["running_var"], variance * (count / (count - 1))),
            ):
                running.mul_(1 - given["momentum"]).add_(value.flatten() * given["momentum"])
    out = (wide - mean) * torch.rsqrt(variance + given["eps"])
    shape = [1, -1, *[1] * (own.dim() - 2)]
    if rest["weight"] is not None:
        out = out * rest["weight"].view(shape)
    if rest["bias"] is not None:
        out = out + rest["bias"].view(shape)
    return rows(out.to(local.dtype), space)
