"""Descend's operators in JAX: under ``jit``, ``grad``, ``vmap`` and ``shard_map``, on the CPU.

The functions are named as in ``descend``. XLA's programs call the engine on XLA's own buffers, so nothing is copied.
Gradients are the backward operators; all further derivatives, and forward mode, are those of the operators' definitions
in ``jax.numpy``. On devices other than the CPU these definitions compute everything.
"""

from __future__ import annotations

from descend.jax.add_layer_norm import add_layer_norm, add_layer_norm_grad
from descend.jax.add_rms_norm import add_rms_norm
from descend.jax.apply_adam_w_v2 import apply_adam_w_v2
from descend.jax.cross_entropy_loss import cross_entropy_loss, cross_entropy_loss_grad
from descend.jax.deep_norm import deep_norm, deep_norm_grad
from descend.jax.gelu_v2 import gelu_backward_v2, gelu_v2
from descend.jax.gemma_rms_norm import gemma_rms_norm
from descend.jax.group_norm import group_norm, group_norm_backward
from descend.jax.group_norm_silu import group_norm_silu
from descend.jax.group_norm_swish import group_norm_swish, group_norm_swish_grad
from descend.jax.layer_norm import layer_norm, layer_norm_backward
from descend.jax.nsa_compress import nsa_compress, nsa_compress_grad
from descend.jax.rms_norm import rms_norm, rms_norm_grad
from descend.jax.rotary_position_embedding import rotary_position_embedding, rotary_position_embedding_grad
from descend.jax.scaled_masked_softmax import scaled_masked_softmax, scaled_masked_softmax_backward
from descend.jax.softmax import log_softmax, log_softmax_backward, softmax, softmax_backward
from descend.jax.swi_glu import swi_glu, swi_glu_grad

__all__ = [
    "add_layer_norm",
    "add_layer_norm_grad",
    "add_rms_norm",
    "apply_adam_w_v2",
    "cross_entropy_loss",
    "cross_entropy_loss_grad",
    "deep_norm",
    "deep_norm_grad",
    "gelu_backward_v2",
    "gelu_v2",
    "gemma_rms_norm",
    "group_norm",
    "group_norm_backward",
    "group_norm_silu",
    "group_norm_swish",
    "group_norm_swish_grad",
    "layer_norm",
    "layer_norm_backward",
    "log_softmax",
    "log_softmax_backward",
    "nsa_compress",
    "nsa_compress_grad",
    "rms_norm",
    "rms_norm_grad",
    "rotary_position_embedding",
    "rotary_position_embedding_grad",
    "scaled_masked_softmax",
    "scaled_masked_softmax_backward",
    "softmax",
    "softmax_backward",
    "swi_glu",
    "swi_glu_grad",
]
