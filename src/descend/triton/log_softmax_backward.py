"""The gradient of log softmax along a dimension on CUDA: the kernels of softmax's."""

from descend.triton.calls import Operator
from descend.triton.softmax_backward import launcher

log_softmax_backward = Operator("log_softmax_backward", launcher("log_softmax_backward"))
