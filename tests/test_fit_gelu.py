"""The coefficients of GELU are those that tools/fit_gelu.py makes, to the last bit."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("mpmath")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

import fit_gelu

from cases import extended


def numbers(text: str) -> list[float]:
    return [float.fromhex(number) for number in re.findall(r"-?0x[0-9a-f.]+p[+-]\d+", text)]


@pytest.mark.parametrize("kind", [fit_gelu.KINDS[1], *extended(fit_gelu.KINDS[0], fit_gelu.KINDS[2])], ids=str)
def test_the_header_has_what_the_tool_makes(kind):
    made = fit_gelu.table(kind)
    head = made.split(" {\n")[0]
    (written,) = re.findall(re.escape(head) + r" \{(.*?)\n\};", fit_gelu.HEADER.read_text(), re.DOTALL)
    assert numbers(written) == numbers(made)
    assert re.findall(r"Relative errors.*", written) == re.findall(r"Relative errors.*", made)
