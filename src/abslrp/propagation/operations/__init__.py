"""From torch callables to operation kinds; importing this fills the table."""

from abslrp.propagation.operations import composite, elementwise, norms, products, reductions
from abslrp.propagation.operations.table import CONSTANT, OPERATIONS, STOPPED

__all__ = ["CONSTANT", "OPERATIONS", "STOPPED", "composite", "elementwise", "norms", "products", "reductions"]
