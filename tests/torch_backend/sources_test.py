#!/usr/bin/env python3
"""The wheel's module is built from files that scripts/torch_backend/CMakeLists.txt lists. Checks that they are enough, without building
it: where one of them includes a header of comm or util that has a source file of the same name, that file is listed too."""
import pathlib
import re
import sys

PROJECT = pathlib.Path(__file__).resolve().parents[2]
LIB = PROJECT / "lib"
DEFINED_IN_HEADER = {"util/hash"}  # what they use of it


def listed():
    text = (PROJECT / "scripts/torch_backend/CMakeLists.txt").read_text()
    names = set()
    for items, folder in re.findall(r'foreach\(name IN ITEMS ([\w\s]+)\)\s*list\(APPEND sources "\$\{lib\}/(\w+)/', text):
        names |= {f"{folder}/{name}" for name in items.split()}
    return names


def included(path):
    return set(re.findall(r'^#include "((?:comm|util)/\w+)\.h"', path.read_text(), re.MULTILINE))


def main():
    names = listed()
    if not names:
        sys.exit("sources_test: no files are listed in scripts/torch_backend/CMakeLists.txt")
    problems = []
    sources = [LIB / f"{name}.cpp" for name in names] + [PROJECT / "scripts/torch_backend/module.cpp"]
    for source in sources:
        if not source.exists():
            problems.append(f"{source} is listed and does not exist")
            continue
        for name in sorted(included(source) - names - DEFINED_IN_HEADER):
            if (LIB / f"{name}.cpp").exists():
                problems.append(f"{source.relative_to(PROJECT)} includes {name}.h, but {name}.cpp is not listed")
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
