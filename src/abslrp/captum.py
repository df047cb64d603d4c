"""abslrp's methods as Captum calls its own: ``AbsLRP(model).attribute(inputs, target=…)``.

Captum itself is not needed; where it is installed the class is one of its attributions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from torch import Tensor

from abslrp.explain import explain
from abslrp.registry import method as find_method
from abslrp.types import AbslrpError

if TYPE_CHECKING:
    Base = object
else:
    try:
        from captum.attr import Attribution as Base
    except ImportError:
        Base = object

Inputs = TypeVar("Inputs", Tensor, tuple[Tensor, ...])


F = TypeVar("F", bound=Callable[..., Any])


def _callable_by_captum(function: F) -> F:
    """Captum's NoiseTunnel and its like reach past the decorator that it has around each ``attribute``; so there is one."""

    @functools.wraps(function)
    def call(*given: Any, **options: Any) -> Any:
        return function(*given, **options)

    return cast(F, call)


class AbsLRP(Base):
    """Any method of abslrp with Captum's conventions: a tensor in gives a tensor out, a tuple gives a tuple.

    Unlike in Captum, ``target=None`` is the predicted class of each input. Several inputs are explained one after the other,
    with the rest as they are; ``additional_forward_args`` reach the model behind the inputs, and get no relevance.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).eval()
    >>> AbsLRP(model).attribute(torch.randn(5, 3), target=1).shape
    torch.Size([5, 3])
    """

    def __init__(self, forward_func: Callable[..., Any], method: str = "abslrp", **options: Any) -> None:
        find_method(method)
        self.forward_func, self.method, self.options = forward_func, method, options

    @_callable_by_captum
    def attribute(
        self,
        inputs: Inputs,
        target: int | Tensor | list[int] | None = None,
        additional_forward_args: Any = None,
        **options: Any,
    ) -> Inputs:
        """Maps of the shapes of the inputs; ``options`` are the method's, over those given at first."""
        given = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
        if not given:
            raise AbslrpError("inputs is empty: give a tensor, or a tuple of them.")
        further = _as_tuple(additional_forward_args)
        maps = tuple(
            self._one(number, given, further, target, {**self.options, **options}) for number in range(len(given))
        )
        return maps[0] if isinstance(inputs, Tensor) else maps

    def has_convergence_delta(self) -> bool:
        """There is no delta: ``abslrp.propagate`` reports what was lost and where."""
        return False

    def _one(
        self, number: int, given: tuple[Tensor, ...], further: tuple[Any, ...], target: Any, options: dict[str, Any]
    ) -> Tensor:
        alone = len(given) == 1 and not further

        def forward(x: Tensor) -> Any:
            return self.forward_func(*given[:number], x, *given[number + 1 :], *further)

        aim = _target(target)
        found = explain(
            self.forward_func, given[number], aim, self.method, forward=None if alone else forward, **options
        )
        return found.maps


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return () if value is None else value if isinstance(value, tuple) else (value,)


def _target(target: Any) -> Any:
    """Captum takes a tensor of one class for all inputs."""
    if isinstance(target, Tensor) and target.numel() == 1:
        return int(target)
    if isinstance(target, tuple) or (isinstance(target, list) and any(isinstance(one, tuple) for one in target)):
        raise AbslrpError(
            "a target with several indices is not known here: wrap the model so that it returns (batch, classes)."
        )
    return target


__all__ = ["AbsLRP"]
