# Taking files out of pinned wheels; for scripts that have sourced common.sh.
cuda_libraries=('torch/lib/*.so*' 'nvidia/*/lib/*.so*')  # libtorch with its CUDA half

# download_wheels REQUIREMENTS FOLDER [PROCESSOR]: exactly the pinned files, whatever the Python of this machine, and for its processor
# or that of `uname -m`.
download_wheels() {
  local platform platforms=() processor=${3:-$(uname -m)}
  for platform in manylinux_2_{28,27,25,18,17,12,5} manylinux2014 manylinux2010 manylinux1; do
    platforms+=(--platform "${platform}_$processor")
  done
  python3 -m pip download -q --disable-pip-version-check --no-cache-dir --no-deps --only-binary=:all: --python-version 3.11 \
    "${platforms[@]}" --implementation cp --abi cp311 --abi none --require-hashes -r "$1" -d "$2"
}

# unpack FOLDER TARGET PATTERN...: those members of every wheel of the folder.
unpack() {
  local wheels=$1 target=$2 wheel code
  shift 2
  for wheel in "$wheels"/*.whl; do
    code=0
    unzip -q -o "$wheel" "$@" -d "$target" || code=$?
    # 11: a wheel that has none of the patterns.
    [ "$code" = 0 ] || [ "$code" = 11 ] || return "$code"
  done
}
