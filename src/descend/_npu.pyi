from torch import Tensor

built_for: str
"""The version of PyTorch that the module was built for."""

def register_kernels() -> int:
    """Puts the CPU's kernels in the place of torch_npu's; returns how many operators that are."""

def register_collectives() -> None:
    """Has collectives of the device's tensors computed by the process group's backend for the CPU."""

def on_cpu(tensor: Tensor) -> Tensor:
    """The tensor as a tensor of the CPU, in the same memory."""

def serve(name: str) -> None:
    """Puts the CPU's kernel of an operator of any namespace in the place of what the device has."""

def draw() -> tuple[int, int]:
    """A seed and an offset from the current device's default generator, which moves on."""

def record(on: bool) -> None:
    """Whether calls are recorded from now on; to switch it on forgets those before."""

def recorded() -> list[tuple[str, list[tuple[str, str]], bool, int, int, int]]:
    """What was recorded: operator, tensors, whether all kinds beyond those told apart, calls, errors, nanoseconds."""
