"""Golden values in float64 for those who write kernels, in the form of CANN's operator repositories.

Those repositories keep a file ``tests/assets/golden.py`` beside each operator. It names, in ``__golden__``, the
function that gives the operator's golden values. One line makes it Descend's::

    from descend.golden import *

Every function takes what the test framework gives: the operator's inputs as NumPy arrays, in the order and with the
names of its definition (``op_host/<name>_def.cpp``), None where an optional one is absent; its attributes by their
names there; and keyword arguments of the framework. Of the latter ``output_dtypes`` is read, and all others are
ignored. It returns a tuple of all outputs of the definition, in the order there. None stands for an output that the
inputs and attributes leave out.

Inputs may have any floating dtype, bfloat16 included. Everything is computed in float64, by `descend.reference`, and
each result is rounded once. Its dtype is the one in ``output_dtypes``, which may also be one dtype for all results.
Without that the dtypes are those that the definition gives: results and gradients have the dtype of the input or
parameter that they belong to, and a sum of two inputs of different dtypes is float32. mean and rstd are float32, as are
dgamma and dbeta of RMS norm, deep norm and AddLayerNormGrad. But mean, variance and rstd of GroupNorm, GroupNormV2 and
GroupNormSilu have x's dtype, and mean and rstd of GroupNormSwish gamma's. float64 inputs make all of these float64.

ValueError where shapes do not fit, and for a value of an attribute that Descend does not compute.
"""

from __future__ import annotations

from descend.golden.activations import *
from descend.golden.group_norms import *
from descend.golden.norms import *
from descend.golden.nsa import *
from descend.golden.softmaxes import *
from descend.golden.training import *

__golden__ = {"kernel": {name.removesuffix("_golden"): name for name in sorted(globals()) if name.endswith("_golden")}}
"""The functions by the operators' names, as the framework looks them up."""

__all__ = ["__golden__", *__golden__["kernel"].values()]
