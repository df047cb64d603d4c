"""Methods that carry relevance through the model: settings of the engine."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from abslrp.propagation.api import DEFAULTS, propagate, settle
from abslrp.propagation.rulesets import RULESETS
from abslrp.query import Answer, Query
from abslrp.registry import Method, register_method
from abslrp.types import AbslrpError

PAPER = "Vukadin, Afrić, Šilić, Delač (2024), doi 10.1145/3649458"


class Tap:
    """Takes a module's last output while it runs, and hands the model a copy that it may write over."""

    def __init__(self, module: nn.Module | None) -> None:
        self.value: Tensor | None = None
        self._module = module
        self._handle: Any = None

    def __enter__(self) -> Tap:
        if self._module is not None:
            self._handle = self._module.register_forward_hook(self._take)
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._handle is not None:
            self._handle.remove()

    def _take(self, module: nn.Module, args: Any, output: Any) -> Any:
        if isinstance(output, Tensor):
            self.value = output
            return output.clone()
        if isinstance(output, (tuple, list)) and output and isinstance(output[0], Tensor):
            self.value = output[0]
            rest = [output[0].clone(), *output[1:]]
            return type(output)(rest) if not hasattr(output, "_fields") else type(output)(*rest)
        return None


def propagated(query: Query, ruleset: str, options: dict[str, Any]) -> Answer:
    """One forward under the engine, then the passes of the start backwards."""
    settled = settle(ruleset, options)
    leaf = query.inputs.detach().clone().requires_grad_()
    with Tap(query.module()) as tap, propagate(ruleset, measure=False, **options) as engine:
        engine.watch(leaf)
        outputs = query.forward(leaf.clone())
    at = leaf if query.at is None else tap.value
    if at is None:
        raise AbslrpError(
            f"module {query.at!r} did not run or gave no tensor, so it has no relevance: name another module in at=."
        )
    targets = query.aim(outputs)
    maps = engine.relevance(outputs, at, settled["start"], targets=targets, retain=False)
    return Answer(maps, targets, outputs.detach())


def _register(name: str, description: str, citation: str, **defaults: Any) -> None:
    register_method(
        Method(
            name=name,
            description=description,
            family="relevance propagation",
            citation=citation,
            run=lambda query, **options: propagated(query, name, options),
            options={**DEFAULTS, **RULESETS[name].defaults, **defaults},
        )
    )


_register("abslrp", "positive contributions over the absolute output, contrastive start (the paper's)", PAPER)
# A logit's sign says nothing (softmax does not change when all logits are shifted), so at the head evidence for a class is what
# raises its logit, also where the logit is negative.
_register(
    "abslrp-agree",
    "contributions that agree with the output's sign, two-pass start (ours, sharper on transformers)",
    f"this library, after {PAPER}",
    head="positive",
)
