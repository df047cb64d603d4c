"""A question to a model, checked before any work is done: what to explain, of which inputs, for which classes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from abslrp.types import (
    AbslrpError,
    ModelError,
    Target,
    brief,
    capturing,
    check_targets,
    out_of_memory,
    said,
)

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Answer(NamedTuple):
    """Maps with the classes they explain and the model's outputs."""

    maps: Tensor
    targets: Tensor
    outputs: Tensor


@dataclass(frozen=True)
class Query:
    """What a method is asked: logits come from ``forward``; ``at`` names the module whose output's map is wanted.

    ``divisible`` tells whether the inputs may be split or repeated, which a caller's own forward need not allow. ``highest`` is
    the largest target of all inputs, of which these may be a part, so that it is refused before the first of them is explained.
    Where it is not ``checked``, :func:`check_model` and :func:`check_values` are still to be asked.
    """

    model: Callable[..., Any]
    inputs: Tensor
    targets: Tensor | None
    call: Callable[[Tensor], Any]
    at: str | None = None
    divisible: bool = True
    highest: int = 0
    checked: bool = True

    def run(self, x: Tensor) -> Any:
        """What the model returns; an error of its own becomes a sentence that says where it was raised and on what."""
        try:
            with uncompiled(self.model):
                return self.call(x)
        except Exception as error:
            if isinstance(error, AbslrpError) or out_of_memory(error):
                raise
            raise ModelError(_failed(error, self.model, x)) from error

    def forward(self, x: Tensor) -> Tensor:
        """The model's outputs of shape (batch, classes)."""
        return logits(self.run(x), len(x))

    def aim(self, outputs: Tensor) -> Tensor:
        """The classes to explain: those asked for, or the predicted ones."""
        if self.targets is None:
            predicted = outputs.detach()
            bad = [] if capturing(predicted) else predicted.isnan().any(1).nonzero().flatten().tolist()
            if bad:
                raise AbslrpError(
                    f"the model's outputs are NaN for input {bad[0]}{f' and {len(bad) - 1} more' if bad[1:] else ''} of "
                    f"{len(predicted)}, so no class is predicted: look for NaN in the weights, scale the inputs down, or use float32."
                )
            return predicted.argmax(1)
        highest = max(self.highest, 0 if capturing(self.targets) else int(self.targets.max()))
        if highest >= outputs.shape[1]:
            raise AbslrpError(
                f"target {highest} is out of range: the model has {outputs.shape[1]} classes, 0 to {outputs.shape[1] - 1}."
            )
        return self.targets.to(outputs.device)

    def module(self) -> nn.Module | None:
        return None if self.at is None else named_module(self.model, self.at)


def make_query(
    model: Callable[..., Any],
    inputs: Tensor,
    targets: Target,
    forward: Callable[[Tensor], Any] | None,
    at: str | None,
    later: bool = False,
) -> Query:
    """Check everything that can be checked before the model runs; what takes long is left out with ``later``."""
    model = unwrap(model)
    later = later and isinstance(model, nn.Module)
    if not later:
        check_model(model)
    x = check_inputs(inputs, model, forward, values=not later)
    if later and x is not inputs:  # to half precision, in which what was finite may not be
        check_model(model)
        check_values(inputs.isfinite().all())
        later = False
    if at is not None:
        named_module(model, at)
    if forward is not None and not callable(forward):
        raise AbslrpError(
            f"forward={brief(forward)} cannot be called: pass a function from the inputs to the model's output."
        )
    classes = check_targets(targets, len(x))
    highest = 0 if classes is None or capturing(classes) else int(classes.max())
    return Query(model, x, classes, forward or model, at, forward is None, highest, not later)


def unwrap(model: Callable[..., Any]) -> Callable[..., Any]:
    """The module inside torch.compile, DataParallel and DistributedDataParallel, the function inside torch.compile."""
    for name in ("_orig_mod", "module"):
        inner = getattr(model, name, None) if isinstance(model, nn.Module) else None
        wrapped = name == "_orig_mod" or isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel))
        if wrapped and isinstance(inner, nn.Module):
            return unwrap(inner)
    inner = None if isinstance(model, nn.Module) else getattr(model, "_torchdynamo_orig_callable", None)
    return unwrap(inner) if callable(inner) else model


def check_model(model: Callable[..., Any]) -> None:
    if not callable(model) or isinstance(model, type):
        what = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
        raise AbslrpError(f"model is {what}, expected a torch.nn.Module or a function from inputs to outputs.")
    unseen = "so its operations cannot be seen: pass the module it was"
    if isinstance(model, torch.jit.ScriptFunction):
        raise AbslrpError(f"the model is scripted, {unseen.replace('module', 'function')} scripted from.")
    if type(model).__name__ == "ExportedProgram":
        raise AbslrpError(f"the model is exported, {unseen} exported from.")
    if not isinstance(model, nn.Module) or not any([_suspect(module) for module in parts_of(model)]):
        return
    for name, module in model.named_modules():
        wrong = _wrong(module)
        if wrong:
            raise AbslrpError(f"{f'its module {name!r}' if name else 'the model'} {wrong.format(unseen=unseen)}.")


def parts_of(model: nn.Module) -> list[nn.Module]:
    """The model and all modules in it, in no order; many times faster than its own iterator."""
    found, waiting = {id(model): model}, [model]
    while waiting:
        for module in waiting.pop()._modules.values():
            if module is not None and id(module) not in found:
                found[id(module)] = module
                waiting.append(module)
    return list(found.values())


def _suspect(module: nn.Module) -> bool:
    """Whether to look closer at a module; most are cleared by this, at each call."""
    if (
        isinstance(module, torch.jit.ScriptModule)
        or module.training
        or "graph" in vars(module)
        or hasattr(type(module), "graph")
    ):
        return True
    for tensors in (module._parameters, module._buffers):
        for tensor in tensors.values():
            if type(tensor) not in _TENSORS:
                return True
    return False


_TENSORS = {nn.Parameter, Tensor, type(None)}


def _wrong(module: nn.Module) -> str:
    """Why a module cannot be explained; "" where it can."""
    if isinstance(module, torch.jit.ScriptModule):
        return "is scripted, {unseen} scripted from"
    if _exported(module):
        return "is exported, {unseen} exported from"
    for tensors in (module._parameters, module._buffers):
        for tensor in tensors.values():
            if tensor is not None and nn.parameter.is_lazy(tensor):
                return "has weights of unknown size: run the model once on an input of its own first"
    return "is in training mode, which makes maps random: call model.eval() first" if module.training else ""


def _exported(module: nn.Module) -> bool:
    """Whether a module is a graph of torch's inner operations, as torch.export makes it."""
    if "graph" not in module.__dict__ and not hasattr(type(module), "graph"):
        return False
    graph = getattr(module, "graph", None)
    return isinstance(graph, torch.fx.Graph) and any(isinstance(n.target, torch._ops.OpOverload) for n in graph.nodes)


def check_inputs(
    inputs: Any, model: Callable[..., Any], forward: Callable[[Tensor], Any] | None, values: bool = True
) -> Tensor:
    if not isinstance(inputs, Tensor):
        raise AbslrpError(
            f"the inputs are a {type(inputs).__name__}, expected a torch tensor (batch, ...): convert them with torch.as_tensor."
        )
    if nn.parameter.is_lazy(inputs):
        raise AbslrpError("the inputs are an uninitialized parameter, expected a tensor (batch, ...) with values.")
    _check_layout(inputs)
    if inputs.ndim == 0 or inputs.numel() == 0:
        raise AbslrpError(f"the inputs have shape {tuple(inputs.shape)}, expected at least one sample (batch, ...).")
    if inputs.dtype not in FLOATS:
        raise AbslrpError(
            f"the inputs are {_type(inputs)}, expected floating point (float16 to float64): "
            "convert images with .float() and the model's transform, and give token ids to forward= as embeddings."
        )
    if values and not capturing(inputs):
        check_values(inputs.isfinite().all())
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


def check_values(finite: Tensor) -> None:
    """One sentence for inputs that are not all ``finite``."""
    if not bool(finite):
        raise AbslrpError("the inputs hold NaN or infinite values: clean them before explaining.")


def _check_layout(inputs: Tensor) -> None:
    """One sentence for tensors without plain values: sparse, nested, of the meta device, fake."""
    kind = type(inputs).__name__
    if inputs.is_nested or inputs.layout is not torch.strided:
        kind = "nested tensor" if inputs.is_nested else f"tensor of layout {inputs.layout}"
    elif inputs.is_meta:
        kind = "tensor of the meta device, which has no values"
    elif kind not in ("FakeTensor", "FunctionalTensor", "MaskedTensor") and not torch._is_functional_tensor(inputs):
        return
    raise AbslrpError(f"the inputs are a {kind}, expected a dense tensor (batch, ...) with values of its own.")


def _type(values: Tensor) -> str:
    return str(values.dtype).removeprefix("torch.")


def _failed(error: Exception, model: Callable[..., Any], x: Tensor) -> str:
    """What the model raised, in which of its modules, and on what."""
    inner, trace = None, error.__traceback__
    while trace is not None:
        owner, trace = trace.tb_frame.f_locals.get("self"), trace.tb_next
        inner = owner if isinstance(owner, nn.Module) else inner
    modules = model.named_modules() if isinstance(model, nn.Module) else ()
    where = next((f" in {name}" for name, module in modules if module is inner and name), "")
    parameter = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    remedy = "give it inputs on which it runs by itself"
    if parameter is not None and parameter.dtype in FLOATS and parameter.dtype != x.dtype:
        remedy = f"its weights are {_type(parameter)}, so convert the inputs with .to({parameter.dtype})"
    shape = f"inputs of shape {tuple(x.shape)}, {_type(x)}"
    return f"the model raised {type(error).__name__}{where} on {shape}: {said(error)}: {remedy}."


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
    wrong = (
        f"{_type(value)} values"
        if value.dtype not in FLOATS
        else f"a tensor of layout {value.layout}"
        if value.layout is not torch.strided
        else "a tensor of the meta device"
        if value.is_meta
        else "no classes"
        if not value.shape[1]
        else ""
    )
    if wrong:
        raise AbslrpError(
            f"the model returned {wrong}, expected class scores in floating point: pass forward= that returns them."
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
            f"module {brief(name)} cannot be found: the model is a plain function; pass the torch.nn.Module and forward=."
        )
    found: nn.Module | None = model
    for part in name.split(".") if isinstance(name, str) else ():
        found = None if found is None else found._modules.get(part)
    if found is not None and found is not model:
        return found
    modules = dict(model.named_modules(remove_duplicate=False))
    if not isinstance(name, str) or name not in modules or not name:
        near = get_close_matches(name if isinstance(name, str) else "", [n for n in modules if n], n=3, cutoff=0.3)
        raise AbslrpError(
            f"module {brief(name)} is not in the model: {'did you mean ' + ', '.join(near) if near else 'see model.named_modules()'}?"
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


@dataclass
class _Eager:
    """How many threads run compiled models uncompiled just now, and what puts the compiler back."""

    depth: int = 0
    stack: ExitStack = field(default_factory=ExitStack)
    lock: Any = field(default_factory=threading.Lock)


_eager = _Eager()


@contextmanager
def uncompiled(model: Callable[..., Any]) -> Iterator[None]:
    """Modules that torch.compile made run as they were written, since the engine has to see their operations.

    The compiler knows one stance for all threads: the first of them sets it, the last one puts it back.
    """
    modules = parts_of(model) if isinstance(model, nn.Module) else ()
    stance = getattr(torch.compiler, "set_stance", None)
    if stance is None or not any("_orig_mod" in m._modules or m._compiled_call_impl is not None for m in modules):
        yield
        return
    with _eager.lock:
        _eager.depth += 1
        if _eager.depth == 1:
            _eager.stack.enter_context(stance("force_eager"))
    try:
        yield
    finally:
        with _eager.lock:
            _eager.depth -= 1
            if not _eager.depth:
                _eager.stack.close()


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
    try:
        (g,) = torch.autograd.grad(chosen.sum(), x, allow_unused=True)
    except Exception as error:
        if isinstance(error, AbslrpError) or out_of_memory(error):
            raise
        raise ModelError(f"the model's backward raised {type(error).__name__}: {said(error)}.") from error
    if g is None:
        raise AbslrpError("the outputs do not depend on the inputs, or on the layer that was named.")
    return g


def plain_outputs(query: Query, x: Tensor) -> Tensor:
    """The outputs alone."""
    with torch.no_grad():
        return query.forward(x.detach().clone())
