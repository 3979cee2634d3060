#!/usr/bin/env python3
"""What building costs: processor time of a full build of the programs, and seconds after a header was changed.

    build.py LIBTORCH [--touch HEADER...]

LIBTORCH is the folder that scripts/install_dependencies prints. The programs are built from nothing, without ccache, as scripts/build does it. For each
header of --touch (as "base/util/error.h", below lib/), everything is built as for development (preset dev), the header gets another time, and
what depends on it is compiled and linked again.
"""
import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
PROGRAMS = ("fsdp-train", "fsdp-launch", "fsdp-ckpt", "fsdp-data", "fsdp-generate", "fsdp-plan")


def run(*command):
    done = subprocess.run([str(word) for word in command], env={**os.environ, "CCACHE_DISABLE": "1"}, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"bench: '{' '.join(map(str, command))}' ended with {done.returncode}:\n" + "\n".join(done.stdout.splitlines()[-20:]))
    return done.stdout


def timed(*command):
    """Seconds that pass, seconds of processors, and the number of steps of Ninja."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    output = run(*command)
    seconds, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    steps = re.findall(r"^\[(\d+)/\d+\]", output, re.MULTILINE)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, int(steps[-1]) if steps else 0


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench build", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libtorch")
    parser.add_argument("--touch", nargs="*", default=[], metavar="HEADER")
    arguments = parser.parse_args()
    for header in arguments.touch:
        if not (PROJECT / "lib" / header).is_file():
            sys.exit(f"bench: expected the header {header} below lib/, found none")
    print("| build | seconds | processor seconds | steps |\n| --- | --- | --- | --- |")

    def row(name, measured):
        print("| {} | {:.0f} | {:.0f} | {} |".format(name, *measured), flush=True)

    with tempfile.TemporaryDirectory(prefix="build-bench-", dir=PROJECT / "build") as folder:
        def configure(preset):
            run("cmake", "-S", PROJECT, "--preset", preset, "-B", f"{folder}/{preset}", f"-DFSDP_LIBTORCH_DIR={arguments.libtorch}")
        configure("release")
        row("programs, from nothing", timed("ninja", "-C", f"{folder}/release", *PROGRAMS))
        if arguments.touch:
            configure("dev")
            row("everything for development, from nothing", timed("ninja", "-C", f"{folder}/dev"))
        for header in arguments.touch:
            os.utime(PROJECT / "lib" / header)
            row(f"after a change of {header}", timed("ninja", "-C", f"{folder}/dev"))


if __name__ == "__main__":
    main()
