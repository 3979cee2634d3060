#!/usr/bin/env python3
"""What libtorch imports from a library of CUDA and a stand-in of that library does not have.

  missing_symbols.py --library libcublas.so.13 [--prefix nccl] --own OBJECT... --importers LIBRARY... --output FILE
                     [--stubs | --refuse CODE] [--absent NAME...]

--library names it as nm shows the version of a symbol; of a library without versions, --prefix is what its names begin with
(a regular expression). With --stubs, the output has a function for each missing symbol, and its call is a violation. With --refuse, it just
returns CODE. Without both, missing symbols are an error that names them, unless --absent lists them, and the output has such a function
for each of those.
"""

import argparse
import re
import subprocess
import sys

FAILURE = 801  # an error in each of the libraries


def symbols(option, files):
    output = subprocess.run(["nm", *option, "--format=posix", *files], check=True, capture_output=True, text=True).stdout
    return {line.split()[0] for line in output.splitlines() if not line.endswith(":")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--prefix")
    parser.add_argument("--own", nargs="+", required=True)
    parser.add_argument("--importers", nargs="+", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--stubs", action="store_true")
    parser.add_argument("--refuse", type=int)
    parser.add_argument("--absent", nargs="*", default=[])
    arguments = parser.parse_args()

    imported = symbols(["-D", "--undefined-only", "--with-symbol-versions"], arguments.importers)
    if arguments.prefix:
        wanted = {name for name in imported if re.fullmatch(arguments.prefix + r"\w*", name)}
    else:
        wanted = {name.partition("@")[0] for name in imported if name.partition("@")[2].lstrip("@") == arguments.library}
    if not wanted:
        sys.exit(f"missing_symbols: expected libtorch to import symbols of {arguments.library}; found none in "
                 + " ".join(arguments.importers))
    missing = wanted - symbols(["--defined-only", "--extern-only"], arguments.own)
    unknown = sorted(missing - set(arguments.absent))
    if unknown and not arguments.stubs and arguments.refuse is None:
        sys.exit(f"missing_symbols: libtorch imports from {arguments.library}, but the stand-in does not have: "
                 + ", ".join(unknown) + "; add them to tests/cuda_standin")
    with open(arguments.output, "w") as file:
        # Without CUDA's headers, which declare the functions as they are.
        file.write('extern "C" void standin_violation(const char* what);\n')
        for name in sorted(missing):
            if arguments.refuse is not None:
                file.write(f'extern "C" int {name}() {{ return {arguments.refuse}; }}\n')
                continue
            file.write(f'extern "C" int {name}() {{\n'
                       f'  standin_violation("the stand-in has no {name}");\n  return {FAILURE};\n}}\n')


if __name__ == "__main__":
    main()
