#!/usr/bin/env python3
"""The architecture is in the folders: lib/ZONE/COMPONENT is one CMake target, which includes only the components that it links and
links only those that it includes; zones and components include only those that their CMakeLists.txt name before them; and libtorch
is included only where it is linked."""
import re
import tempfile
import unittest
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
SOURCES = {".h", ".cpp", ".cu", ".cuh", ".inc"}
TORCH = re.compile(r"(torch|ATen|c10|caffe2)/")


class Component:
    def __init__(self, lib, cmake):
        self.folder = cmake.parent.relative_to(lib).as_posix()
        text = cmake.read_text(encoding="utf-8")
        calls = re.findall(r"^fsdp_(?:component|options)\((\w+)([^)]*)\)", text, re.MULTILINE)
        self.count = len(calls)
        self.name, call = calls[0] if calls else ("", "")
        self.links = set(re.findall(r"fsdp::(\w+)", call.partition("LINK")[2]))
        self.torch = {"cpu", "headers"} & set(re.findall(r"libtorch::(\w+)", text))
        self.includes = {}  # what is included: by which files
        for path in sorted(cmake.parent.rglob("*")):
            if path.suffix in SOURCES:
                for name in re.findall(r'^\s*#\s*include\s+["<]([^">]+)[">]', path.read_text(encoding="utf-8"), re.MULTILINE):
                    self.includes.setdefault(name, []).append(path.relative_to(lib).as_posix())


def subfolders(folder):
    return re.findall(r"^add_subdirectory\((\w+)\)", (folder / "CMakeLists.txt").read_text(encoding="utf-8"), re.MULTILINE)


def problems_of(lib):
    """What contradicts the architecture, a sentence each."""
    order = [f"{zone}/{component}" for zone in subfolders(lib) for component in subfolders(lib / zone)]
    found = []
    components = {}
    for cmake in sorted(lib.glob("*/*/CMakeLists.txt")):
        component = Component(lib, cmake)
        components[component.folder] = component
        if component.count != 1:
            found.append(f"{component.folder}/CMakeLists.txt: expected one component, found {component.count}")
    for path in sorted(lib.rglob("*")):
        if path.suffix in SOURCES and "/".join(path.relative_to(lib).parts[:2]) not in components:
            found.append(f"{path.relative_to(lib)}: expected it in the folder of a component")
    by_name = {component.name: component for component in components.values()}

    def links_torch(component, header):
        """Headers that stand alone need none of its libraries."""
        needed = {"cpu", "headers"} if header.startswith("torch/headeronly/") else {"cpu"}
        below = (by_name[name] for name in component.links if name in by_name)
        return needed & component.torch or any(links_torch(each, header) for each in below
                                               if order.index(each.folder) < order.index(component.folder))

    for component in components.values():
        used = set()
        for name, files in component.includes.items():
            where, folder = files[0], "/".join(name.split("/")[:2])
            if (lib / name).is_file():
                if folder not in components or folder == component.folder:
                    continue
                used.add(components[folder].name)
                if order.index(folder) > order.index(component.folder):
                    found.append(f"{where} includes {name}, which lies above it")
                elif components[folder].name not in component.links:
                    found.append(f"{where} includes {name}, but {component.folder} does not link fsdp::{components[folder].name}")
            elif ((lib / where).parent / name).is_file():
                found.append(f"{where} includes {name}, which is to be named from lib/ on")
            elif TORCH.match(name):
                files = [file for file in files if "/cuda/" not in file]  # of the flavour that links all of libtorch
                if files and not links_torch(component, name):
                    found.append(f"{files[0]} includes {name}, but {component.folder} links no libtorch")
        for name in sorted(component.links - used - {"plugin_interface"}):
            found.append(f"{component.folder} links fsdp::{name}, of which it includes nothing")
    return found


class Tree(unittest.TestCase):
    def test_keeps_to_the_architecture(self):
        self.assertEqual(problems_of(PROJECT / "lib"), [])


    def test_the_map_lists_each_component_in_its_place(self):
        lib = PROJECT / "lib"
        text = (lib / "README.md").read_text(encoding="utf-8")
        order = [f"{zone}/{component}" for zone in subfolders(lib) for component in subfolders(lib / zone)]
        self.assertEqual(re.findall(r"^\| `(\w+/\w+)` \|", text, re.MULTILINE), order)
        self.assertLessEqual(len(text.split()), 1300)
        for line in text.splitlines():
            self.assertLessEqual(len(line), 120 if line.startswith("| `") else 200, line)


class Rule(unittest.TestCase):
    """Each on a small tree: base/util, base/tensor, which links libtorch, and run/train, which links base/util."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.lib = Path(folder.name)
        self.write("CMakeLists.txt", "add_subdirectory(base)\nadd_subdirectory(run)\n")
        self.write("base/CMakeLists.txt", "add_subdirectory(util)\nadd_subdirectory(tensor)\n")
        self.write("run/CMakeLists.txt", "add_subdirectory(train)\n")
        self.write("base/util/CMakeLists.txt", "fsdp_component(util)\n")
        self.write("base/util/error.h", "#include <string>\n")
        self.write("base/tensor/CMakeLists.txt", "fsdp_component(tensor TENSORS LINK fsdp::util\n  libtorch::cpu)\n")
        self.write("base/tensor/storage.h", '#include <ATen/ATen.h>\n#include "base/util/error.h"\n')
        self.write("run/train/CMakeLists.txt", "fsdp_component(train LINK fsdp::util)\n")
        self.write("run/train/trainer.cpp", '#include "base/util/error.h"\n#include "run/train/trainer.h"\n')
        self.write("run/train/trainer.h", "")
        self.assertEqual(problems_of(self.lib), [])

    def write(self, name, text):
        (self.lib / name).parent.mkdir(parents=True, exist_ok=True)
        (self.lib / name).write_text(text, encoding="utf-8")

    def expect(self, *problems):
        self.assertEqual(problems_of(self.lib), list(problems))

    def test_includes_only_what_is_linked(self):
        self.write("run/train/trainer.h", '#include "base/tensor/storage.h"\n')
        self.expect("run/train/trainer.h includes base/tensor/storage.h, but run/train does not link fsdp::tensor")

    def test_includes_go_down(self):
        for above in ("run/train/trainer", "base/tensor/storage"):
            self.write("base/util/CMakeLists.txt", f"fsdp_component(util LINK fsdp::{above.split('/')[1]})\n")
            self.write("base/util/error.h", f'#include "{above}.h"\n')
            self.expect(f"base/util/error.h includes {above}.h, which lies above it")

    def test_links_only_what_is_included(self):
        self.write("run/train/trainer.cpp", "")
        self.expect("run/train links fsdp::util, of which it includes nothing")

    def test_libtorch_is_included_where_it_is_linked(self):
        self.write("base/util/error.h", "#include <torch/torch.h>\n")
        self.expect("base/util/error.h includes torch/torch.h, but base/util links no libtorch")

    def test_a_folder_has_one_component(self):
        self.write("base/util/CMakeLists.txt", "fsdp_component(util)\nfsdp_component(json)\n")
        self.write("base/loose.h", "")
        self.expect("base/util/CMakeLists.txt: expected one component, found 2", "base/loose.h: expected it in the folder of a component")

    def test_headers_are_named_from_lib_on(self):
        self.write("run/train/trainer.cpp", '#include "base/util/error.h"\n#include "trainer.h"\n')
        self.expect("run/train/trainer.cpp includes trainer.h, which is to be named from lib/ on")


if __name__ == "__main__":
    unittest.main()
