# Shared by the scripts of this folder: source it.
set -euo pipefail
project=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
program=$(basename "$0")
deps=${FSDP_DEPS_DIR:-$project/.deps}
libtorch_version=$(<"$(dirname "${BASH_SOURCE[0]}")/libtorch-version")  # the pinned one

# The folder of the programs: that of the build, or, for scripts in PREFIX/share/fsdp, PREFIX/bin.
programs() { if [ -f "$project/CMakeLists.txt" ]; then echo "$project/build/bin"; else realpath "$project/../../bin"; fi; }

say() { if [ -t 2 ]; then printf '\033[1m==\033[0m %s\n' "$*" >&2; else printf '== %s\n' "$*" >&2; fi; }
die() { printf '%s: %s\n' "$program" "$*" >&2; exit 1; }

# cause_of LOG: what went wrong, in words, from the output of the command that failed.
cause_of() {
  if grep -qiE 'no space left on device|not enough free space|disk quota exceeded' "$1"; then
    echo "the disk is full"
  elif grep -qiE 'permission denied|operation not permitted|are you root|read-only file system' "$1"; then
    echo "permission was denied"
  elif grep -qiE 'could not resolve|temporary failure|name or service not known|network is unreachable|connection (refused|timed out|reset)|failed to establish|failed to fetch|unable to fetch|no route to host|max retries|could not connect|could not find a version|no matching distribution' "$1"; then
    echo "the network or the package index cannot be reached"
  elif grep -qiE 'hashes? .*(do not|mismatch)|THESE PACKAGES DO NOT MATCH' "$1"; then
    echo "a downloaded file is not the one that is pinned"
  elif grep -qiE 'killed|out of memory|cannot allocate memory' "$1"; then
    echo "the machine ran out of memory"
  else
    # A compiler's or linker's first complaint says more than the last line.
    grep -m1 -E '(error|Error)[ :]|undefined reference' "$1" || grep -vE '^\s*$' "$1" | tail -1
  fi
}

# step WHAT COMMAND...: runs the command with its output in a log; a failure ends the script in one sentence.
step() {
  local what=$1 log
  shift
  log=$(mktemp "${TMPDIR:-/tmp}/fsdp-$program.XXXXXX") || die "cannot $what: no temporary file can be made in ${TMPDIR:-/tmp}"
  if ! "$@" >"$log" 2>&1 </dev/null; then
    die "cannot $what: $(cause_of "$log") (all of the output: $log)"
  fi
  rm -f "$log"
}

# as_root COMMAND...: as it is for root, through sudo for others.
as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# nvcc_of_toolkit: where the CUDA toolkit's compiler is, as CMake finds it too; fails where there is none.
nvcc_of_toolkit() {
  local folder
  for folder in "${CUDA_HOME:+$CUDA_HOME/bin}" "${CUDA_PATH:+$CUDA_PATH/bin}"; do
    if [ -n "$folder" ] && [ -x "$folder/nvcc" ]; then echo "$folder/nvcc"; return; fi
  done
  command -v nvcc || { [ -x /usr/local/cuda/bin/nvcc ] && echo /usr/local/cuda/bin/nvcc; }
}

# gpu_programs FLAVOUR BIN TARGET...: sets `bin`, the folder of the programs for a GPU: that of FSDP_BIN_DIR, of the archive of a folder
# that `gpu_check --pack` made, or BIN of this checkout, where they are built.
gpu_programs() {
  local flavour=$1
  bin=$2
  shift 2
  if [ -n "${FSDP_BIN_DIR:-}" ]; then
    bin=$(realpath "$FSDP_BIN_DIR")
  elif [ -f "$project/programs.tar.xz" ]; then
    if [ ! -d "$project/programs" ]; then
      rm -rf "$project/part"
      step "unpack the programs" python3 -m tarfile -e "$project/programs.tar.xz" "$project/part"
      [ ! -d "$project/part/programs-b" ] || mv "$project/part/programs-b" "$project/programs-b"
      mv "$project/part/programs" "$project/programs"
      rmdir "$project/part"
    fi
    bin=$project/programs/bin
  else
    "$project/scripts/build" "$flavour" "$@" >/dev/null
    bin=$project/$bin
  fi
}
