"""The engine: runs an unmodified model and replaces each arithmetic function by one whose backward carries relevance.

A ``TorchFunctionMode`` sees every torch function the model calls. Functions that touch no tensor that depends on the input
run as they are. The others are operations with a rule, structural functions whose gradient is the right transport,
functions made of others, or an error: nothing falls through in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from abslrp.propagation import structural
from abslrp.propagation.axes import Axis, fits
from abslrp.propagation.calls import QUERIES, WRITING, Run, function_name, opened, out_of_place, tensors_in
from abslrp.propagation.conservation import CONSERVATIONS
from abslrp.propagation.coverage import Coverage, Meter
from abslrp.propagation.frames import module_path, root_inputs, where
from abslrp.propagation.functions import Keeper, Planned, Remade, apply_relevance
from abslrp.propagation.kinds import Gate, Kind, Norm
from abslrp.propagation.lrp import RECTIFIED
from abslrp.propagation.operations import CONSTANT, OPERATIONS, STOPPED
from abslrp.propagation.plain import shortcut
from abslrp.propagation.rules import Call, Steps, gate_active, scale_identity
from abslrp.propagation.rulesets import Known, Rule
from abslrp.propagation.starts import passes
from abslrp.propagation.states import State, agreed, mark_head, remade, writable
from abslrp.types import AbslrpError, ModelError, brief, out_of_memory, said

_HALF_SCALES = (2.0**12, 1.0, 2.0**-12)

Writing = tuple[Tensor, Callable[[], Any]]
"""What a function writes to, and the function itself."""


class UnsupportedOperation(AbslrpError):
    """A function without a rule met a tensor that carries relevance."""


class Propagation(TorchFunctionMode):
    """Carries relevance through the model that runs inside the context; made by :func:`abslrp.propagate`."""

    def __init__(
        self,
        rules: Mapping[str, Rule],
        head: Mapping[str, Rule],
        *,
        conserve: str,
        eps: float,
        attention: str,
        unknown: str,
        measure: bool,
        start: str = "target",
        first: Mapping[str, Rule] | None = None,
    ) -> None:
        super().__init__()
        self._first = first or {}
        self._rules, self._head, self._eps = rules, head, eps
        self.conserve = CONSERVATIONS[conserve]
        self._by_sample = conserve != "none" or "affine" not in rules
        self.attention, self._unknown, self._start = attention, unknown, start
        if not isinstance(measure, bool):
            raise AbslrpError(f"measure={brief(measure)} must be True or False.")
        self._meter = Meter() if measure else None
        self.measuring = measure
        self._keeper = Keeper()
        self._inputs: list[Tensor] = []
        self.attentions: list[Tensor] = []
        self._stopped: set[str] = set()
        self._lent: list[Tensor] = []
        self._started = False
        self._depth = 0
        self._lost_at = ""
        self._late: dict[str, Any] | None = None
        self.unlinked = False
        self._known = Known(rules)
        self._shortcut = shortcut(rules) if unknown == "gradient" and not measure else None
        self.batch = 0 if self._shortcut is None or rules else 1  # where nothing has a rule, nothing asks for the batch
        self.last_pass = False

    # ------------------------------------------------------------ before and after

    def watch(self, x: Tensor, batch: int | None = None) -> Tensor:
        """Take ``x`` as an input whose relevance is asked for. Needed only where the model is not an ``nn.Module``."""
        if not x.requires_grad:
            x.requires_grad_()
            self._lent.append(x)
        self._inputs.append(x)
        self._started = True
        self.batch = self.batch or batch or (x.shape[0] if x.ndim else 1)
        return x

    def __enter__(self) -> Propagation:
        self._depth += 1  # operations that fall apart enter once more
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._depth -= 1
        for x in self._lent if not self._depth else ():
            if x.is_leaf:
                x.requires_grad_(False)

    @property
    def coverage(self) -> Coverage:
        """What had a rule, what was structural, and how much relevance each kind gained or lost."""
        if self._meter is None:
            raise AbslrpError("coverage was not measured: use abslrp.propagate(..., measure=True).")
        return self._meter.read()

    def relevance(
        self, outputs: Tensor, x: Tensor, start: str | Tensor | None = None, *, targets: Any = None, retain: bool = True
    ) -> Tensor:
        """The relevance of ``x`` for a start given by name (with targets) or as a tensor of the outputs' shape.

        With ``retain`` the graph stays for further calls; without it activations are freed as the relevance passes.
        """
        with torch._C.DisableTorchFunction():
            for name, value in (("outputs", outputs), ("x", x)):
                if not isinstance(value, Tensor) or value.is_nested or value.layout is not torch.strided:
                    raise AbslrpError(
                        f"{name}={brief(value)} is no dense tensor: pass what went into the model and what it gave."
                    )
            starts = passes(self._start if start is None else start, outputs, targets)
            maps = [self._pull(outputs, (x,), s, retain or n + 1 < len(starts))[0] for n, s in enumerate(starts)]
            if len(maps) == 1:
                return maps[0]
            first, second = (m / _norms(m).clamp(min=torch.finfo(m.dtype).tiny) for m in maps)
            return first - second

    def relevances(self, outputs: Tensor, tensors: Sequence[Tensor], start: Tensor) -> list[Tensor]:
        """The relevances of several tensors in one pass."""
        with torch._C.DisableTorchFunction():
            return self._pull(outputs, tuple(tensors), start, True)

    def _pull(self, outputs: Tensor, tensors: tuple[Tensor, ...], start: Tensor, retain: bool) -> list[Tensor]:
        # Float16 holds little: a map of 10⁵ elements underflows, and rules without conservation overflow. The rules are linear
        # in R, so a power of two in and out is exact; where the first is too much the next is tried.
        scales = _HALF_SCALES if torch.float16 in (outputs.dtype, tensors[0].dtype) else (1.0,)
        if outputs.is_cuda and torch.cuda.is_current_stream_capturing():
            scales = scales[:1]  # values cannot be looked at
        lent = [t for t in self._lent if t.is_leaf and not t.requires_grad]
        try:
            for t in lent:
                t.requires_grad_()
            # A view of a frozen weight asks for a gradient, too, but has no graph.
            if outputs.grad_fn is None or not all(x.requires_grad for x in tensors):
                raise AbslrpError(self._unreached("the outputs do not depend on x under the engine"))
            self._state(outputs).loosen()
            if self._head is not self._rules:
                mark_head(outputs)
            for scale in scales:
                found = self._pass(outputs, tensors, start * scale, retain or scale != scales[-1])
                if scale == scales[-1] or all(bool(r.isfinite().all()) for r in found):
                    break
        except Exception as error:
            if isinstance(error, AbslrpError) or out_of_memory(error):
                raise
            raise ModelError(f"the model's backward raised {type(error).__name__}: {said(error)}.") from error
        finally:
            for t in lent:
                t.requires_grad_(False)
        return [(r if r.dtype == torch.float64 else r.float()) / scale for r in found]

    def _pass(self, outputs: Tensor, tensors: tuple[Tensor, ...], start: Tensor, retain: bool) -> tuple[Tensor, ...]:
        self.last_pass = not retain
        if self._meter is not None:
            self._meter.begin(start)
        with _as_written(outputs.device.type):
            given = start.to(outputs.dtype)
            found = torch.autograd.grad(outputs, tensors, given, retain_graph=retain, allow_unused=True)
        if any(r is None for r in found):
            raise AbslrpError(self._unreached("no relevance reached x, on which the outputs do not depend"))
        if self._meter is not None:
            self._meter.end(found[0])
        return found

    def _unreached(self, what: str) -> str:
        stopped = f"; relevance stops at {', '.join(sorted(self._stopped))}" if self._stopped else ""
        return f"{what}: run the model on x inside the propagate context, without detaching it{stopped}."

    # ------------------------------------------------------------ what operations ask

    def live(self, value: Any) -> bool:
        """Whether a value depends on the input; parameters and their views do not, whether they are frozen or not."""
        if not isinstance(value, Tensor) or not value.requires_grad:
            return False
        if value.grad_fn is not None:
            return True
        for x in self._inputs:
            if value is x:
                return True
        if isinstance(value, torch.nn.Parameter) or value._is_view():
            return False
        self.watch(value)
        return True

    def nonnegative(self, value: Any) -> bool:
        if isinstance(value, Tensor):
            state = getattr(value, "_abslrp", None)
            return isinstance(state, State) and state.nonnegative and state.version == value._version
        return isinstance(value, (int, float)) and value >= 0

    def is_attention(self, value: Any) -> bool:
        return isinstance(value, Tensor) and self._state(value).attention

    def attended(self, matrix: Tensor) -> None:
        """Remember an attention matrix that values are about to be summed with."""
        self.attentions.append(matrix)

    def rule(self, kind: Kind, call: Call, head: bool, first: bool) -> Steps:
        rules = self._first if first and kind.kind in self._first else self._head if head else self._rules
        return rules[kind.kind](kind, call, self._eps)

    def measured(self, record: int, R: Tensor, change: Any) -> None:
        if self._meter is not None:
            self._meter.passed(record, R, change)

    # ------------------------------------------------------------ every torch function comes here

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in QUERIES:
            return func(*args, **kwargs)
        if not self._started:
            self._adopt()
        if self._shortcut is not None and func in self._shortcut.functions:
            result = self._shortcut(self, self._keeper, func, args, kwargs)
            if result is not NotImplemented:
                return result
        tensors = tensors_in((*args, *kwargs.values()) if kwargs else args)
        if not tensors:
            return func(*args, **kwargs)
        if torch._C._functorch.maybe_current_level() is not None:
            raise UnsupportedOperation(
                f"{function_name(func)}{where()} runs inside torch.vmap or torch.func, whose tensors hide their batch: "
                "pass forward= that calls the model without it."
            )
        alive = [t for t in tensors if t.requires_grad and self.live(t)] if torch.is_grad_enabled() else []
        if not alive:
            return self._constant(func, args, kwargs)
        for tensor in alive:
            if not hasattr(tensor, "_abslrp"):
                self._state(tensor, func)
        given = args, kwargs
        base, written, args, kwargs = out_of_place(func, args, kwargs)
        if base in STOPPED:
            self._stopped.add(f"{function_name(func)}{where()}")
            if self._meter is not None:
                self._meter.coverage.stopped[function_name(func)] += 1
            return self._constant(func, args, kwargs)
        build = OPERATIONS.get(base)
        result = NotImplemented
        if build is not None:
            writing = None if written is None else (written, partial(func, *given[0], **given[1]))
            planned = build(self, Run(base, args, kwargs), *args, **kwargs)
            result = self._apply(base, planned, writing) if isinstance(planned, Planned) else self._opened(planned)
        if result is NotImplemented:
            result = self._without_rule(func, args, kwargs, alive)
            if base is not func:
                return result
        late, self._late = self._late, None
        if written is None or result is written:
            if late is not None:
                late["late"] = self._keeper.keep([result])
            return result
        self._keeper.about_to_write(written)
        if not written.numel():
            written.resize_(result.shape)
        written.copy_(result)
        state = self._state(result) if self.live(result) else State(None, False, False, 0)
        self._mark(written, state.axis, state.nonnegative, state.attention, (state,), state.raw)
        if late is not None:
            late["late"] = self._keeper.keep([written])
        self._mark_base(written)
        return written

    def _adopt(self) -> None:
        """The inputs of the outermost module are what is explained, when nobody said otherwise."""
        for x in root_inputs():
            if not isinstance(x, torch.nn.Parameter) and (x.is_leaf or x.requires_grad):
                self.watch(x)

    def _constant(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A function of constants, or one that relevance does not pass."""
        if func in WRITING and args and isinstance(args[0], Tensor):
            self._keeper.about_to_write(args[0])
        if not torch.is_grad_enabled() or not any(t.requires_grad for t in tensors_in((args, kwargs))):
            return func(*args, **kwargs)
        with torch.no_grad():
            return func(*args, **kwargs)

    def _opened(self, planned: Any) -> Any:
        """The simpler operations that a row named, under the engine; or what the row gave."""
        if not callable(planned):
            return planned
        with self:
            return planned()

    def _apply(self, base: Any, planned: Planned, writing: Writing | None = None) -> Tensor:
        kind, inputs = planned.kind, planned.inputs
        states = [self._state(x) for x in inputs]
        ruled, rule, passing, proportional = self._known[kind.kind]
        raw = True
        for state in states:
            raw = raw and state.raw
            if not proportional:
                state.loosen()
        meta: dict[str, Any] = {}
        if ruled:
            meta = self._meta(base, planned, states, rule, raw)
            if meta["silent"] and writing is not None and writable(writing[0], inputs[0]):
                self._keeper.about_to_write(writing[0])
                meta["writes"] = writing[1]
            output: Tensor = apply_relevance(self, planned, self._keeper, meta, *inputs)
        else:
            output = planned.compute()
        axis = agreed(planned, states, output, self.batch) if self.batch > 1 else None
        if axis is None and self.batch > 1:
            self._lost_at = self._lost_at or f"{function_name(base)}{where()}"
            if ruled and self._by_sample:
                meta["lost"] = self._lost_at
        moved = raw and kind.kind in ("scale", "sum", "norm")
        self._mark(output, axis, planned.nonnegative, planned.attention, states if passing else (), moved)
        if ruled:
            meta["output"], meta["state"] = axis, output._abslrp  # type: ignore[attr-defined]
            if isinstance(kind, Norm):
                meta["state"].remade = Remade(meta["kept"], kind, output.dtype)
            if meta["silent"]:
                self._late = meta
        return output

    def _meta(self, base: Any, planned: Planned, states: list[State], rule: Any, raw: bool) -> dict[str, Any]:
        """What the backward of an operation has to know beside its tensors."""
        kind, inputs = planned.kind, planned.inputs
        if any([x.is_complex() for x in inputs]):
            raise UnsupportedOperation(
                f"{function_name(base)}{where()} got complex numbers, for which there is no rule: write it with torch.view_as_real."
            )
        silent = isinstance(kind, Gate) and (
            (kind.silent and rule is gate_active) or (kind.rectifier and rule in RECTIFIED)
        )
        meta: dict[str, Any] = {
            "nonnegative": [self.nonnegative(x) for x in inputs],
            "inputs": tuple(s.axis for s in states),
            "head": False,
            "first": raw and kind.kind == "affine",
            "keeps": "nothing" if silent else kind.keeps,
            # A norm keeps its input, by which its own output can be made again.
            "remade": [None if isinstance(kind, Norm) else remade(x, s) for x, s in zip(inputs, states, strict=True)],
            "silent": silent,
            "passing": (silent and rule is gate_active) or rule is scale_identity,
            "late": None,
        }
        if self._meter is not None:
            meta["record"] = self._meter.layer(module_path(), function_name(base), kind.kind)
        return meta

    def _without_rule(self, func: Any, args: Any, kwargs: Any, alive: list[Tensor]) -> Any:
        if func in structural.STRUCTURAL:
            return self._structural(func, args, kwargs, alive)
        inner = opened(func)
        if inner is not None:
            with self:
                return inner(*args, **kwargs)
        if func in WRITING:
            self._keeper.about_to_write(args[0])
        result = func(*args, **kwargs)
        outputs = [t for t in tensors_in((result,)) if t.requires_grad]
        if func in WRITING and args[0].requires_grad:
            outputs.append(args[0])
        if not outputs and (func in CONSTANT or not any(t.is_floating_point() for t in tensors_in((result,)))):
            return result
        if self._unknown != "gradient":
            raise UnsupportedOperation(
                f"{function_name(func)}{where()} has no rule: register one with abslrp.register_operation, or pass unknown='gradient'."
            )
        if any(t.grad_fn is not None and "NotImplemented" in t.grad_fn.name() for t in outputs):
            # Torch would hand back nothing at all, and the map would be 0 all over.
            raise UnsupportedOperation(
                f"{function_name(func)}{where()} has neither a rule nor a gradient: use the model before it was quantized, or a method "
                "that needs none, such as occlusion."
            )
        if self._meter is not None:
            self._meter.coverage.by_gradient[function_name(func)] += 1
        for tensor in alive:
            self._state(tensor).loosen()
        self._follow(func, args, kwargs, alive, outputs)
        return result

    def _structural(self, func: Any, args: Any, kwargs: Any, alive: list[Tensor]) -> Any:
        if func in WRITING:
            self._keeper.about_to_write(args[0])
        result = func(*args, **kwargs)
        if self._meter is not None:
            self._meter.coverage.structural_functions[function_name(func)] += 1
        outputs = [t for t in tensors_in((result,)) if t.requires_grad]
        if func is Tensor.__setitem__ and args[0].requires_grad:
            outputs = [args[0]]
        self._follow(func, args, kwargs, alive, outputs)
        return result

    def _follow(self, func: Any, args: Any, kwargs: Any, alive: list[Tensor], outputs: list[Tensor]) -> None:
        """Tell the outputs of a function that moved elements what is known of its inputs."""
        found = []
        for source in alive if self.batch > 1 else ():
            axis = self._state(source).axis
            found.append(
                [None] * len(outputs)
                if axis is None
                else structural.follow(func, args, kwargs, source, axis, outputs, self.batch)
            )
        axes = [ways[0] if len(set(ways)) == 1 else None for ways in zip(*found, strict=True)] or [None] * len(outputs)
        if self.batch > 1 and None in axes:
            self._lost_at = self._lost_at or f"{function_name(func)}{where()}"
        sign = func in structural.SIGN_KEEPING and all(
            self.nonnegative(t) for t in tensors_in((args, kwargs)) if t.is_floating_point()
        )
        states = [self._state(t) for t in alive]
        attention = any(state.attention for state in states)
        for output, axis in zip(outputs, axes, strict=True):
            self._mark(output, axis, sign, attention, states, all(state.raw for state in states))
            if func in WRITING:
                self._mark_base(output)

    # ------------------------------------------------------------ what is known of tensors

    @staticmethod
    def _mark(
        tensor: Tensor,
        axis: Axis | None,
        nonnegative: bool,
        attention: bool,
        sources: Iterable[State] = (),
        raw: bool = False,
    ) -> None:
        tensor._abslrp = State(axis, nonnegative, attention, tensor._version, sources, raw)  # type: ignore[attr-defined]

    def _mark_base(self, written: Tensor) -> None:
        """A tensor of which a part was written over carries relevance from now on."""
        base = written._base
        if base is None or not base.requires_grad or isinstance(getattr(base, "_abslrp", None), State):
            return
        axis = self._state(written).axis if self.batch > 1 else None
        place = structural.base_axis(written, axis, self.batch) if axis else None
        self._mark(base, place, False, False, (self._state(written),))

    def _state(self, tensor: Tensor, func: Any = None) -> State:
        state = getattr(tensor, "_abslrp", None)
        if isinstance(state, State):
            return state
        made_by = type(tensor.grad_fn).__name__
        self.unlinked = self.unlinked or tensor.grad_fn is not None
        if made_by in ("CopySlices", "AsStridedBackward0"):  # another view of a tensor that was written over
            return State(None, False, False, -1)
        # a leaf is an input; a module's backward hooks wrap tensors in an identity
        known = tensor.grad_fn is None or "BackwardHook" in made_by or any(tensor is x for x in self._inputs)
        if not known and self._unknown != "gradient":
            raise UnsupportedOperation(
                f"{function_name(func) if func else 'a function'}{where()} got a tensor made by {made_by}, "
                "which the engine did not see "
                "(a custom autograd function, scripted or compiled code): replace it by torch functions, or pass unknown='gradient'."
            )
        if not self.batch:
            self.watch(tensor)
        return State(fits(Axis(0, 1), tensor.shape, self.batch), False, False, -1, raw=True)


def _as_written(device: str) -> AbstractContextManager[Any]:
    """Autocast off, which would round the products of the rules to half precision."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def _norms(maps: Tensor) -> Tensor:
    """L1 norms per sample, shaped to divide the maps."""
    return maps.abs().flatten(1).sum(1).reshape(-1, *[1] * (maps.ndim - 1))
