"""The programs and libraries with the MPI of a Spack environment. In the folder of the sources, with a Spack of 0.22 or later:

    spack repo add scripts/recipes/spack
    spack dev-build fsdp-toolkit@main ^openmpi

The build downloads libtorch and libarrow by scripts/install_dependencies, which needs python3 with pip.
"""

from spack.package import *


class FsdpToolkit(CMakePackage):
    """Training of transformer language models with fully sharded data parallelism on libtorch."""

    has_code = True
    version("main")

    variant("mpi", default=True, description='The module of comm.backend = "mpi"')

    depends_on("cxx", type="build")
    depends_on("c", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("git", type="build")  # applies scripts/cmake/jinja.patch
    depends_on("python", type="build")
    depends_on("py-pip", type="build")
    depends_on("mpi", when="+mpi")
    for library in ("cli11", "toml11", "spdlog", "nlohmann-json", "hdf5~mpi", "xxhash", "gloo", "pcre2", "utf8proc",
                    "sentencepiece", "zlib-api", "zstd"):
        depends_on(library)

    generator("ninja")

    @run_before("cmake")
    def download_libraries(self):
        Executable("scripts/install_dependencies")("--cpu")

    def cmake_args(self):
        return [self.define_from_variant("FSDP_MPI", "mpi"), self.define("FSDP_BUILD_TESTS", False)]
