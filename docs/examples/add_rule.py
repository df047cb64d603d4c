"""Add a rule: the z⁺ rule for linear layers, in a ruleset of its own."""

import torch

import abslrp
from abslrp.propagation.rules import Transport
from abslrp.propagation.rulesets import RULESETS, Ruleset


def linear_zplus(op, call, eps):
    """r_i = Σ_j x_i⁺ w_ij⁺ / (Σ_k x_k⁺ w_kj⁺ + ε) · R_j."""
    (x,), (affine,) = call.inputs, op.maps(call.inputs)
    above, weights = x.clamp(min=0), affine.positive()
    total = weights.apply(above)
    return [
        Transport(lambda R: (above * weights.adjoint(R / (total + eps), x),), lambda: total / (total + eps)),
    ]


epsilon = RULESETS["lrp-epsilon"]
RULESETS["zplus"] = Ruleset(lambda o: {**epsilon.make(o), "affine": linear_zplus}, epsilon.defaults)

layer = torch.nn.Linear(4, 3, bias=False).eval()
positive = torch.rand(2, 4) + 0.1
with abslrp.propagate("zplus") as p:
    outputs = layer(positive)
assert torch.allclose(p.relevance(outputs, positive, "target").sum(1), torch.ones(2), atol=1e-4)
