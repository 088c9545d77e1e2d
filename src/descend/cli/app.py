"""The commands, put together: a new one is a file here and a line below."""

from __future__ import annotations

from typing import Annotated

import typer

import descend
from descend.cli.check import check
from descend.cli.demo import demo
from descend.cli.explain import explain
from descend.cli.info import info
from descend.cli.npu import Launcher, npu
from descend.cli.ops import ops
from descend.cli.portability import portability
from descend.cli.run import run
from descend.cli.sdk import sdk

app = typer.Typer(
    name="descend",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # whose tables cut long options off at 80 columns
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"descend {descend.__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Operators of CANN's aclnn library, forward and backward, on any machine."""


app.command()(ops)
app.command()(explain)
app.add_typer(run)
app.add_typer(portability)
app.command()(check)
app.command()(demo)
app.command()(info)
app.command(cls=Launcher)(npu)
app.command()(sdk)
