#!/usr/bin/env python3
"""The keys of a config and the options of the commands are counted, because each is one more thing to read, to test and to keep.
CONTRIBUTING.md has a list of those that came later. Asks the programs in FSDP_BIN_DIR."""
import os
import re
import subprocess
import unittest
from pathlib import Path

BIN = Path(os.environ["FSDP_BIN_DIR"])
KEYS = 265
OPTIONS = {"fsdp-data": 43, "fsdp-train": 79, "fsdp-launch": 26, "fsdp-ckpt": 46, "fsdp-generate": 24, "fsdp-plan": 32}
REMEDY = ("is another number than tests/source/interface_test.py has; where it is larger, add a row to \"New keys and options\" in "
          "CONTRIBUTING.md that says who asked for it and what it replaces, and then change the number")


def output(program, *arguments):
    return subprocess.run([BIN / program, *arguments], capture_output=True, text=True, check=True).stdout


class Interface(unittest.TestCase):
    def test_has_no_key_that_nobody_asked_for(self):
        keys = re.findall(r"^\| `", output("fsdp-train", "keys"), re.MULTILINE)
        self.assertEqual(len(keys), KEYS, f"the number of keys {REMEDY}")

    def test_has_no_option_that_nobody_asked_for(self):
        for program, number in OPTIONS.items():
            rows = re.findall(r"^(\S*)\t-\t(--[a-z][a-z0-9-]*)\t", output(program, "completions", "bash"), re.MULTILINE)
            found = len({row for row in rows if row[1] not in ("--help", "--version")})
            self.assertEqual(found, number, f"the number of options of {program}, in all its commands, {REMEDY}")


if __name__ == "__main__":
    unittest.main()
