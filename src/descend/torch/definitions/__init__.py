"""Each operator composed of PyTorch's own: what second derivatives and forward-mode differentiation go through.

Signatures, shapes, dtypes and formulas are those of the operators (``descend.<name>``); the arithmetic is float32, or
float64 where an input is, as all are in forward mode (`descend.torch.library`).
"""

from __future__ import annotations

from descend.torch.definitions.activations import *
from descend.torch.definitions.group_norms import *
from descend.torch.definitions.losses import *
from descend.torch.definitions.norms import *
from descend.torch.definitions.nsa import *
from descend.torch.definitions.optimizers import *
from descend.torch.definitions.rotary import *
from descend.torch.definitions.softmaxes import *
from descend.torch.definitions.tensors import *
