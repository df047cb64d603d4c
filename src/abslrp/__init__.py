"""What did the network look at, and how far can the answer be trusted? Relevance for any PyTorch model."""

# The subpackage first: its import binds the name `methods`, which the function below then takes for good.
import abslrp.methods  # noqa: F401
from abslrp.explain import explain
from abslrp.propagation.api import propagate, register_operation
from abslrp.propagation.engine import UnsupportedOperation
from abslrp.registry import methods
from abslrp.types import AbslrpError, Attribution

__all__ = [
    "AbslrpError",
    "Attribution",
    "UnsupportedOperation",
    "explain",
    "methods",
    "propagate",
    "register_operation",
]
__version__ = "0.1.0"
