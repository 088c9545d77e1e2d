"""How exact is Descend, compared with PyTorch? ``python -m benchmarks.precision`` measures and writes docs/accuracy.md.

``operators``: each operator's inputs, both libraries' ways to compute it, and its golden value in float64. ``figures``:
what was measured, as data. ``report``: the tables and the page.
"""
