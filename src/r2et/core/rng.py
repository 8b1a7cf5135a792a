"""Random numbers by purpose: the same seed gives the same numbers on every device."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral

import numpy as np
import torch
from torch import Tensor


def stream(seed: int, *purpose: str) -> torch.Generator:
    """A random stream for one purpose, as in `stream(0, "adult", "attack")`.

    Streams live on the CPU, so a seed draws the same numbers for every device.
    """
    check_seed(seed)
    digest = hashlib.sha256("/".join((str(seed), *purpose)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:6], "big"))


def check_seed(seed: object) -> None:
    """Refuse a seed that is no whole number: by its name, anything would draw something."""
    if not isinstance(seed, Integral) or isinstance(seed, bool):
        raise TypeError(
            f"a seed must be a whole number, got {seed!r} of type {type(seed).__name__}: give one, "
            "such as 0."
        )


@contextmanager
def random_state_kept(device: torch.device) -> Iterator[None]:
    """Whatever is drawn inside, everyone's global random streams go on as if it had not been."""
    plain, arrays = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            random.setstate(plain)
            np.random.set_state(arrays)


def noise_like(x: Tensor, generator: torch.Generator, copies: int | None = None) -> Tensor:
    """Standard normal numbers shaped like x, or `copies` such blocks: (copies, ...)."""
    shape = x.shape if copies is None else (copies, *x.shape)
    drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
    return drawn.to(device=x.device, dtype=x.dtype)


def in_ball(x: Tensor, radius: float, generator: torch.Generator) -> Tensor:
    """One point for each example, uniform in the l2 ball of `radius` around it: like x."""
    direction = noise_like(x, generator).flatten(1)
    direction = direction / direction.norm(dim=-1, keepdim=True)
    uniform = torch.rand((len(x), 1), generator=generator, dtype=torch.float64)
    reach = radius * uniform.pow(1 / direction.shape[1]).to(device=x.device, dtype=x.dtype)
    offset: Tensor = (reach * direction).view_as(x)
    return x + offset
