"""Each operator in ``jax.numpy``: what second derivatives, forward mode and devices other than the CPU go through.

Names, shapes, dtypes and formulas are those of the operators; the arithmetic is float32, or float64 where the input is.
The tangents of a forward are written in its inputs and in the results that its gradient takes (mean, rstd, y).
"""

from __future__ import annotations

from descend.jax.definitions.activations import *
from descend.jax.definitions.arrays import *
from descend.jax.definitions.group_norms import *
from descend.jax.definitions.losses import *
from descend.jax.definitions.norms import *
from descend.jax.definitions.nsa import *
from descend.jax.definitions.optimizers import *
from descend.jax.definitions.rotary import *
from descend.jax.definitions.softmaxes import *
