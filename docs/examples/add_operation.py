"""Teach the engine a torch function that it does not know: by the kind it is of, or by a row of its own."""

import torch

import abslrp
from abslrp.propagation.functions import Planned
from abslrp.propagation.kinds import Smooth
from abslrp.propagation.operations.table import follow_unmoved, row

abslrp.register_operation(torch.special.ndtr, "elementwise")


class Gaussian(torch.nn.Module):
    def forward(self, x):
        return x * torch.special.ndtr(x)


model = torch.nn.Sequential(torch.nn.Linear(4, 8), Gaussian(), torch.nn.Linear(8, 3)).eval()
x = torch.randn(2, 4)
assert abslrp.explain(model, x).maps.isfinite().all()


# Inside the library it is one row, with the function's own signature.
@row("entr")  # torch.special.entr; all forms of a name at once
def entropy(e, run, input):
    return Planned(Smooth(torch.special.entr), (input,), run, follow_unmoved)


with abslrp.propagate("abslrp") as p:
    outputs = torch.special.entr(p.watch(x.abs()))
assert p.coverage.layers[0].kind == "activation"
