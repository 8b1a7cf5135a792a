"""Norms of symmetric matrices that are known by their products with vectors: Lanczos' method."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from r2et.core.autograd import root
from r2et.core.geometry import unit


def spectral_norm(product: Callable[[Tensor], Tensor], start: Tensor, steps: int = 8) -> Tensor:
    """Largest magnitude of an eigenvalue of symmetric matrices A, approached from below: (B,).

    `product` maps one vector for each matrix, (B, n), to A v. What is returned is ||A v|| of the
    unit vector v that Lanczos' method takes for the eigenvector after `steps` products: never more
    than the true norm, and equal to it, if `start` has a share of the eigenvector, after as many
    steps as there are different eigenvalues. Not |v'Av|: where the largest eigenvalues are a and
    -a, a mixture of both has ||A v|| = a but any v'Av in between. In the gradient v is a constant,
    which makes it u v' with u = Av / ||Av||: where v is exact, a subgradient of the norm, also
    where eigenvalues coincide.
    """
    with torch.no_grad():
        here = unit(start)
        basis, diagonal, beside = here[:, None], list[Tensor](), list[Tensor]()
        scale = torch.zeros_like(here[:, :1])
        for step in range(1, (steps := min(steps, start.shape[1])) + 1):
            image = product(here)
            scale = torch.maximum(scale, torch.linalg.vector_norm(image, dim=-1, keepdim=True))
            diagonal.append((image * here).sum(-1, keepdim=True))
            if step == steps:
                break
            rest = image - diagonal[-1] * here
            for _ in range(2):  # once leaves too much where almost all is in the basis already
                rest = rest - ((basis * rest[:, None]).sum(-1, keepdim=True) * basis).sum(1)
            link = torch.linalg.vector_norm(rest, dim=-1, keepdim=True)
            # What rounding left of nothing is no direction, and would differ with the batch.
            new = link > 100 * torch.finfo(link.dtype).eps * scale
            beside.append(torch.where(new, link, 0.0))
            here = torch.where(new, rest / torch.where(new, link, 1.0), 0.0)
            basis = torch.cat([basis, here[:, None]], 1)
        share = _dominant(_tridiagonal(diagonal, beside))
        direction = (basis * share[..., None]).sum(1)
    return root(product(direction).square().sum(-1))


def _tridiagonal(diagonal: Sequence[Tensor], beside: Sequence[Tensor]) -> Tensor:
    """Symmetric matrices: m columns (B, 1) on the diagonal, m - 1 beside it: (B, m, m)."""
    matrices = torch.cat(list(diagonal), -1).diag_embed()
    if beside:
        next_to = torch.cat(list(beside), -1)
        matrices = matrices + next_to.diag_embed(1) + next_to.diag_embed(-1)
    return matrices


def _dominant(matrices: Tensor) -> Tensor:
    """Unit vectors on which small symmetric matrices act most strongly: (B, m, m) -> (B, m).

    Squared over and over, a matrix keeps its largest eigenvalues only; each of its columns is then
    made of their eigenvectors, and the one with the largest entry is returned. Batched solvers
    would take the matrices one by one.
    """
    for _ in range(5):
        largest = matrices.abs().amax((1, 2), keepdim=True)
        matrices = matrices / torch.where(largest > 0, largest, 1.0)
        for _ in range(2):
            matrices = matrices @ matrices
    strongest = matrices.abs().amax(1).argmax(-1)
    return unit(matrices[torch.arange(len(matrices), device=matrices.device), :, strongest])


def everywhere(like: Tensor) -> Tensor:
    """A fixed direction of length one with a share of every coordinate, for each row: (B, n).

    Multiples of the golden ratio modulo 1: no pattern of a matrix is likely to be orthogonal to it.
    """
    places = torch.arange(1, like.shape[-1] + 1, dtype=torch.float64)
    shares = (places * 0.6180339887498949) % 1 - 0.5
    direction: Tensor = shares / torch.linalg.vector_norm(shares)
    return direction.to(like).expand_as(like)
