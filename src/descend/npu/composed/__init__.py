"""torch_npu's own operators that training calls and that have no function of aclnn here, composed of PyTorch's.

Each is a function of tensors on the CPU, which is what a tensor of device npu is here, by another name: `table.TABLE`
says which there are, how they are computed, and what is refused.
"""
