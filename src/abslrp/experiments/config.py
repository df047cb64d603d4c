"""What a run is to do, frozen: the same configuration has the same hash, and the hash names the run."""

from __future__ import annotations

import ast
import hashlib
import importlib
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any

from abslrp import registry
from abslrp.inputs.plain import expanded, read_text, shown
from abslrp.types import AbslrpError

HOW = ("out", "device", "batch", "engine", "address", "workers", "gpus")
"""What a file may say beside the configuration: where and how to run, which changes no score."""

_LARGEST_FILE, _LARGEST_NUMBER = 2**20, 2**63 - 1
_NUMBER = re.compile(r"[-+]?[\d.][\w.+-]*")
_PATHS = ("weights", "data", "labels")
_TEXTS = ("model", "weights", "data", "labels", "split", "preset", "architecture")
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys((*_TEXTS, "out", "device", "engine", "address"), ((str,), "text")),
    **dict.fromkeys(("num_classes", "images", "seed", "workers"), ((int,), "a whole number")),
    **dict.fromkeys(("random_weights", "tf32"), ((bool,), "true or false")),
    "batch": ((int, str), "auto or a whole number"),
    "gpus": ((int, float), "a number"),
}


@dataclass(frozen=True)
class Variant:
    """A method or metric with its options, under the name that results give it."""

    label: str
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        shown = ",".join(f"{key}={value}" for key, value in self.options.items())
        text = f"{self.name}:{shown}" if shown else self.name
        return text if self.label in (self.name, text) else f"{self.label}={text}"

    def settings(self) -> dict[str, Any]:
        """The options as calls take them: what JSON knows as lists are tuples."""
        return {key: tuple(value) if isinstance(value, list) else value for key, value in self.options.items()}


@dataclass(frozen=True)
class Config:
    """All that decides a score, and nothing else: not the device, nor the batch, nor the engine.

    ``methods`` and ``metrics`` come from :func:`read_methods` and :func:`read_metrics`; ``images`` None means all;
    metrics in ``optional`` are left out where the data lacks what they need, instead of refused.

    >>> one = Config(methods=read_methods("abslrp"), metrics=read_metrics("gae:T=4"), images=8)
    >>> one.hash == Config(methods=read_methods("abslrp"), metrics=read_metrics("gae:T=4"), images=9).hash
    False
    """

    methods: tuple[Variant, ...]
    metrics: tuple[Variant, ...]
    model: str = "efficientnet-lite0"
    weights: str | None = None
    num_classes: int | None = None
    random_weights: bool = False
    data: str = "samples"
    labels: str | None = None
    split: str = "val"
    images: int | None = None
    seed: int = 0
    preset: str | None = None
    architecture: str | None = None
    optional: tuple[str, ...] = ()
    tf32: bool = False

    def __post_init__(self) -> None:
        for name, least in (("images", 1), ("seed", 0), ("num_classes", 1)):
            value = getattr(self, name)
            if value is not None and not least <= value <= _LARGEST_NUMBER:
                raise AbslrpError(f"{name}={shown(value)} must be a whole number of at least {least} and below 2^63.")

    def to_dict(self) -> dict[str, Any]:
        """The configuration as JSON has it."""
        plain = {one.name: getattr(self, one.name) for one in fields(self)}
        for kind in ("methods", "metrics"):
            plain[kind] = [{"label": v.label, "name": v.name, "options": dict(v.options)} for v in getattr(self, kind)]
        if not self.tf32:
            del plain["tf32"]  # runs that were begun before there was a choice are the same runs
        return {**plain, "optional": list(self.optional)}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Config:
        """The configuration that :meth:`to_dict` wrote down."""
        kinds = {kind: tuple(Variant(**one) for one in plain[kind]) for kind in ("methods", "metrics")}
        return cls(**{**plain, **kinds, "optional": tuple(plain["optional"])})

    def canonical(self) -> str:
        """The one JSON text of this configuration; the order in which methods were named does not matter."""
        plain = self.to_dict()
        for kind in ("methods", "metrics"):
            plain[kind] = sorted(plain[kind], key=lambda one: one["label"])
        return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    @property
    def hash(self) -> str:
        """The sha256 of :meth:`canonical`, by which a run is known."""
        return hashlib.sha256(self.canonical().encode("utf-8", "surrogatepass")).hexdigest()


def difference(old: Config, new: Config) -> list[str]:
    """What changed between two configurations, in words.

    >>> difference(Config(read_methods("abslrp"), (), seed=1), Config(read_methods("abslrp,gradcam"), ()))
    ['methods: with gradcam', 'seed: 1 before, 0 now']
    """
    said = []
    for one in fields(Config):
        before, now = getattr(old, one.name), getattr(new, one.name)
        if one.name in ("methods", "metrics"):
            said += _changed_variants(one.name, before, now)
        elif before != now:
            said.append(f"{one.name}: {_shown(before)} before, {_shown(now)} now")
    return said


def _changed_variants(kind: str, before: Sequence[Variant], now: Sequence[Variant]) -> list[str]:
    old, new = {one.label: one for one in before}, {one.label: one for one in now}
    gone = [label for label in old if label not in new]
    come = [label for label in new if label not in old]
    said = [f"with {', '.join(come)}"] if come else []
    said += [f"without {', '.join(gone)}"] if gone else []
    for label in (label for label in old if label in new and old[label] != new[label]):
        told = {**old[label].options, **new[label].options}
        keys = [key for key in told if old[label].options.get(key) != new[label].options.get(key)]
        changes = [
            f"{key} {_shown(old[label].options.get(key))} → {_shown(new[label].options.get(key))}" for key in keys
        ]
        said.append(f"{label} changed ({', '.join(changes) or f'{old[label].name} → {new[label].name}'})")
    return [f"{kind}: {'; '.join(said)}"] if said else []


def _shown(value: Any) -> str:
    return "nothing" if value is None or value == () else str(value)


def make_config(values: Mapping[str, Any]) -> Config:
    """A configuration from what flags or a file say, checked; paths become absolute, so that a run knows its data anywhere.

    >>> make_config({"methods": "abslrp,constant", "metrics": "gae:T=4", "images": 4}).methods[1].name
    'constant'
    """
    given = {key: value for key, value in values.items() if value is not None}
    known = [one.name for one in fields(Config)]
    for key in given:
        if key not in known:
            raise AbslrpError(f"{key!r} is unknown{_near(key, known)}")
        _check_type(key, given[key])
    given["methods"] = read_methods(given.get("methods", "abslrp"))
    given["metrics"] = read_metrics(given.get("metrics", "gae"))
    return Config(**{**given, **{key: _absolute(given[key]) for key in _PATHS if key in given}})


def _check_type(key: str, value: Any) -> None:
    known, words = _TYPES.get(key, ((), ""))
    # Not isinstance, for which true is a whole number.
    if known and type(value) not in known:
        told = shown(repr(value)) if isinstance(value, str | bool | float) else shown(value)
        raise AbslrpError(f"{key}={told} is not understood: give {words}.")
    if isinstance(value, str) and "\0" in value:
        raise AbslrpError(f"{key}={shown(value)} has a zero byte, which no name has: give {words}.")


def _absolute(path: str) -> str:
    if path == "samples":
        return path
    prefix = "hf:" if path.startswith("hf:") else ""
    return prefix + os.path.abspath(os.path.expanduser(path.removeprefix("hf:")))


def read_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a TOML file says, by the names of the flags; a key that nobody knows is refused.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "run.toml").write_text('methods = ["abslrp"]\\nimages = 8')
    ...     read_file(f"{folder}/run.toml")
    {'methods': ['abslrp'], 'images': 8}
    """
    try:
        text = read_text(expanded(path), _LARGEST_FILE)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise AbslrpError(f"{shown(path, 300)} cannot be read ({reason}): name a TOML file.") from None
    library = _toml()
    try:
        found = library.loads(text)
    except RecursionError:
        raise AbslrpError(f"{path} is no TOML for a run (its brackets are too deep): mend it.") from None
    except ValueError as error:  # Beside its own error, that of a number with thousands of digits.
        raise AbslrpError(f"{path} is no TOML ({shown(error, 160)}): mend that line.") from None
    known = [*(one.name for one in fields(Config) if one.name != "optional"), *HOW]
    values = {key.replace("-", "_"): value for key, value in found.items()}
    for key in values:
        if key not in known:
            raise AbslrpError(f"{path} has the key {shown(key)!r}, which is unknown{_near(key, known)}")
        _check_type(key, values[key])
    return values


def _toml() -> Any:
    for name in ("tomllib", "tomli"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    raise AbslrpError(
        "Python 3.10 reads no TOML by itself: pip install tomli, use Python 3.11, or give the flags instead."
    )


def _near(name: str, known: Iterable[str]) -> str:
    """How a sentence about an unknown name ends."""
    names = list(known)
    near = get_close_matches(name, names, n=1)
    if near:
        return f": did you mean {near[0]!r}?"
    return f": choose from {', '.join(names)}." if names else ": there is none."


def read_methods(given: Any) -> tuple[Variant, ...]:
    """Methods as people write them: ``NAME``, ``NAME:key=value,key=value`` or ``label=NAME:key=value``, in a text with
    commas, a list of such, or a table from labels to these or to ``{method = NAME, key = value}``.

    >>> [str(one) for one in read_methods("abslrp,sign=abslrp-agree:conserve=sign,start=contrastive,gradcam")]
    ['abslrp', 'sign=abslrp-agree:conserve=sign,start=contrastive', 'gradcam']
    """
    return tuple(_known_options(one, registry.method(one.name).options) for one in _variants("method", given))


def read_metrics(given: Any) -> tuple[Variant, ...]:
    """Metrics as people write them, ``NAME`` or ``NAME:key=value,key=value``; every option that is not given is filled in.

    >>> read_metrics("road-morf:percentages=10,50,focus")[0].options["percentages"]
    [10, 50]
    """
    variants = []
    for one in _variants("metric", given):
        if one.name != one.label and not one.label.startswith(f"{one.name}:"):
            raise AbslrpError(
                f"metric {one.name!r} cannot be called {one.label!r}: a run has each metric once, by its name."
            )
        metric = registry.metric(one.name)
        options = metric.settle(**_known_options(one, metric.options).settings())
        variants.append(Variant(one.name, one.name, _plain(options, one.name)))
    return _each_once("metric", variants)


def _variants(kind: str, given: Any) -> tuple[Variant, ...]:
    if isinstance(given, Mapping):
        variants = [_from_table(kind, str(label), value) for label, value in given.items()]
    elif isinstance(given, str) or (isinstance(given, Sequence) and all(isinstance(one, str) for one in given)):
        texts = [given] if isinstance(given, str) else given
        variants = [_from_text(kind, entry) for text in texts for entry in _entries(kind, text)]
    elif isinstance(given, Sequence) and all(isinstance(one, Variant) for one in given):
        variants = list(given)
    else:
        raise AbslrpError(
            f"{kind}s={shown(repr(given))} is not understood: write names with commas, such as {_usual(kind)}."
        )
    if not variants:
        raise AbslrpError(f"no {kind} is named: give at least one, such as {_usual(kind)}; 'abslrp {kind}s' lists all.")
    return _each_once(kind, variants)


def _each_once(kind: str, variants: Sequence[Variant]) -> tuple[Variant, ...]:
    labels = [one.label for one in variants]
    twice = [label for label in labels if labels.count(label) > 1]
    if twice:
        hint = "give one of them a name, NAME=METHOD:KEY=VALUE" if kind == "method" else "name it once"
        raise AbslrpError(f"{kind} {twice[0]!r} is named twice: {hint}.")
    return tuple(variants)


def _usual(kind: str) -> str:
    return "abslrp" if kind == "method" else "gae"


def _from_table(kind: str, label: str, value: Any) -> Variant:
    if isinstance(value, str):
        made = _from_text(kind, value)
        return Variant(label, made.name, made.options)
    if not isinstance(value, Mapping):
        raise AbslrpError(
            f"{kind} {label!r} is given as {shown(repr(value))}: write its name as text, or a table of options."
        )
    options = {key.replace("-", "_"): one for key, one in value.items() if key != kind}
    return Variant(label, str(value.get(kind, label)), _plain(options, label))


def _from_text(kind: str, entry: str) -> Variant:
    head, colon, rest = entry.partition(":")
    label, sign, name = (part.strip() for part in head.rpartition("="))
    if not name or (sign and not label):
        raise AbslrpError(
            f"{kind} {shown(entry)!r} is not understood: write NAME, NAME:KEY=VALUE or LABEL=NAME:KEY=VALUE."
        )
    options: dict[str, Any] = {}
    pairs: list[str] = []
    for part in _at_commas(rest) if colon else []:
        # A value may have commas, as in percentages=10,30.
        if "=" in part or not pairs:
            pairs.append(part)
        else:
            pairs[-1] += f",{part}"
    for pair in pairs:
        key, equal, value = (part.strip() for part in pair.partition("="))
        if not equal or not key:
            raise AbslrpError(f"{kind} {shown(entry)!r} has the option {shown(pair)!r}: write KEY=VALUE.")
        options[key.replace("-", "_")] = value if key == "layer" else read_value(value)
    return Variant(label or entry.strip(), name, _plain(options, name))


def _entries(kind: str, text: str) -> list[str]:
    """The entries of a text; whether a comma ends one or stands between its options is told by what follows."""
    known = registry.methods() if kind == "method" else registry.metrics()
    entries: list[str] = []
    for token in filter(None, map(str.strip, _at_commas(text))):
        if entries and ":" in entries[-1] and _continues(token, entries[-1], known):
            entries[-1] += f",{token}"
        else:
            entries.append(token)
    return entries


def _continues(token: str, entry: str, known: Mapping[str, Any]) -> bool:
    if "=" not in token:
        return bool(_NUMBER.fullmatch(token)) and token not in known
    key, _, value = token.partition("=")
    name = entry.partition(":")[0].rpartition("=")[2].strip()
    if name in known and key.strip().replace("-", "_") in known[name].options:
        return True
    # Otherwise a label, where a method follows it.
    return value.partition(":")[0].strip() not in known and ":" not in token.partition("=")[0]


def _at_commas(text: str) -> list[str]:
    """The text cut at the commas that stand outside of brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def read_value(text: str) -> Any:
    """An option's value as typed: numbers, several of them, and truth values understood, all else text.

    >>> read_value("1e-6"), read_value("true"), read_value("28,14"), read_value("sign")
    (1e-06, True, (28, 14), 'sign')
    """
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # The last two for thousands of signs or brackets.
        return text
    several = value if isinstance(value, tuple | list) else [value]
    return value if several and all(isinstance(one, int | float) for one in several) else text


def _known_options(one: Variant, known: Mapping[str, Any]) -> Variant:
    """The variant, its options known; one number where several are usual counts as a list of one."""
    unknown = sorted(set(one.options) - set(known))
    if unknown:
        raise AbslrpError(f"option {unknown[0]!r} is unknown for {one.name}{_near(unknown[0], known)}")
    several = {
        key for key, value in one.options.items() if isinstance(known[key], tuple) and isinstance(value, int | float)
    }
    return replace(one, options={key: [value] if key in several else value for key, value in one.options.items()})


def _plain(options: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Options as JSON can hold them and give them back."""
    return {str(key): _plain_value(value, f"option {key!r} of {name}") for key, value in options.items()}


def _plain_value(value: Any, what: str) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain_value(one, what) for one in value]
    if value is None or isinstance(value, (str, bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise AbslrpError(f"{what} is {shown(repr(value))}: a run keeps numbers, text, true and false, and lists of them.")
