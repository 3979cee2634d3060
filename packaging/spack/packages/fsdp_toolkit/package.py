import os

from spack_repo.builtin.build_systems.cmake import CMakePackage

from spack.package import *


class FsdpToolkit(CMakePackage):
    """Train transformer language models with fully sharded data parallelism: programs and a library in C++ on libtorch."""

    # There is no release yet. From a checkout:
    #   spack repo add packaging/spack && spack dev-build fsdp-toolkit@main
    version("main")
    has_code = True

    variant("mpi", default=False, description="Communication over MPI (comm.backend = mpi)")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("git", type="build")
    depends_on("unzip", type="build")
    depends_on("py-pip", type="build")
    depends_on("python@3.10:", type=("build", "run"))

    depends_on("cli11@2:", type="build")
    depends_on("toml11@3:", type="build")
    depends_on("nlohmann-json@3:", type="build")
    depends_on("gloo", type="build")
    depends_on("spdlog")
    depends_on("hdf5@1.10:~mpi")
    depends_on("xxhash")
    depends_on("pcre2")
    depends_on("utf8proc")
    depends_on("sentencepiece")
    depends_on("zlib-api")
    depends_on("zstd")
    depends_on("curl", type=("build", "run"))
    depends_on("py-torch@2.11:+distributed+gloo~cuda~rocm", type=("build", "link", "run"))
    depends_on("mpi@3:", when="+mpi")

    generator("ninja")
    requires("platform=linux")

    @property
    def torch(self):
        return join_path(self.spec["py-torch"].prefix, self.spec["python"].package.platlib, "torch")

    @property
    def pinned(self):
        return join_path(self.stage.path, "pinned")

    @run_before("cmake")
    def fetch_pinned_files(self):
        """libarrow and llama.cpp's engine for chat templates."""
        with working_dir(self.stage.source_path):
            Executable("scripts/install_dependencies")("--cpu", "--libtorch", self.torch, extra_env={"FSDP_DEPS_DIR": self.pinned})

    def cmake_args(self):
        folders = {name.rsplit("-", 1)[0]: join_path(self.pinned, name) for name in os.listdir(self.pinned)}
        return [
            self.define("FSDP_LIBTORCH_DIR", self.torch),
            self.define("FSDP_ARROW_DIR", folders["arrow"]),
            self.define("FSDP_JINJA_DIR", folders["llama.cpp-jinja"]),
            self.define("FSDP_BUILD_TESTS", False),
            self.define_from_variant("FSDP_MPI", "mpi"),
        ]
