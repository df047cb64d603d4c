"""Relevance carried through any PyTorch model: knows operations, never architectures."""
