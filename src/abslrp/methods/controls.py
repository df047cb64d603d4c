"""Maps that know nothing, to compare with."""

from __future__ import annotations

import zlib

import torch

from abslrp.checks import seed_number
from abslrp.query import Answer, Query, plain_outputs
from abslrp.registry import Method, register_method


def constant(query: Query) -> Answer:
    """1 everywhere."""
    outputs = plain_outputs(query, query.inputs)
    return Answer(torch.ones_like(query.inputs), query.aim(outputs), outputs)


def random(query: Query, seed: int) -> Answer:
    """Uniform noise in [0, 1), drawn from the seed and the input itself, so that no map depends on its company."""
    outputs = plain_outputs(query, query.inputs)
    maps = []
    for x in query.inputs:
        content = zlib.crc32(x.detach().cpu().float().contiguous().numpy().tobytes())
        generator = torch.Generator().manual_seed(content ^ seed)
        maps.append(torch.rand(x.shape, generator=generator, device="cpu", dtype=torch.float32).to(x.device))
    return Answer(torch.stack(maps), query.aim(outputs), outputs)


register_method(Method("constant", "1 everywhere", "control", "—", constant, {}, (), False, sensitive=False))
register_method(
    Method(
        "random",
        "uniform noise",
        "control",
        "—",
        random,
        {"seed": 0},
        (),
        False,
        check=lambda options: seed_number(options["seed"]),
        sensitive=False,
    )
)
