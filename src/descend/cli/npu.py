"""``descend npu PROGRAM``: programs written for torch_npu, on this machine."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperOption

from descend import _cann
from descend.contract import PRODUCTS

_PROGRAMS = ("-m", "-c", "-")  # programs of Python that are no files


class Launcher(TyperCommand):
    """A command that leaves alone what follows the program, or -m MODULE: that is the program's own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Puts -- before the program."""
        options = [option for option in self.params if isinstance(option, TyperOption)]
        with_value = {name for option in options if not option.is_flag for name in option.opts}
        ours = 0
        while ours < len(args) and args[ours].startswith("-") and args[ours] not in (*_PROGRAMS, "--"):
            ours += 2 if args[ours] in with_value else 1
        return super().parse_args(ctx, args if "--" in args[:ours] else [*args[:ours], "--", *args[ours:]])


def npu(
    program: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PROGRAM ARGUMENT...",
            help="A Python file, -m MODULE, -c CODE, - for what standard input has, or a command such as torchrun, "
            "and all of its arguments.",
        ),
    ] = None,
    product: Annotated[str | None, typer.Option(help="The Ascend product to stand for (DESCEND_PRODUCT).")] = None,
    devices: Annotated[int | None, typer.Option(min=1, help="How many devices there are (DESCEND_DEVICES).")] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write there which operators ran, where they were computed, and which products would accept the calls "
            "(DESCEND_REPORT). A table is printed at the end.",
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Tell what is found here and what is wrong.")] = False,
) -> None:
    """Run a program on torch_npu, with Descend in CANN's place.

    The program is started as ever, and so are those that it starts: only environment variables are set. With --report
    this process stays beside it, passes on signals, and ends as the program has ended.
    """
    if product is not None and product not in PRODUCTS:
        raise typer.BadParameter(f"there is no product {product!r}; the products are {', '.join(PRODUCTS)}.")
    settings = {"DESCEND_PRODUCT": product, "DESCEND_DEVICES": devices}
    os.environ.update({name: str(value) for name, value in settings.items() if value is not None})
    if os.environ.get("DESCEND_PRODUCT") == "host":
        raise typer.BadParameter("torch_npu knows no device of the product host, which is not a processor's.")
    if check:
        from descend.cli import npu_check

        raise typer.Exit(npu_check.report())
    if not program:
        raise typer.BadParameter("a program is missing: descend npu train.py, or descend npu -m module.")
    _cann.refuse_other()
    _cann.check_settings()
    command = _command(program)
    sys.stdout.flush()
    if report is not None:
        from descend import _npu_report
        from descend.cli import npu_report

        npu_report.run(command, _environment(), _npu_report.prepare(report))
    os.execvpe(command[0], command, _environment())


def _command(program: list[str]) -> list[str]:
    """What is executed: this interpreter with a file or module, or a command from beside it or from PATH."""
    name = program[0]
    if name in _PROGRAMS or name.endswith(".py") or os.path.exists(name):
        return [sys.executable, *program]
    beside = Path(sys.executable).parent
    found = shutil.which(name, path=str(beside)) or shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"there is neither a file nor a command {name}.")
    return [found, *program[1:]]


def _environment() -> dict[str, str]:
    """The variables of this process, those that set_env.sh sets for programs that run, and Triton's interpreter."""
    home = _cann.folder()
    paths = [str(home / "lib64"), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    of_cann = {**_cann.environment(home), "LD_LIBRARY_PATH": os.pathsep.join(paths)}
    return {"TRITON_INTERPRET": "1", **os.environ, **of_cann}  # see descend.npu.interpreted_triton
