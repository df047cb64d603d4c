"""Slow, obvious references for every propagation rule, written from the specification alone."""
