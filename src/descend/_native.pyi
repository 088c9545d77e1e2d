"""The engine of descend. Use the package's own modules instead."""

from collections.abc import Callable, Sequence
from typing import Any

def set_exception_factory(factory: object) -> None:
    """
    What turns a status into an exception: called with status, name and sentence.
    """

def what_is(object: object) -> str:
    """What a sentence calls an object: 'an int', 'a list', 'None'."""

class Producer:
    """A result on its way to another library: the DLPack protocol."""

    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(self, *args: Any, **kwargs: Any) -> object: ...

class Executor:
    """A prepared call: what the first phase returns and the second runs."""

    def set_repeatable(self) -> None:
        """Lets the executor run any number of times; without it, it runs once."""

    def set_tensor(self, name: str, array: object) -> None:
        """
        Another array, of the same dtype, shape and strides, for the tensor of that name from the next run on.
        """

    @property
    def operator(self) -> str:
        """The operator's name."""

    @property
    def computes(self) -> tuple[str, ...]:
        """The names of the outputs that the second phase writes."""

    @property
    def workspace_size(self) -> int:
        """Bytes of scratch that the second phase needs."""

    @property
    def spent(self) -> bool:
        """Whether it has run and is not repeatable."""

    @property
    def plan(self) -> str:
        """The steps that the second phase takes."""

def infer(name: str, *arguments: Any) -> list[tuple[tuple[int, ...], str]]:
    """Shapes and dtypes of the results of a functional call with these inputs and attributes."""

class TensorSpec:
    """A tensor without memory, for calls that read metadata only."""

    def __init__(self, shape: Sequence[int], dtype: int, strides: Sequence[int] | None = None, format: int = 2) -> None:
        """shape, CANN's number of the dtype, strides in elements, CANN's number of the format."""

def dtype_of(array: object) -> str:
    """The documents' name of an array's or TensorSpec's dtype."""

def verdict(name: str, product: str, *arguments: Any) -> tuple[int, str, str]:
    """Status, its name and a sentence that a product answers to a first phase with these parameters."""

def computed(name: str, product: str, *arguments: Any) -> tuple[str, ...]:
    """The names of the outputs that a call with these parameters writes."""

def function(name: str) -> Callable[..., Any]:
    """
    The functional form: called with inputs and attributes in order, then out.
    """

def phase1(name: str) -> Callable[..., tuple[int, Executor]]:
    """The first phase: called with all parameters in order."""

def phase2(name: str) -> Callable[..., None]:
    """The second phase: called with workspace, size, executor and stream."""

class Buffer:
    """Memory from acl.malloc; freed with the object."""

    @property
    def size(self) -> int:
        """Bytes."""

    @property
    def address(self) -> int:
        """Where it lies."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

def malloc(size: int) -> Buffer:
    """Allocates device memory; 0 bytes give an empty buffer."""

class Stream:
    """An in-order queue of work; different streams run side by side."""

    def __init__(self) -> None: ...
    def synchronize(self, timeout: float | None = None) -> None:
        """
        Waits for all work submitted so far, `timeout` seconds at most, and raises what failed in it, once.
        """

    def query(self) -> bool:
        """Whether all work is done."""

def synchronize_default_stream() -> None:
    """
    Waits for the work put on the default stream, the one that None stands for.
    """

def wait_for_all_streams() -> None:
    """Waits for the work in flight on every stream."""

def set_product(name: str) -> None:
    """The product that two-phase calls are checked against, for the process."""

def get_product() -> str:
    """The product of this thread's two-phase calls."""

def override_product(name: str) -> int:
    """
    Overrides the product for this thread; returns what restore_product takes.
    """

def restore_product(previous: int) -> None:
    """Undoes override_product."""

def load_stable_torch(address: Callable[[str], int]) -> bool:
    """Finds the C functions of PyTorch's stable interface: ``address(name)`` gives one's address, or 0.

    Returns whether all are there that `override_norms` needs.
    """

def override_norms(on: bool) -> None:
    """Registers the engine's kernels for PyTorch's norms by its stable C interface, or removes them.

    To remove them is safe while no other thread calls one. Raises RuntimeError before `load_stable_torch` has found it.
    """

def compute_norms(on: bool) -> bool:
    """Has these kernels compute, or leave each call to PyTorch.

    Returns whether no other thread that is still there has called one.
    """

def count_thread() -> None:
    """Counts this thread among those that have called one of these kernels."""

def set_num_threads(count: int) -> None:
    """
    Threads that one call may use, 1024 at most; 0 returns to the default: what the environment variable DESCEND_NUM_THREADS says, or else one a core, but no more than OMP_NUM_THREADS.
    """

def get_num_threads() -> int:
    """Threads that one call may use."""

def empty_cache() -> None:
    """Gives the warm pages kept for results back to the system."""

def set_cache_limit(bytes: int) -> None:
    """How much memory results may keep warm."""

def info() -> dict[str, Any]:
    """Version, instruction set, threads, memory."""

def triad(bytes: int, threads: int, seconds: float) -> float:
    """
    The memory limit: bytes a second of two reads and one write, `bytes` in all, the better of plain and non-temporal stores, measured for about `seconds`.
    """

def handover(seconds: float) -> float:
    """
    How far two processors are apart: seconds in which a cache line comes from one to the other, at best, measured for about `seconds`; 0 where two threads did not run side by side.
    """

def group_norm_swish_grad_arithmetic(brain: bool, elements: int, threads: int, seconds: float) -> float:
    """
    The arithmetic limit of group_norm_swish_grad in float16 or bfloat16: seconds for `elements` elements that lie in first-level caches, measured for about `seconds`.
    """

def products() -> list[dict[str, Any]]:
    """The products, as dictionaries."""

def operators() -> list[dict[str, Any]]:
    """The operators' contracts, as dictionaries."""

def c_interface() -> list[dict[str, Any]]:
    """The headers of the operators' C functions, as dictionaries."""

_xla_handler: object
"""The function that XLA's programs call, as a capsule."""
