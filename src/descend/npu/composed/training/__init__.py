"""Losses, and steps of optimizers."""
