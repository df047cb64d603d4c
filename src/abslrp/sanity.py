"""Do maps depend on what the network has learned? The randomisation test of Adebayo et al."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from abslrp.checks import whole
from abslrp.explain import explain
from abslrp.inputs.draws import generator
from abslrp.metrics.maps import pixel_maps
from abslrp.progress import shown
from abslrp.query import check_model, undisturbed, unwrap
from abslrp.registry import method as find_method
from abslrp.types import AbslrpError, Target

THRESHOLD = 0.5**0.5
"""Rank correlation above which more than half of the ranks' variance is still the trained network's (ρ² > ½)."""

Methods = str | Sequence[str] | Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Sanity:
    """Rank correlations with the trained network's maps by method, one for each of the ``depths``.

    A depth is the layer down to which weights were shuffled from the head on, or, with ``cascade`` False, the only one.
    """

    depths: tuple[str, ...]
    correlations: Mapping[str, tuple[float, ...]]
    cascade: bool = True

    @property
    def upper_half(self) -> dict[str, float]:
        """The correlations at the first depth at which half of the layers, or more, are shuffled."""
        return {name: found[(len(found) - 1) // 2] for name, found in self.correlations.items()}

    @property
    def insensitive(self) -> tuple[str, ...]:
        """Methods whose maps hardly change, though nothing is left of what tells classes apart (of a cascade)."""
        return tuple(name for name, found in self.upper_half.items() if self.cascade and found > THRESHOLD)


def sanity(
    model: nn.Module,
    images: Tensor,
    methods: Methods = "abslrp",
    targets: Target = None,
    *,
    depths: int = 8,
    cascade: bool = True,
    seed: int = 0,
    batch_size: int | None = None,
    progress: bool = False,
) -> Sanity:
    """How much of each method's maps stays when the network's weights are shuffled (Adebayo et al. 2018, arXiv 1810.03292).

    ρ_l = mean over images of Spearman's rank correlation between |A(x; θ)| and |A(x; θ_l)|, pixel by pixel, for the classes
    that the trained network predicts. θ_l has the weights from the head down to layer l in random order (``cascade``), or of
    layer l alone; ``depths`` says at how many layers, evenly spaced, the last being the one next to the input. Shuffled within
    each tensor weights keep their values, so activations keep their scale, but nothing that was learned. A method is
    ``insensitive`` if with the upper half of the layers shuffled ρ is above :data:`THRESHOLD`: its maps show what is in the
    image and the first layers rather than why the network decides. The model is not changed: copies are.

    ``methods`` are names, or a dict from names to options.

    >>> net = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 3)).eval()
    >>> found = sanity(net, torch.randn(2, 1, 8, 8), ["saliency", "constant"])
    >>> found.depths, found.correlations["constant"], found.insensitive
    (('3', '0'), (1.0, 1.0), ('constant',))
    """
    model = _module(model)
    asked = (
        methods
        if isinstance(methods, Mapping)
        else {n: {} for n in ([methods] if isinstance(methods, str) else methods)}
    )
    for name in asked:
        find_method(name)
    layers = _spaced(_layers(model), whole("depths", depths))

    def maps(network: nn.Module, aim: Target) -> Iterator[tuple[str, Tensor, Tensor]]:
        for name, options in asked.items():
            found = explain(network, images, aim, name, batch_size=batch_size, **options)
            yield name, (pixel_maps(found.maps) if found.maps.ndim > 2 else found.maps).abs(), found.targets

    own: dict[str, Tensor] = {}
    aim = targets
    for name, found, classes in maps(model, aim):
        own[name], aim = found, classes
    correlations: dict[str, list[float]] = {name: [] for name in asked}
    with undisturbed(images):
        changed = copy.deepcopy(model)
        for group in shown(layers, "Sanity", progress):
            changed = changed if cascade else copy.deepcopy(model)
            for layer in group if cascade else group[-1:]:
                _shuffle(changed.get_submodule(layer), generator(seed, "sanity", layer))
            for name, found, _ in maps(changed, aim):
                pairs = zip(own[name], found, strict=True)
                correlations[name].append(sum(rank_correlation(a, b) for a, b in pairs) / len(found))
    return Sanity(tuple(g[-1] for g in layers), {name: tuple(c) for name, c in correlations.items()}, cascade)


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's ρ, ties sharing their mean rank: 1 for two constant maps, 0 where only one is constant or not finite.

    >>> round(rank_correlation(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 4.0, 9.0])), 6)
    1.0
    >>> rank_correlation(torch.ones(3), torch.tensor([1.0, 4.0, 9.0]))
    0.0
    """
    flat = [t.detach().flatten().double() for t in (a, b)]
    if not all(bool(t.isfinite().all()) for t in flat):
        return 0.0
    ranks = [_ranks(t) for t in flat]
    centred = [r - r.mean() for r in ranks]
    sizes = [float(c.norm()) for c in centred]
    if not all(sizes):
        return float(not any(sizes))
    return float((centred[0] * centred[1]).sum()) / (sizes[0] * sizes[1])


def _ranks(values: Tensor) -> Tensor:
    _, place, count = values.unique(return_inverse=True, return_counts=True)
    last = count.cumsum(0).double()
    return (last - (count - 1) / 2)[place]


def _module(model: Callable[..., Any]) -> nn.Module:
    model = unwrap(model)
    check_model(model)
    if not isinstance(model, nn.Module):
        raise AbslrpError("the weights of a plain function cannot be shuffled: pass the torch.nn.Module.")
    return model


def _layers(model: nn.Module) -> list[str]:
    """The modules with weights of their own, the head first."""
    found = [
        name for name, module in model.named_modules() if name and any(True for _ in module.parameters(recurse=False))
    ]
    if not found:
        raise AbslrpError("the model has no layers with weights that could be shuffled.")
    return found[::-1]


def _spaced(layers: list[str], depths: int) -> list[list[str]]:
    """The layers in groups of about one size.

    >>> _spaced(["a", "b", "c", "d", "e"], 2)
    [['a', 'b'], ['c', 'd', 'e']]
    """
    count = min(depths, len(layers))
    bounds = [i * len(layers) // count for i in range(count + 1)]
    return [layers[a:b] for a, b in pairwise(bounds)]


def _shuffle(module: nn.Module, chance: torch.Generator) -> None:
    """Every tensor's values in random order; vectors of one length keep their company, as means and variances have to."""
    orders: dict[int, Tensor] = {}
    for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
        if not tensor.is_floating_point() or tensor.numel() < 2:
            continue
        order = torch.randperm(tensor.numel(), generator=chance)
        if tensor.ndim == 1:
            order = orders.setdefault(len(tensor), order)
        with torch.no_grad():
            tensor.copy_(tensor.flatten()[order.to(tensor.device)].reshape(tensor.shape))


__all__ = ["THRESHOLD", "Sanity", "rank_correlation", "sanity"]
