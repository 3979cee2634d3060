#!/usr/bin/env bash
# The build script of recipe.yaml: PREFIX and SP_DIR are conda's, the folder to install into and that of its Python's packages.
set -euo pipefail
export FSDP_DEPS_DIR=$PWD/.deps CMAKE_PREFIX_PATH=$PREFIX
scripts/install_dependencies --cpu --libtorch "$SP_DIR/torch"
cmake --preset release -B build-conda -DFSDP_LIBTORCH_DIR="$SP_DIR/torch" -DFSDP_ARROW_DIR="$(echo "$FSDP_DEPS_DIR"/arrow-*)" \
  -DFSDP_JINJA_DIR="$(echo "$FSDP_DEPS_DIR"/llama.cpp-jinja-*)" -DFSDP_BUILD_TESTS=OFF -DFSDP_MPI=OFF
ninja -C build-conda lib/all apps/all
cmake --install build-conda --prefix "$PREFIX" --component programs --strip
# PyTorch is no part of this package: the link names the one of the environment, wherever that lies.
mkdir -p "$PREFIX/lib/fsdp"
ln -sfnr "$SP_DIR" "$PREFIX/lib/fsdp/libtorch"
