"""Speed on an NVIDIA GPU, ``python -m benchmarks.gpu``, and the table of tiles, ``python -m benchmarks.gpu.tune``."""
