"""Log softmax along a dimension on CUDA: softmax's kernels."""

from descend.triton.calls import Operator
from descend.triton.softmax import launcher

log_softmax = Operator("log_softmax", launcher("log_softmax"))
