#!/usr/bin/env python3
"""How long a build takes after a change to each of five central headers, without changing them: the sources that ninja would
compile again, and the seconds that each took when it was compiled last.

    rebuild.py [BUILD_DIR] [--below FOLDER...]      (build-dev, else build; of lib and apps)

ninja writes the headers that a source has included (ninja -t deps) and how long it took (.ninja_log). The seconds are those of
processors that were as busy as then; shares compare better between builds."""
import argparse
import re
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
HEADERS = ("util/error.h", "communicator.h", "engine.h", "unit.h", "config/config.h")


def seconds_of(build):
    """By output: the last time that it was made."""
    seconds = {}
    for line in (build / ".ninja_log").read_text().splitlines()[1:]:
        begin, end, _, output, _ = line.split("\t")
        seconds[output] = (int(end) - int(begin)) / 1000
    return seconds


def headers_of(build):
    """By output: all files that it was made from."""
    text = subprocess.run(["ninja", "-C", build, "-t", "deps"], capture_output=True, text=True, check=True).stdout
    found, output = {}, None
    for line in text.splitlines():
        if match := re.match(r"(\S+): #deps", line):
            output = match[1]
            found[output] = []
        elif output and line.startswith("    "):
            found[output].append(line.strip())
    return found


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build", nargs="?", type=Path)
    p.add_argument("--below", nargs="+", default=["lib", "apps"])
    a = p.parse_args()
    build = a.build or next((PROJECT / name for name in ("build-dev", "build") if (PROJECT / name / ".ninja_log").exists()), None)
    if build is None or not (build / ".ninja_log").exists():
        sys.exit("rebuild.py: expected a folder that ninja has built into, found none; name one, or run scripts/build --preset dev")
    seconds = seconds_of(build)
    outputs = {output: headers for output, headers in headers_of(build).items()
               if output in seconds and output.split("/")[0] in a.below and not output.endswith(".gch")}
    everything = sum(seconds[output] for output in outputs)
    print(f"{build}: {len(outputs)} objects below {', '.join(a.below)}, {everything:.0f} s")
    for header in HEADERS:
        stale = [output for output, headers in outputs.items()
                 if any(re.search(rf"lib/(\w+/)*{re.escape(header)}$", each) for each in headers)]
        took = sum(seconds[output] for output in stale)
        print(f"{header:20} {len(stale):5} objects {took:8.0f} s  {100 * took / max(everything, 1e-9):5.1f} %")


if __name__ == "__main__":
    main()
