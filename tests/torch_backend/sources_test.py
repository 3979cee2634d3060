#!/usr/bin/env python3
"""The wheel's module is built from files that torch_backend/CMakeLists.txt lists. Checks that they are enough, without building
it: where one of them includes a header of comm or util that has a source file of the same name, that file is listed too."""
import pathlib
import re
import sys

PROJECT = pathlib.Path(__file__).resolve().parents[2]
DEFINED_IN_HEADER = {"lib/base/util/hash"}  # what they use of it


def listed():
    text = (PROJECT / "torch_backend/CMakeLists.txt").read_text()
    names = set()
    for items, folder in re.findall(r'foreach\(name IN ITEMS ([\w\s]+)\)\s*list\(APPEND sources "\$\{lib\}/([\w/]+)/\$', text):
        names |= {f"lib/{folder}/{name}" for name in items.split()}
    names |= {f"torch_backend/{name}" for name in re.search(r"set\(sources ([\w. ]+)\)", text)[1].replace(".cpp", "").split()}
    return names


def included(path):
    names = re.findall(r'^#include "((?:comm|base|torch_backend)/[\w/]+)\.h"', path.read_text(), re.MULTILINE)
    return {name if name.startswith("torch_backend/") else f"lib/{name}" for name in names}


def main():
    names = listed()
    if not names:
        sys.exit("sources_test: no files are listed in torch_backend/CMakeLists.txt")
    problems = []
    sources = [PROJECT / f"{name}.cpp" for name in names]
    for source in sources:
        if not source.exists():
            problems.append(f"{source} is listed and does not exist")
            continue
        for name in sorted(included(source) - names - DEFINED_IN_HEADER):
            if (PROJECT / f"{name}.cpp").exists():
                problems.append(f"{source.relative_to(PROJECT)} includes {name}.h, but {name}.cpp is not listed")
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
