"""Makes the coefficients of NormalTail in native/kernels/simd/gelu-inl.h: ``python tools/fit_gelu.py [--write]``.

Without ``--write`` it prints them. It needs NumPy, and mpmath, which comes with PyTorch, and takes five seconds.

With E(a) = 2^(-c a^2), c the nearest number of the type to 1 / (2 ln 2), each quotient of polynomials is the one over
[0, kFar] whose largest relative error is smallest:

    fall(a)  = a * over(a) / under(a) * E(a)              is a * Phi(-a);             over(0) = 1/2, under(0) = 1
    slope(a) = (kZero - a) * over(a) / under(a) * E(a)    is Phi(-a) - a * phi(a);    kZero: where that is 0

Remez's algorithm finds it: at one point more than there are unknown coefficients the error is of one size and
alternates. Then the coefficients become numbers of the type such that the error grows little. In slope, under(0) is a
short number such that over(0), which makes slope(0) = 1/2, is nearly one of the type.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mpmath import erfc, exp, findroot, floor, log, lu_solve, matrix, mp, mpf, pi, sqrt  # type: ignore[import-untyped]

HEADER = Path(__file__).parents[1] / "native" / "kernels" / "simd" / "gelu-inl.h"
mp.prec = 160
POINTS, STARTS = 600, 8


@dataclass(frozen=True)
class Kind:
    """One specialisation of NormalTail."""

    type: str
    brief: str
    bits: int
    far: float
    """kFar of ByErf."""
    fall: tuple[int, int]
    """Degrees of over and under."""
    slope: tuple[int, int]


KINDS = (
    Kind("float", "false", 24, 15.0, (4, 5), (4, 4)),
    Kind("float", "true", 24, 15.0, (3, 4), (3, 3)),
    Kind("double", "false", 53, 39.5, (10, 11), (10, 10)),
)


def nearest(x: mpf, bits: int) -> mpf:
    """The nearest number of so many bits; of two the one that is farther from 0."""
    with mp.workprec(bits):
        return +x


def phi(a: mpf) -> mpf:
    """The normal distribution's density."""
    return exp(-a * a / 2) / sqrt(2 * pi)


def tail(a: mpf) -> mpf:
    """Phi(-a)."""
    return erfc(a / sqrt(mpf(2))) / 2


def slope(a: mpf) -> mpf:
    """The derivative of GELU at -a."""
    return tail(a) - a * phi(a)


ZERO = findroot(slope, 0.75)


@dataclass
class Quotient:
    """A quotient of polynomials, lowest power first, and how many coefficients of each are final."""

    parts: list[list[mpf]]
    """The coefficients of over and of under."""
    final: list[int]

    def __call__(self, a: mpf) -> mpf:
        """Its value at a."""
        return value(self.parts[0], a) / value(self.parts[1], a)


def value(polynomial: Sequence[mpf], a: mpf) -> mpf:
    """Its value at a."""
    result = mpf(0)
    for coefficient in reversed(polynomial):
        result = result * a + coefficient
    return result


def solve(q: Quotient, points: Sequence[mpf], values: Sequence[mpf], nodes: Sequence[int]) -> None:
    """Gives the quotient the value at each node, or errors of one size that alternate where there is a node more."""
    unknown = [(part, k) for part in (0, 1) for k in range(q.final[part], len(q.parts[part]))]
    levelled = len(nodes) > len(unknown)
    for _ in range(3 if levelled else 1):  # the level is multiplied by under as it was
        rows, right = [], []
        for n, place in enumerate(nodes):
            a, f = points[place], values[place]
            row = [a**k if part == 0 else -f * a**k for part, k in unknown]
            rows.append(row + [(-1) ** n * f * value(q.parts[1], a)] * levelled)
            right.append(f * value(q.parts[1][: q.final[1]], a) - value(q.parts[0][: q.final[0]], a))
        for (part, k), coefficient in zip(unknown, lu_solve(matrix(rows), matrix(right)), strict=False):
            q.parts[part][k] = coefficient


def errors_of(q: Quotient, points: Sequence[mpf], values: Sequence[mpf]) -> list[mpf]:
    """The relative errors."""
    return [q(a) / f - 1 for a, f in zip(points, values, strict=True)]


def fit(q: Quotient, points: Sequence[mpf], values: Sequence[mpf]) -> None:
    """Fits what is not final of the quotient to values at points."""
    unknown = sum(len(part) for part in q.parts) - sum(q.final)
    best = max(map(abs, errors_of(q, points, values))), [list(part) for part in q.parts]
    nodes = [round((POINTS - 1) * (n + 0.5) / unknown) for n in range(unknown)]
    while unknown:
        solve(q, points, values, nodes)
        found = errors_of(q, points, values)
        if max(map(abs, found)) < best[0]:
            best = max(map(abs, found)), [list(part) for part in q.parts]
        peaks = extrema(found, unknown + 1)
        if peaks in ([], nodes) or max(map(abs, found)) > 100 * best[0]:
            break
        nodes = peaks
    q.parts = best[1]


def extrema(errors: Sequence[mpf], count: int) -> list[int]:
    """The places of so many alternating largest errors; none if there are fewer."""
    places: list[int] = []
    for n, error in enumerate(errors):
        if places and (error > 0) == (errors[places[-1]] > 0):
            if abs(error) > abs(errors[places[-1]]):
                places[-1] = n
        else:
            places.append(n)
    while len(places) > count:  # the smaller end, or the smallest pair of neighbours
        sizes = [abs(errors[n]) for n in places]
        if len(places) - count == 1:
            del places[0 if sizes[0] < sizes[-1] else -1]
        else:
            pair = min(range(len(places) - 1), key=lambda n: max(sizes[n : n + 2]))
            del places[pair : pair + 2]
    return places if len(places) == count else []


def make(kind: Kind, f: Callable[[mpf], mpf], degrees: tuple[int, int], first: tuple[mpf, mpf]) -> tuple[Quotient, mpf]:
    """The quotient for f / E, with its coefficients of power 0, and its relative error."""
    square = nearest(1 / (2 * log(mpf(2))), kind.bits)
    # Dense near 0 and at the far end, in a / (4 + a).
    end = mpf(kind.far) / (4 + mpf(kind.far))
    shares = [end * (1 - mp.cos(pi * (n + mpf(1) / 2) / POINTS)) / 2 for n in range(POINTS)]
    points = [4 * s / (1 - s) for s in shares]
    values = [f(a) * mpf(2) ** (square * a * a) for a in points]
    q = Quotient([[start] + [mpf(0)] * degree for start, degree in zip(first, degrees, strict=True)], [1, 1])
    fit(q, points, values)
    settle(q, points, values, kind.bits)
    return q, max(map(abs, errors_of(q, points, values)))


def settle(q: Quotient, points: Sequence[mpf], values: Sequence[mpf], bits: int) -> None:
    """Makes the coefficients numbers of so many bits: one or two at a time neighbours, from several starts.

    A step from one number to the next adds to the error in proportion, so that doubles will do.
    """
    places = [(part, k) for part in (0, 1) for k in range(q.final[part], len(q.parts[part]))]
    steps = []
    for part, k in places:
        q.parts[part][k] = nearest(q.parts[part][k], bits)
        unit = mpf(2) ** (floor(log(q.parts[part][k], 2)) + 1 - bits)
        sums = [value(q.parts[part], a) for a in points]
        steps.append(
            (unit, np.array([float((-1) ** part * unit * a**k / s) for a, s in zip(points, sums, strict=True)]))
        )
    moves = [((n, d), (m, e)) for n in range(len(places)) for m in range(n) for d in (-1, 0, 1) for e in (-1, 1)]
    table = np.array([d * steps[n][1] + e * steps[m][1] for (n, d), (m, e) in moves])
    random = np.random.default_rng(0)
    found: list[tuple[float, list[int]]] = []
    for _ in range(STARTS):
        counts = random.integers(-2, 3, len(places)) * bool(found)
        errors = np.array([float(error) for error in errors_of(q, points, values)])
        errors = errors + sum(c * step for c, (_, step) in zip(counts, steps, strict=True))
        while (worst := np.abs(errors + table).max(1)).min() < np.abs(errors).max():
            errors = errors + table[worst.argmin()]
            for n, d in moves[worst.argmin()]:
                counts[n] += d
        found.append((np.abs(errors).max(), counts.tolist()))
    for (part, k), count, (unit, _) in zip(places, min(found)[1], steps, strict=True):
        q.parts[part][k] += count * unit


def short_first(kind: Kind, value_at_0: mpf) -> tuple[mpf, mpf]:
    """over(0) and under(0), the latter of few bits, whose quotient is nearest to a value."""
    candidates = ((nearest(value_at_0 * u, kind.bits), u) for u in (1 + mpf(n) / 1024 for n in range(256)))
    return min(candidates, key=lambda pair: abs(pair[0] / pair[1] / value_at_0 - 1))


def hexadecimal(x: mpf, kind: Kind) -> str:
    """The literal of a number of the type, in C++."""
    short = re.sub(r"\.?0*p", "p", float(x).hex())
    return short + "f" * (kind.type == "float")


def table(kind: Kind) -> str:
    """The specialisation, as clang-format would not have it."""
    high = nearest(ZERO, kind.bits)
    low = nearest(ZERO - high, kind.bits)
    fall, fall_error = make(kind, tail, kind.fall, (mpf(1) / 2, mpf(1)))
    first = short_first(kind, 1 / (2 * ZERO))
    slopes, slope_error = make(kind, lambda a: slope(a) / (ZERO - a), kind.slope, first)
    errors = (f"2^{mp.nstr(log(e, 2), 3)}" for e in (fall_error, slope_error))
    names = {
        "kFallOver": fall.parts[0],
        "kFallUnder": fall.parts[1],
        "kSlopeOver": slopes.parts[0],
        "kSlopeUnder": slopes.parts[1],
    }
    lines = [
        "template <>",
        f"struct NormalTail<{kind.type}, {kind.brief}> {{",
        f"  static constexpr {kind.type} kZero = {hexadecimal(high, kind)}, kZeroLow = {hexadecimal(low, kind)};",
        f"  // Relative errors {' and '.join(errors)}.",
        *(
            f"  static constexpr {kind.type} {name}[] = {{{', '.join(hexadecimal(c, kind) for c in part)}}};"
            for name, part in names.items()
        ),
        "};",
    ]
    return "\n".join(lines)


def main() -> None:
    """Prints the specialisations, or puts them into the header, which clang-format then formats."""
    text = HEADER.read_text()
    for kind in KINDS:
        made = table(kind)
        print(made, end="\n\n", flush=True)
        pattern = rf"template <>\nstruct NormalTail<{kind.type}, {kind.brief}> \{{.*?\n\}};"
        text = re.sub(pattern, made, text, flags=re.DOTALL)
    if "--write" in sys.argv[1:]:
        HEADER.write_text(text)


if __name__ == "__main__":
    main()
