"""Programs that begin as forks of a process which has imported PyTorch, but not Descend. The import takes seconds.

If they ask for it, they are forks of one that has imported torch_npu, and with it Descend.
"""

from __future__ import annotations

import atexit
import functools
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["torch.distributed.tensor", "pytest"])

# Reads a line for each program, and forks. The child leaves the loop and runs the program at the top level, so that it
# ends as `python -c` does. What torch_npu imports of PyTorch is imported here, torch_npu only if it is an argument.
# A child never looks for garbage in what was imported: it would copy all of it.
_SERVER = """
import gc, importlib, json, os, sys
gc.disable()
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
import torch.distributed.checkpoint, torch.distributed.tensor.experimental
import torch.fx.experimental.symbolic_shapes, torch.testing, torch.utils.data
for _module in sys.argv[1:]:
    importlib.import_module(_module)
gc.freeze()
for _line in sys.stdin:
    _program = json.loads(_line)
    _child = os.fork()
    if _child == 0:
        break
    print(_child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(_child, 0)[1]), flush=True)
else:
    sys.exit()
for _number, _file in enumerate(_program["files"]):
    os.dup2(os.open(_file, os.O_RDWR | os.O_CREAT), _number)
gc.enable()
os.environ.clear()
os.environ.update(_program["environment"])
os.chdir(_program["folder"])
sys.path[:] = _program["path"]
sys.argv = ["-c", *_program["arguments"]]
exec(compile(_program["code"], "<string>", "exec"), {"__name__": "__main__"})
"""


@functools.cache
def _server(*modules: str) -> subprocess.Popen[str]:
    server = subprocess.Popen([sys.executable, "-c", _SERVER, *modules], stdin=-1, stdout=-1, text=True)
    atexit.register(server.communicate)  # the end of its input ends it
    return server


def run(
    code: str,
    *arguments: object,
    folder: Path | None = None,
    timeout: float = 300,
    check: bool = False,
    environment: dict[str, str] | None = None,
    loaded: str = "",
) -> subprocess.CompletedProcess[str]:
    """Like ``python -c code arguments`` in a folder, with this process's module search path.

    To import torch alone does not bring torch_npu: `code` imports it. With ``loaded="torch_npu"`` that has been done,
    before the process had this environment.
    """
    server = _server(*filter(None, [loaded]))
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory() as outputs:
        files = ["/dev/null", *(os.path.join(outputs, name) for name in ("out", "err"))]
        program = {
            "code": code,
            "arguments": [*map(str, arguments)],
            "folder": str(folder or Path.cwd()),
            "path": [path or os.getcwd() for path in sys.path],
            "environment": os.environ | (environment or {}),
            "files": files,
        }
        server.stdin.write(json.dumps(program) + "\n")
        server.stdin.flush()
        limit = threading.Timer(timeout, os.kill, (int(server.stdout.readline()), 9))
        limit.start()
        status = int(server.stdout.readline())
        limit.cancel()
        done = subprocess.CompletedProcess(code, status, *(Path(file).read_text() for file in files[1:]))
    assert status == 0 or not check, f"exit status {status}\n{done.stdout}\n{done.stderr}"
    return done
