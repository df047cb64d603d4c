"""What did the network look at, and how far can the answer be trusted? Relevance for any PyTorch model."""

# The subpackages first: their import binds the names `methods` and `metrics`, which the functions below then take for good.
import abslrp.methods
import abslrp.metrics  # noqa: F401
from abslrp.evaluate import evaluate
from abslrp.evaluate_text import evaluate_text
from abslrp.explain import explain
from abslrp.propagation.api import propagate, register_operation
from abslrp.propagation.engine import UnsupportedOperation
from abslrp.registry import methods, metrics
from abslrp.text import TextAttribution, explain_text
from abslrp.types import AbslrpError, Attribution, Scores

__all__ = [
    "AbslrpError",
    "Attribution",
    "Scores",
    "TextAttribution",
    "UnsupportedOperation",
    "evaluate",
    "evaluate_text",
    "explain",
    "explain_text",
    "methods",
    "metrics",
    "propagate",
    "register_operation",
]
__version__ = "0.1.0"
