"""Add a method: the input's own size, with an option."""

import torch

import abslrp
from abslrp.query import Answer
from abslrp.registry import Method, register_method


def magnitude(query, power):
    outputs = query.forward(query.inputs)
    return Answer(query.inputs.abs() ** power, query.aim(outputs), outputs)


register_method(
    Method("magnitude", "the input's own size", "control", "—", magnitude, {"power": 1.0}, class_specific=False)
)
layer, x = torch.nn.Linear(4, 3).eval(), torch.randn(2, 4)
assert torch.equal(abslrp.explain(layer, x, method="magnitude", power=2.0).maps, x**2)
