#!/usr/bin/env python3
"""Whether the tests of a build folder that do not ask for a GPU see none, so that they find the same on every machine.

  hidden_gpus.py BUILD_DIR
"""

import json
import subprocess
import sys

WITH_GPUS = {"gpu", "standin"}
HIDDEN = "CUDA_VISIBLE_DEVICES=set:"


def main():
    command = ["ctest", "--test-dir", sys.argv[1], "--show-only=json-v1"]
    shown, tests = [], json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["tests"]
    for test in tests:
        properties = {entry["name"]: entry["value"] for entry in test.get("properties", [])}
        if WITH_GPUS.isdisjoint(properties.get("LABELS", [])) and HIDDEN not in properties.get("ENVIRONMENT_MODIFICATION", []):
            shown.append(test["name"])
    if shown or not tests:
        labels = " or ".join(sorted(WITH_GPUS))
        sys.exit(f"of {len(tests)} tests, these have neither {HIDDEN} nor a label {labels}: {', '.join(shown)}")


if __name__ == "__main__":
    main()
