"""The programs of fsdp-toolkit. A console script becomes its program, so that no Python stays in memory."""

import os
import sys
from importlib.util import find_spec


def put_first(variable, *folders):
    values = [*folders, os.environ.get(variable)]
    os.environ[variable] = os.pathsep.join(value for value in values if value)


def run(package, libtorch):
    """Becomes the program, with the libtorch that lies in the folder `libtorch` of the installed `package`."""
    name = os.path.basename(sys.argv[0])
    found = find_spec(package)
    if found is None:
        wheel = package.replace("_", "-")
        sys.exit(f"{name}: expected the package {wheel} in {sys.prefix}, found none; install it (python3 -m pip install {wheel})")
    here = os.path.dirname(os.path.abspath(__file__))
    there = os.path.dirname(found.origin)
    if os.path.dirname(there) != os.path.dirname(here):  # one of them is the user's own, the other the system's
        libtorch = os.path.normpath(os.path.join(there, libtorch))
        put_first("LD_LIBRARY_PATH", os.path.join(libtorch, "torch", "lib"), os.path.join(libtorch, "nvidia", "cu13", "lib"))
    if sys.prefix != sys.base_prefix:  # an environment, active or not: fsdp-quickstart calls its pip
        put_first("PATH", os.path.dirname(sys.executable))
    program = os.path.join(here, "bin", name)
    os.execv(program, [program, *sys.argv[1:]])


def main():
    run("fsdp_libtorch", ".")


def main_on_torch():
    run("torch", "..")
