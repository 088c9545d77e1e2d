"""``descend npu --check``: whether torch_npu runs here on Descend, in one screen."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.table import Table

import descend
from descend import _cann, _npu_hook, _symbols, acl, sdk
from descend.cli import output
from descend.contract import PRODUCTS

# Run in a new process. The marker distinguishes its line from other output.
_MARKER = "descend-npu-check "
_PROBE = f"""
import json, torch, torch_npu
found = {{"devices": torch.npu.device_count(), "available": torch.npu.is_available()}}
if found["available"]:
    found["name"] = torch.npu.get_device_name(0)
    x = torch.arange(6, dtype=torch.float32)
    found["copies"] = bool((x.npu().cpu() == x).all())
else:
    try:
        torch.npu.set_device(0)
    except Exception as error:
        found["reason"] = str(error).strip().splitlines()[-1]
print({_MARKER!r} + json.dumps(found))
"""
_SECONDS = 300
_NAMES = 12  # as many are listed


def report() -> int:
    """Prints what is found; returns 0 if torch_npu runs on Descend, else 1."""
    wrong: list[str] = []
    table = output.table("", "", header=False)
    for package in ("torch", "torch_npu"):
        table.add_row(package, _version(package) or "not installed")
    if None in (_version("torch"), _version("torch_npu")):
        wrong.append(f'torch_npu is not installed: pip install "descend[npu]" --extra-index-url {_npu_hook.CPU_INDEX}')
    else:
        try:
            _npu_hook.check_versions()
        except ImportError as error:
            wrong.append(str(error))
    if found := _cann.other():
        table.add_row("CANN", found)
        wrong.append(_cann.stays_out(found))
    else:
        table.add_row("in CANN's place", f"Descend {descend.__version__}, {_cann.folder()}")
    _symbol_rows(table, wrong)
    try:
        _cann.check_settings()
    except ValueError as error:  # no program would run
        wrong.append(str(error))
    product = acl.get_product()
    table.add_row("product", f"{product} (SoC {PRODUCTS[product].soc})")
    if not wrong:
        _device_rows(table, wrong)
    console = output.console()
    output.show(console, table)
    console.print()
    for sentence in wrong or ["torch_npu runs here."]:
        console.print(sentence)
    return 1 if wrong else 0


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _symbol_rows(table: Table, wrong: list[str]) -> None:
    """The functions of CANN that torch_npu's libraries need, and how many exist here."""
    spec = importlib.util.find_spec("torch_npu")
    if spec is None or spec.origin is None:
        return
    package = Path(spec.origin).parent
    asked = _symbols.requests(_symbols.libraries(package))
    folder = _cann.folder() / "lib64"
    served = _symbols.exported(folder / sdk.LIBRARY)
    missing = sorted([*(asked.bound - served), *(name for name in asked.needed if not (folder / name).exists())])
    table.add_row("bound at load", f"{len(asked.bound)} functions, {len(asked.bound & served)} of them here")
    if missing:
        wrong.append(f"torch_npu cannot be loaded without what is not here: {_list(missing)}.")
    operators = {name for name in asked.looked_up if name.startswith("aclnn")}
    others = asked.looked_up - operators
    table.add_row("looked up by name", f"{len(others)} functions, {len(others & served)} of them here")
    table.add_row("operators of aclnn", f"{len(operators)} names, {len(operators & served)} of them here")


def _device_rows(table: Table, wrong: list[str]) -> None:
    command = [sys.executable, "-c", _PROBE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        wrong.append(f"`import torch_npu` had not ended after {_SECONDS} s.")
        return
    line = next((line for line in done.stdout.splitlines() if line.startswith(_MARKER)), None)
    if done.returncode != 0 or line is None:
        last = (done.stderr.strip().splitlines() or ["it says nothing."])[-1]
        wrong.append(f"a process that imports torch_npu ends with status {done.returncode}: {last}")
        return
    found = json.loads(line.removeprefix(_MARKER))
    if not found["available"]:
        wrong.append(f"torch.npu.is_available() is False: {found.get('reason', 'no reason is given.')}")
        return
    table.add_row("devices", f"{found['devices']}: {found['name']}")
    if not found["copies"]:
        wrong.append("a tensor that is copied to the device and back has changed.")


def _list(names: list[str]) -> str:
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return ", ".join(names[:_NAMES]) + more
