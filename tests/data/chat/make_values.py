#!/usr/bin/env python3
"""Makes values.json: what templates print of numbers, texts and lists, by jinja2 as transformers sets it up.

    pip install transformers==5.24.0; make_values.py [OUTPUT]

Variables are the text of a JSON object, since not every reader keeps large integers.
"""

import json
import os
import random
import struct
import sys

from transformers.utils import chat_template_utils

OUT = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))

FLOATS = [0.0, -0.0, 1250000.0, 52.520008, 0.1, 1e-4, 1e-5, 2.5e-7, 1e15, 1e16, 9999999999999998.0, 1e21, 1e22, 123456789.123, -7.0,
          5e-324, 1.7976931348623157e308, -25290.0]
INTEGERS = [0, -1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64, 12345678901234567890, 2**70, -(2**70)]
TEXTS = ["", "a", "it's", 'say "x"', "both ' and \"", "back\\slash", "l\nine\t\r", "\x00\x1f\x7f\x85\xa0\xad", "caf\u00e9 \u65e5\u672c \U0001f600",
         "\u00a0a\u3000", "\u2028a\u2029\u1680", "\x1ca\x1f\x85", " a  b\u2003c ", "\ufeffa\u200b", "Stra\u00dfe \u0130", "12", " 1_000 ", "0x1f",
         "1e3", "2.5", "12abc", "3000000000"]
OF_VALUES = ["{{ x }}", "{{ x | tojson }}", "{{ [x, none, true] }}", "{{ 'a' ~ x }}"]
OF_TEXTS = ["[{{ x | trim }}]", "[{{ x.lstrip() }}|{{ x.rstrip() }}|{{ x.strip('a') }}]", "{{ x.split() }} {{ x.rsplit(none, 1) }}",
            "{{ x | length }} {{ x[1:3] }} {{ x[-1] }}", "{{ x | upper }} {{ x | lower }} {{ x | capitalize }}", "{{ x | int }} {{ x | float }}",
            "{{ x | tojson(ensure_ascii=true) }}"]
OTHERS = [
    ("{{ none }}|{{ true }}|{{ missing }}|{{ none ~ 1 }}|{{ missing ~ 'a' }}", {}),
    ("{{ none | default('d') }}|{{ missing | default('d') }}|{{ '' | default('d', true) }}", {}),
    ("{{ x }}", {"x": {"a": [1, 2.0, None, "it's"], "b": {}, "c": []}}),
    ("{{ x | tojson }}", {"x": {"a": [1, 2.0, None, "it's", True], "b": {}, "c": []}}),
    ("{{ x | tojson(indent=2) }}", {"x": {"a": [1, [], {"b": 1e16}], "c": {}}}),
    ("{{ x | tojson(separators=(',', ':')) }}", {"x": [1, {"b": "c"}]}),
    ("{{ {1: 2, none: 3, true: 4} | tojson }}", {}),
    ("{{ (x, 1) }}", {"x": "t"}),
    ("{{ a + b }} {{ a * 3 }} {{ a % -7 }} {{ -a % 7 }} {{ a / b }} {{ a < b }}", {"a": 2**53 + 1, "b": 2**53}),
    ("{{ x == y }} {{ x > 1 }} {{ x is integer }} {{ x is number }}", {"x": 10**20, "y": 10**20}),
]


def main():
    source = random.Random(7)
    floats = FLOATS + [struct.unpack("<d", source.randbytes(8))[0] for _ in range(12)]
    floats = [x for x in floats if x == x]
    cases = [(template, {"x": x}) for x in floats + INTEGERS + TEXTS for template in OF_VALUES]
    cases += [(template, {"x": x}) for x in TEXTS for template in OF_TEXTS] + OTHERS
    values = []
    for template, variables in cases:
        text = chat_template_utils._compile_jinja_template(template).render(**variables)
        values.append([template, json.dumps(variables), text])
    with open(os.path.join(OUT, "values.json"), "w", encoding="utf-8") as file:
        json.dump(values, file, ensure_ascii=True, indent=None, separators=(",", ":"))
        file.write("\n")


main()
