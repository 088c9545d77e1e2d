"""Speed on an NVIDIA GPU, ``python -m benchmarks.gpu``, and the table of tiles, ``python -m benchmarks.gpu.tune``."""

from importlib.resources import files

from benchmarks import OPERATORS as ALL

OPERATORS = tuple(name for name in ALL if files("descend").joinpath("triton", f"{name}.py").is_file())
"""Those that have kernels for CUDA tensors."""
