from descend.npu.rules import Special

def serve(name: str, key: str, special: Special) -> None:
    """Makes PyTorch's CPU kernel compute an operator on the memory of the device's tensors."""

def borrow(name: str, key: str, owner: str) -> None:
    """Makes the kernel of dispatch key ``owner`` compute an operator for ``key``, too, with the device's tensors."""

def wait_for_graphs(device: int) -> None:
    """Waits until PyTorch's thread for a device's gradients has freed the graphs it has computed."""

def draw() -> tuple[int, int]:
    """A seed and an offset from the current device's default generator. Advances its offset."""

def record(on: bool) -> None:
    """Starts or stops recording calls. Starting clears the record."""

def recorded() -> list[tuple[str, list[tuple[str, str]], bool, int, int, int]]:
    """The record: operator, tensors (name, dtype, shape), whether it sums further kinds, calls, errors, nanoseconds."""
