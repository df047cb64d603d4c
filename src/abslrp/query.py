"""A question to a model, checked before any work is done: what to explain, of which inputs, for which classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from abslrp.types import AbslrpError, Target


class Answer(NamedTuple):
    """Maps with the classes they explain and the model's outputs."""

    maps: Tensor
    targets: Tensor
    outputs: Tensor


@dataclass(frozen=True)
class Query:
    """What a method is asked: logits come from ``forward``; ``at`` names the module whose output's map is wanted.

    ``divisible`` tells whether the inputs may be split or repeated, which a caller's own forward need not allow.
    """

    model: Callable[..., Any]
    inputs: Tensor
    targets: Tensor | None
    call: Callable[[Tensor], Any]
    at: str | None = None
    divisible: bool = True

    def forward(self, x: Tensor) -> Tensor:
        """The model's outputs of shape (batch, classes)."""
        return logits(self.call(x), len(x))

    def aim(self, outputs: Tensor) -> Tensor:
        """The classes to explain: those asked for, or the predicted ones."""
        if self.targets is None:
            return outputs.detach().argmax(1)
        highest = 0 if capturing(self.targets) else int(self.targets.max())
        if highest >= outputs.shape[1]:
            raise AbslrpError(
                f"target {highest} is out of range: the model has {outputs.shape[1]} classes, 0 to {outputs.shape[1] - 1}."
            )
        return self.targets.to(outputs.device)

    def module(self) -> nn.Module | None:
        return None if self.at is None else named_module(self.model, self.at)


def make_query(
    model: Callable[..., Any], inputs: Tensor, targets: Target, forward: Callable[[Tensor], Any] | None, at: str | None
) -> Query:
    """Check everything that can be checked before the model runs."""
    model = unwrap(model)
    check_model(model)
    x = check_inputs(inputs, model, forward)
    if at is not None:
        named_module(model, at)
    return Query(model, x, check_targets(targets, len(x)), forward or model, at, forward is None)


def unwrap(model: Callable[..., Any]) -> Callable[..., Any]:
    """The module inside torch.compile, DataParallel and DistributedDataParallel."""
    for name in ("_orig_mod", "module"):
        inner = getattr(model, name, None) if isinstance(model, nn.Module) else None
        wrapped = name == "_orig_mod" or isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel))
        if wrapped and isinstance(inner, nn.Module):
            return unwrap(inner)
    return model


def check_model(model: Callable[..., Any]) -> None:
    if not callable(model):
        raise AbslrpError(
            f"model is a {type(model).__name__}, expected a torch.nn.Module or a function from inputs to outputs."
        )
    if not isinstance(model, nn.Module):
        return
    for name, module in model.named_modules():
        where = f"its module {name!r}" if name else "the model"
        if module.training:
            raise AbslrpError(f"{where} is in training mode, which makes maps random: call model.eval() first.")
        if isinstance(module, torch.jit.ScriptModule):
            raise AbslrpError(
                f"{where} is scripted, so its operations cannot be seen: pass the module it was scripted from."
            )


def check_inputs(inputs: Any, model: Callable[..., Any], forward: Callable[[Tensor], Any] | None) -> Tensor:
    if not isinstance(inputs, Tensor):
        raise AbslrpError(
            f"the inputs are a {type(inputs).__name__}, expected a torch tensor (batch, ...): convert them with torch.as_tensor."
        )
    if inputs.ndim == 0 or inputs.numel() == 0:
        raise AbslrpError(f"the inputs have shape {tuple(inputs.shape)}, expected at least one sample (batch, ...).")
    if not inputs.is_floating_point():
        raise AbslrpError(
            f"the inputs are {str(inputs.dtype).removeprefix('torch.')}, expected floating point: "
            "convert images with .float() and the model's transform, and give token ids to forward= as embeddings."
        )
    if not capturing(inputs) and not bool(torch.isfinite(inputs).all()):
        raise AbslrpError("the inputs hold NaN or infinite values: clean them before explaining.")
    parameter = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    if parameter is None:
        return inputs
    if parameter.device != inputs.device:
        raise AbslrpError(
            f"the inputs are on {inputs.device} and the model is on {parameter.device}: move one to the other's device."
        )
    half = (torch.float16, torch.bfloat16)
    if forward is None and parameter.dtype in half and inputs.dtype != parameter.dtype:
        return inputs.to(parameter.dtype)
    return inputs


def capturing(values: Tensor) -> bool:
    """Whether a CUDA graph is being captured, during which values cannot be looked at."""
    return values.is_cuda and torch.cuda.is_current_stream_capturing()


def check_targets(targets: Target, batch: int) -> Tensor | None:
    if targets is None:
        return None
    wanted = "expected a class index, one index per input, or None for the predicted class"
    try:
        classes = torch.as_tensor(targets)
    except (TypeError, ValueError, RuntimeError):
        raise AbslrpError(f"targets={targets!r} cannot be read: {wanted}.") from None
    if classes.is_floating_point() or classes.is_complex() or classes.dtype == torch.bool:
        raise AbslrpError(f"targets are {str(classes.dtype).removeprefix('torch.')}: {wanted}.")
    if classes.ndim > 1 or (classes.ndim == 1 and len(classes) != batch):
        raise AbslrpError(f"targets have shape {tuple(classes.shape)} for {batch} inputs: {wanted}.")
    if not capturing(classes) and int(classes.min()) < 0:
        raise AbslrpError(f"target {int(classes.min())} is negative: {wanted}.")
    return classes.long().expand(batch)


def logits(output: Any, batch: int) -> Tensor:
    """The class scores in what a model returned: a tensor, ``.logits``, or the first tensor of a dict or tuple.

    >>> logits({"loss": None, "logits": torch.zeros(2, 3)}, 2).shape
    torch.Size([2, 3])
    """
    value = _scores(output)
    if value is None:
        raise AbslrpError(
            f"the model returned a {type(output).__name__} without class scores: pass forward= that returns a tensor (batch, classes)."
        )
    if value.ndim == 1 and len(value) == batch:
        value = value.unsqueeze(1)
    if value.ndim != 2 or len(value) != batch:
        raise AbslrpError(
            f"the model returned shape {tuple(value.shape)} for {batch} inputs, expected (batch, classes): pass forward= that reduces it, "
            "for instance by picking a pixel, a token or a mean."
        )
    return value


def _scores(output: Any) -> Tensor | None:
    if isinstance(output, Tensor):
        return output
    named = output.get("logits") if isinstance(output, dict) else getattr(output, "logits", None)
    if isinstance(named, Tensor):
        return named
    values = output.values() if isinstance(output, dict) else output if isinstance(output, (list, tuple)) else ()
    return next((v for v in values if isinstance(v, Tensor)), None)


def named_module(model: Callable[..., Any], name: str) -> nn.Module:
    """The submodule of this dotted name."""
    if not isinstance(model, nn.Module):
        raise AbslrpError(
            f"module {name!r} cannot be found: the model is a plain function; pass the torch.nn.Module and forward=."
        )
    modules = dict(model.named_modules(remove_duplicate=False))
    if name not in modules or not name:
        near = get_close_matches(name, [n for n in modules if n], n=3, cutoff=0.3)
        raise AbslrpError(
            f"module {name!r} is not in the model: {'did you mean ' + ', '.join(near) if near else 'see model.named_modules()'}?"
        )
    return modules[name]


@contextmanager
def undisturbed(inputs: Tensor) -> Iterator[None]:
    """Gradients on, inference mode off, and the random state put back afterwards."""
    cpu = torch.get_rng_state()
    cuda = torch.cuda.get_rng_state(inputs.device) if inputs.is_cuda and not capturing(inputs) else None
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda, inputs.device)


@contextmanager
def full_precision() -> Iterator[None]:
    """Products on CUDA in float32 as such, not rounded to TF32 on the way, which torch does in convolutions unless told not to.

    A rule divides by outputs, some of which are nearly 0, so rounding to ten bits can turn a map over: on ViT-Tiny the
    contrastiveness of single mosaics moved by up to .4.
    """
    places: tuple[Any, ...] = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [place.allow_tf32 for place in places]
    try:
        for place in places:
            place.allow_tf32 = False
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            place.allow_tf32 = value


def gradient(query: Query, x: Tensor, targets: Tensor | None = None) -> Answer:
    """∂(target's output)/∂x for every input, for given targets or those the query aims at."""
    leaf = x.detach().clone().requires_grad_()
    outputs = query.forward(leaf.clone())
    aimed = query.aim(outputs) if targets is None else targets
    return Answer(grad_of(outputs.gather(1, aimed.reshape(-1, 1)), leaf), aimed, outputs.detach())


def grad_of(chosen: Tensor, x: Tensor) -> Tensor:
    """The gradient of a sum of outputs, or one sentence where there is none."""
    if not chosen.requires_grad:
        raise AbslrpError("the outputs do not depend on the inputs: the model's output has no gradient.")
    (g,) = torch.autograd.grad(chosen.sum(), x, allow_unused=True)
    if g is None:
        raise AbslrpError("the outputs do not depend on the inputs, or on the layer that was named.")
    return g


def plain_outputs(query: Query, x: Tensor) -> Tensor:
    """The outputs alone."""
    with torch.no_grad():
        return query.forward(x.detach().clone())
