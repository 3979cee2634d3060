#!/usr/bin/env python3
"""lib/shard/README.md tells one training step in quoted code: each quoted line is in its file, in this order, and each station
calls the next one below the same heading."""
import re
import unittest
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
PAGE = PROJECT / "lib/shard/README.md"
STATION = re.compile(r"^### (\d+)\. `(?:\w+::)?(\w+)\(\)`, `([\w./]+)`$")


def chains_of(text):
    """Of each heading with stations: (number, function, file, quoted lines) of each."""
    chains = []
    stations = []
    quoting = False
    for line in text.splitlines():
        if line.startswith("## "):
            stations = []
            chains.append(stations)
        elif line.startswith("### "):
            match = STATION.match(line)
            assert match, line
            stations.append((int(match[1]), match[2], match[3], []))
        elif line.startswith("```"):
            quoting = line == "```cpp"
        elif quoting:
            stations[-1][3].append(line.strip())
    return [chain for chain in chains if chain]


class Walk(unittest.TestCase):
    def setUp(self):
        self.chains = chains_of(PAGE.read_text(encoding="utf-8"))

    def test_stations_are_numbered_and_quote_one_to_six_lines(self):
        self.assertGreaterEqual(sum(map(len, self.chains)), 15)
        for chain in self.chains:
            self.assertEqual([station[0] for station in chain], list(range(1, len(chain) + 1)))
            for _, function, _, lines in chain:
                self.assertIn(len(lines), range(1, 7), function)

    def test_quoted_lines_are_in_their_files(self):
        for chain in self.chains:
            for _, function, file, quoted in chain:
                code = [line.strip() for line in (PROJECT / file).read_text(encoding="utf-8").splitlines()]
                position = 0
                for line in quoted:
                    self.assertIn(line, code[position:], f"{file}, quoted at {function}()")
                    position = code.index(line, position) + 1

    def test_each_station_is_defined_in_its_file(self):
        for chain in self.chains:
            for _, function, file, _ in chain:
                self.assertRegex((PROJECT / file).read_text(encoding="utf-8"), rf"\b{function}\(", file)

    def test_each_station_calls_the_next(self):
        for chain in self.chains:
            for (_, function, _, quoted), (_, following, _, _) in zip(chain, chain[1:]):
                self.assertRegex("\n".join(quoted), rf"\b{following}\(", f"{function}() leads to {following}()")

    def test_the_page_is_short(self):
        self.assertLessEqual(len(PAGE.read_text(encoding="utf-8").splitlines()), 250)


if __name__ == "__main__":
    unittest.main()
