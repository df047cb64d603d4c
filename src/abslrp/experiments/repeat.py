"""The command that makes a run again, from its configuration."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from abslrp import registry
from abslrp.experiments.config import Config, Variant, make_config
from abslrp.experiments.presets import expand
from abslrp.types import AbslrpError

_MODEL = ("preset", "architecture", "model", "weights", "num_classes", "random_weights")
_PLAIN = (*_MODEL, "data", "labels", "split", "images", "seed", "tf32")


def repeat_command(config: Config, out: str, device: str = "cpu") -> str | None:
    """The shortest ``abslrp evaluate`` that has this configuration, or None where flags cannot say it.

    >>> from abslrp.experiments.config import read_methods, read_metrics
    >>> one = Config(read_methods("abslrp,gradcam"), read_metrics("gae:T=4"), images=8)
    >>> repeat_command(one, "runs/run")
    'abslrp evaluate --methods abslrp,gradcam --metrics gae:T=4 --images 8 --out runs/run'
    """
    for values in _ways(config):
        if _hash(values) == config.hash:
            flags = [word for key, value in values.items() for word in _flag(key, value)]
            elsewhere = [] if device == "cpu" else ["--device", device]
            return shlex.join(["abslrp", "evaluate", *flags, *elsewhere, "--out", out])
    return None


def _ways(config: Config) -> Iterator[dict[str, Any]]:
    """What could have been said, the least first: a preset needs neither methods nor metrics."""
    usual = Config((), ())
    plain = {name: getattr(config, name) for name in _PLAIN if getattr(config, name) != getattr(usual, name)}
    methods = {"methods": ",".join(map(str, config.methods))}
    metrics = {"metrics": ",".join(str(_changed(one)) for one in config.metrics)}
    if config.preset is not None:
        without = {key: value for key, value in plain.items() if key != "architecture"}
        yield from (without, plain, {**plain, **methods})
    yield {**_first(plain, _MODEL), **methods, **metrics, **plain}


def _first(values: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}


def _changed(metric: Variant) -> Variant:
    """A metric with those options only that it would not fill in by itself."""
    settle, own = registry.metric(metric.name).settle, metric.settings()
    # The option that stands for a whole set of others is tried last, or it would go and they would stay.
    for key in sorted(own, key=lambda key: key == "settings"):
        rest = {other: value for other, value in own.items() if other != key}
        if _as_json(settle(**rest)) == _as_json(metric.options):
            own = rest
    return replace(metric, options=own)


def _as_json(options: Mapping[str, Any]) -> str:
    return json.dumps(dict(options), sort_keys=True)


def _flag(key: str, value: Any) -> list[str]:
    name = f"--{key.replace('_', '-')}"
    return [name] if value is True else [name, str(value)]


def _hash(values: dict[str, Any]) -> str | None:
    try:
        ((_, expanded),) = expand(values)
        return make_config(expanded).hash
    except (AbslrpError, ValueError):
        return None
