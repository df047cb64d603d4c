"""What the page computes, each thing once: models, classes, maps, coverage, GAE's parts, words of texts."""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

import abslrp
from abslrp.app.shelf import Shelf
from abslrp.app.uploads import Picked, pick_sample
from abslrp.batches import SHORT, class_scores
from abslrp.evaluate import Piece, choose_methods, choose_metrics, run_pieces, set_sizes
from abslrp.inputs.models import SAMPLES, LoadedModel, load_model
from abslrp.inputs.sentences import TextClassifier, load_text_classifier
from abslrp.metrics.bench import Bench
from abslrp.precision import full_precision
from abslrp.propagation.coverage import Coverage
from abslrp.query import logits, make_query, undisturbed
from abslrp.reporting.files import class_label
from abslrp.text import TextAttribution
from abslrp.types import AbslrpError

T = TypeVar("T")
STEPS = 10
_MODELS, _MAPS, _REST = 3, 160, 64
_AT_ONCE = 4


@dataclass(frozen=True)
class Chosen:
    """A model as it stands in the page: its name there, and that of its weights where they come from a file."""

    model: str | None = None
    weights: str | None = None


@dataclass(frozen=True)
class ClassChance:
    """A class of a model, and its probability for an image."""

    index: int
    label: str
    chance: float

    @property
    def called(self) -> str:
        """With its index, since two classes may share a name."""
        return f"{self.label} ({self.index})"


class Kept:
    """The last results by key, at most so many; the oldest go first.

    >>> kept = Kept(2)
    >>> [kept.get(k, lambda k=k: k * k) for k in (1, 2, 1, 3, 2)], kept.made
    ([1, 4, 1, 9, 4], 4)
    """

    def __init__(self, most: int) -> None:
        self.most, self.made = most, 0
        self._known: OrderedDict[Any, Any] = OrderedDict()

    def get(self, key: Any, make: Callable[[], T]) -> T:
        if key not in self._known:
            self._known[key] = make()
            self.made += 1
            while len(self._known) > self.most:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        found: T = self._known[key]
        return found


class Workshop:
    """One for all who use the page. It holds results only, found by what they are results of, so that nobody sees another's choice.

    >>> shop = Workshop()
    >>> cat = pick_sample("chelsea")
    >>> [one.label for one in shop.classes(Chosen(), cat)[:2]]
    ['tiger cat', 'Egyptian cat']
    """

    def __init__(self, shelf: Shelf | None = None, device: str = "cpu") -> None:
        self.shelf, self.device = shelf or Shelf(), device
        self.maps = Kept(_MAPS)
        self._models, self._texts, self._rest = Kept(_MODELS), Kept(_MODELS), Kept(_REST)
        # Networks use all cores by themselves: one question at a time is as fast as several.
        self._lock = threading.RLock()

    def model(self, chosen: Chosen) -> LoadedModel:
        spec, weights = self.shelf.model(chosen.model), self.shelf.weights(chosen.weights)
        with self._lock, self._without_paths():
            return self._models.get((spec, weights), lambda: load_model(spec, weights, device=self.device))

    def outputs(self, chosen: Chosen, picked: Picked) -> torch.Tensor:
        """The model's outputs (classes,)."""
        with self._lock:
            loaded = self.model(chosen)
            return self._rest.get(
                ("outputs", chosen, picked.key), lambda: class_scores(loaded, self._input(loaded, picked))[0].cpu()
            )

    def classes(self, chosen: Chosen, picked: Picked, count: int = 6) -> list[ClassChance]:
        """The most probable classes, the first first."""
        best = self.outputs(chosen, picked).argsort(descending=True, stable=True)[:count]
        return [self.chance(chosen, picked, index) for index in best.tolist()]

    def chance(self, chosen: Chosen, picked: Picked, index: int) -> ClassChance:
        outputs, names = self.outputs(chosen, picked), self.model(chosen).class_names
        if not 0 <= index < len(outputs):
            raise AbslrpError(f"class {index} is not one of this model's {len(outputs)}: choose again.")
        return ClassChance(index, class_label(index, names), float(outputs.double().softmax(0)[index]))

    def map_of(self, chosen: Chosen, picked: Picked, index: int, method: str) -> np.ndarray:
        """The map (channel, height, width), float32."""
        with self._lock:
            loaded = self.model(chosen)

            def make() -> np.ndarray:
                x = self._input(loaded, picked)
                found = abslrp.explain(loaded.model, x, index, method, **options_of(method))
                made: np.ndarray = found.maps[0].cpu().numpy()
                return made

            return self.maps.get((chosen, picked.key, index, method), make)

    def coverage(self, chosen: Chosen, picked: Picked, method: str = "abslrp") -> Coverage:
        """Which operations of the model had a rule, and where relevance was lost on this image."""
        with self._lock:
            loaded = self.model(chosen)

            def make() -> Coverage:
                x = self._input(loaded, picked)
                with undisturbed(x), abslrp.propagate(method) as propagation:
                    outputs = logits(loaded.model(x), len(x))
                with undisturbed(x):
                    propagation.relevance(outputs, x, "target")
                return propagation.coverage

            return self._rest.get(("coverage", chosen, picked.key, method), make)

    def parts(self, chosen: Chosen, picked: Picked, method: str, steps: int = STEPS) -> Mapping[str, np.ndarray]:
        """GAE of this image alone, with its parts and curves; three samples are its company in the mosaic."""
        with self._lock:
            return self._rest.get(
                ("gae", chosen, picked.key, method, steps), lambda: self._gae(chosen, picked, method, steps)
            )

    def _gae(self, chosen: Chosen, picked: Picked, method: str, steps: int) -> Mapping[str, np.ndarray]:
        loaded = self.model(chosen)
        others = [one for one in map(pick_sample, SAMPLES) if one.key != picked.key][:3]
        x = torch.cat([self._input(loaded, one) for one in (picked, *others)])
        ids = ["this image", *(one.name for one in others)]
        bench = Bench(make_query(loaded.model, x[:1], None, None, None), lambda numbers: x[list(numbers)], ids, 1)
        [(metric, options)] = choose_metrics("gae", {"T": steps})
        asked = choose_methods({method: (method, options_of(method))}, loaded.model)
        with undisturbed(x), full_precision():
            set_sizes(bench, asked, x, _AT_ONCE)
            piece = Piece(metric, options, (metric.plan(bench, options)[0],))
            [(_, _, outcome)] = run_pieces(bench, [piece], asked)
        return {name: values[0].cpu().numpy() for name, values in outcome.parts.items()}

    def classifier(self, name: str | None) -> TextClassifier:
        spec = self.shelf.text_model(name)
        with self._lock, self._without_paths():
            return self._texts.get(spec, lambda: load_text_classifier(spec, self.device))

    def words(self, model: str | None, text: str, methods: Sequence[str], target: int | None) -> list[TextAttribution]:
        """The text under every method, for a class or the predicted one."""
        with self._lock:
            classifier = self.classifier(model)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                return [
                    self._rest.get(
                        ("words", model, text, method, target),
                        lambda how=method: abslrp.explain_text(  # type: ignore[misc]
                            classifier.model, classifier.tokenizer, text, target, how
                        ),
                    )
                    for method in methods
                ]

    @contextmanager
    def _without_paths(self) -> Iterator[None]:
        try:
            yield
        except AbslrpError as error:
            raise type(error)(self.shelf.named(str(error))) from None

    def _input(self, loaded: LoadedModel, picked: Picked) -> torch.Tensor:
        return loaded.transform(picked.image)[None].to(self.device)


def options_of(method: str) -> dict[str, Any]:
    """The options under which the page runs a method: its defaults, or shorter where they take long.

    >>> options_of("abslrp"), options_of("rise")
    ({}, {'masks': 60})
    """
    return dict(SHORT.get(method, {}))
