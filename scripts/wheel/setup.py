# The wheels of docs/installing.md. scripts/package puts the files into the folder of the package, and gives the wheel's name and the versions.
import os

from setuptools import Distribution, setup
from wheel.bdist_wheel import bdist_wheel


class WithMachineCode(Distribution):
    def has_ext_modules(self):  # though none that Python would import
        return True


class ForAnyPython(bdist_wheel):
    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


name, version, libtorch = (os.environ[key] for key in ("FSDP_WHEEL", "FSDP_VERSION", "FSDP_LIBTORCH_VERSION"))
this_libtorch = f"=={libtorch.rpartition('.')[0]}.*"
programs = ["train", "launch", "ckpt", "data", "generate", "plan", "quickstart", "follow-metrics"]


def wheel_of_programs(main, requires, description):
    return {"version": version, "packages": ["fsdp_toolkit"], "package_data": {"fsdp_toolkit": ["bin/*", "lib/**", "share/**"]},
            "entry_points": {"console_scripts": [f"fsdp-{program} = fsdp_toolkit:{main}" for program in programs]},
            "install_requires": [requires + this_libtorch], "description": description}


wheels = {
    "fsdp-toolkit": wheel_of_programs("main", "fsdp-libtorch", "Train language models with fully sharded data parallelism: programs in C++ for CPUs"),
    "fsdp-toolkit-cuda": wheel_of_programs(
        "main_on_torch", "torch", "Train language models with fully sharded data parallelism: programs in C++ for NVIDIA GPUs and CPUs"),
    "fsdp-libtorch": {"version": libtorch, "packages": ["fsdp_libtorch"], "package_data": {"fsdp_libtorch": ["**"]},
                      "description": "The CPU half of PyTorch's C++ library, for fsdp-toolkit"},
}
setup(name=name, python_requires=">=3.10", distclass=WithMachineCode, cmdclass={"bdist_wheel": ForAnyPython}, **wheels[name])
