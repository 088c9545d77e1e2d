"""Descend's operators in PyTorch: differentiable functions and modules, on the CPU and on NVIDIA GPUs.

The functions are named as in ``descend``; they are registered with the dispatcher (``torch.ops.descend``), so that
autograd to any order, ``torch.compile``, ``torch.func``, autocast and meta tensors take them as they take PyTorch's
own. The modules stand in for PyTorch's: the same arguments, parameters and state dicts. ``enable`` puts Descend under
PyTorch's own layer norm and RMS norm; ``patch`` swaps the norms of a model that is there already.

``torch.set_num_threads`` holds for the engine, too. CUDA tensors run in Triton's kernels (``pip install
descend[cuda]``); nothing is moved to the CPU silently.
"""

from __future__ import annotations

from descend.torch import sharding
from descend.torch.add_layer_norm import add_layer_norm, add_layer_norm_grad
from descend.torch.add_rms_norm import add_rms_norm
from descend.torch.apply_adam_w_v2 import apply_adam_w_v2, apply_adam_w_v2_
from descend.torch.cross_entropy import cross_entropy
from descend.torch.cross_entropy_loss import cross_entropy_loss, cross_entropy_loss_grad
from descend.torch.deep_norm import deep_norm, deep_norm_grad
from descend.torch.gelu_v2 import gelu_backward_v2, gelu_v2
from descend.torch.gemma_rms_norm import gemma_rms_norm
from descend.torch.group_norm import group_norm, group_norm_backward
from descend.torch.group_norm_silu import group_norm_silu
from descend.torch.group_norm_swish import group_norm_swish, group_norm_swish_grad
from descend.torch.layer_norm import layer_norm, layer_norm_backward
from descend.torch.library import registration
from descend.torch.modules import GroupNorm, GroupNormSwish, LayerNorm, NsaCompress, RMSNorm, ScaledMaskedSoftmax
from descend.torch.nsa_compress import nsa_compress, nsa_compress_grad
from descend.torch.optimizers import AdamW
from descend.torch.overriding import disable, enable, enabled
from descend.torch.patching import Report, patch, unpatch
from descend.torch.rms_norm import rms_norm, rms_norm_grad
from descend.torch.rotary_position_embedding import rotary_position_embedding, rotary_position_embedding_grad
from descend.torch.scaled_masked_softmax import scaled_masked_softmax, scaled_masked_softmax_backward
from descend.torch.softmax import log_softmax, log_softmax_backward, softmax, softmax_backward
from descend.torch.swi_glu import swi_glu, swi_glu_grad

__all__ = [
    "AdamW",
    "GroupNorm",
    "GroupNormSwish",
    "LayerNorm",
    "NsaCompress",
    "RMSNorm",
    "Report",
    "ScaledMaskedSoftmax",
    "add_layer_norm",
    "add_layer_norm_grad",
    "add_rms_norm",
    "apply_adam_w_v2",
    "apply_adam_w_v2_",
    "cross_entropy",
    "cross_entropy_loss",
    "cross_entropy_loss_grad",
    "deep_norm",
    "deep_norm_grad",
    "disable",
    "enable",
    "enabled",
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
    "patch",
    "registration",
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
    "unpatch",
]

sharding.enter()
