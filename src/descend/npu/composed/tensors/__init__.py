"""Tensors of any kind: indices, random choices, shapes, copies, extremes, bits."""
