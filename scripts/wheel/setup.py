# The wheel fsdp-toolkit: scripts/package puts the programs into fsdp_toolkit/bin and gives the versions.
import os

from setuptools import Distribution, setup
from wheel.bdist_wheel import bdist_wheel


class WithPrograms(Distribution):
    def has_ext_modules(self):  # machine code, though none that Python would import
        return True


class ForAnyPython(bdist_wheel):
    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


programs = ["train", "launch", "ckpt", "data", "generate", "plan", "quickstart"]
setup(
    name="fsdp-toolkit",
    version=os.environ["FSDP_VERSION"],
    description="Train language models with fully sharded data parallelism: programs in C++ on torch's libtorch",
    packages=["fsdp_toolkit"],
    package_data={"fsdp_toolkit": ["bin/*", "lib/**", "share/**"]},
    entry_points={"console_scripts": [f"fsdp-{name} = fsdp_toolkit:main" for name in programs]},
    python_requires=">=3.10",
    install_requires=[f"torch=={os.environ['FSDP_LIBTORCH_VERSION']}.*"],
    distclass=WithPrograms,
    cmdclass={"bdist_wheel": ForAnyPython},
)
