"""Operators of torch_npu that training calls and that have no aclnn function here, composed of PyTorch's operators.

Each is a function of CPU tensors. Tensors of device npu have host memory here, so they are passed as CPU tensors
without a copy. `table.TABLE` lists the operators, how they are computed, and what is refused.
"""
