from descend.npu.rules import Special

built_for: str
"""The version of PyTorch that the module was built for."""

def serve(name: str, key: str, special: Special) -> None:
    """Has the CPU's kernel compute an operator on the memory of the device's tensors."""

def borrow(name: str, key: str, owner: str) -> None:
    """Has the kernel of another dispatch key called with the device's tensors."""

def wait_for_graphs(device: int) -> None:
    """Waits until PyTorch's thread for a device's gradients has freed the graphs it has computed."""

def draw() -> tuple[int, int]:
    """A seed and an offset from the current device's default generator, which moves on."""

def record(on: bool) -> None:
    """Whether calls are recorded from now on; to switch it on forgets those before."""

def recorded() -> list[tuple[str, list[tuple[str, str]], bool, int, int, int]]:
    """What was recorded: operator, tensors, whether all kinds beyond those told apart, calls, errors, nanoseconds."""
