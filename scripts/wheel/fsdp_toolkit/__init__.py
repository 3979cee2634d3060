"""The programs of fsdp-toolkit. A console script becomes its program, so that no Python stays in memory."""

import os
import sys
from importlib.util import find_spec


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    torch = os.path.dirname(find_spec("torch").origin)
    if os.path.dirname(torch) != os.path.dirname(here):  # one of them is the user's own, the other the system's
        paths = [os.path.join(torch, "lib"), os.environ.get("LD_LIBRARY_PATH")]
        os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(path for path in paths if path)
    program = os.path.join(here, "bin", os.path.basename(sys.argv[0]))
    os.execv(program, [program, *sys.argv[1:]])
