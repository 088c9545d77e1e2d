"""Operators of torch_npu that training calls and that have no aclnn function here, composed of PyTorch's operators.

Each is a function of CPU tensors. Tensors of device npu have host memory here, so they are passed as CPU tensors
without a copy. There is a folder for each kind of operator. Its ``table.py`` says how each is computed, and what is
refused; `table.TABLE` has them all. The modules beside the folders are what several kinds share.
"""
