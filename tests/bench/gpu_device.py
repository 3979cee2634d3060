#!/usr/bin/env python3
"""The GPU that figures are measured on, asked of NVIDIA's driver itself; needs neither torch nor a build.

    gpu_device.py     prints {"name", "count", "total_bytes", "free_bytes", "driver"} of the first visible GPU, or
                      says in one line why there is none and ends with 1
"""
import ctypes
import json
import subprocess
import sys
from pathlib import Path

WANTED = "expected an NVIDIA GPU with its driver for --gpu"


class NoGpu(Exception):
    """There is no GPU to measure on; the text says what was found and what to do."""


def ask_driver():
    """Opens a context, as every program on the GPU does, so that its memory is not taken to be free. For a
    process that ends soon."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise NoGpu(f"{WANTED}; found no NVIDIA driver (libcuda.so.1); install it, or give the container the "
                    "GPUs, as docker run --gpus all does") from None

    def call(name, *arguments):
        error = getattr(cuda, name)(*arguments)
        if error != 0:
            text = ctypes.c_char_p()
            cuda.cuGetErrorString(error, ctypes.byref(text))
            why = text.value.decode() if text.value else f"error {error}"
            raise NoGpu(f"{WANTED}; found a driver whose {name} says \"{why}\"; see what nvidia-smi shows")

    count, device, version = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    name, context = ctypes.create_string_buffer(256), ctypes.c_void_p()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    call("cuInit", 0)
    call("cuDeviceGetCount", ctypes.byref(count))
    if count.value == 0:
        raise NoGpu(f"{WANTED}; found a driver that shows none; see CUDA_VISIBLE_DEVICES and nvidia-smi")
    call("cuDriverGetVersion", ctypes.byref(version))
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDeviceGetName", name, len(name), device)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return dict(name=name.value.decode(), count=count.value, total_bytes=total.value, free_bytes=free.value,
                driver=f"CUDA {version.value // 1000}.{version.value % 1000 // 10}")


def find_gpu():
    """The same from a process of its own, whose context is gone afterwards."""
    asked = subprocess.run([sys.executable, str(Path(__file__).resolve())], capture_output=True, text=True)
    if asked.returncode != 0:
        raise NoGpu((asked.stderr.strip().splitlines() or ["the driver ended the process that asked it"])[-1])
    return json.loads(asked.stdout)


if __name__ == "__main__":
    try:
        print(json.dumps(ask_driver()))
    except NoGpu as none:
        sys.exit(str(none))
