"""Each operator in a dozen lines of float64 NumPy: the definition that everything is measured against.

Parameters are named as in the functional API (``descend.rms_norm_grad``). Inputs may have any floating dtype,
``ml_dtypes.bfloat16`` included; they are converted to float64 first, which is exact, and results stay float64.
Infinities and NaN propagate as IEEE arithmetic has them.
"""

from __future__ import annotations

from descend.reference.activations import *
from descend.reference.group_norms import *
from descend.reference.losses import *
from descend.reference.norms import *
from descend.reference.nsa import *
from descend.reference.optimizers import *
from descend.reference.rotary import *
from descend.reference.softmaxes import *
