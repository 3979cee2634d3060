"""Shared memory for torch.distributed: import fsdp_shm; torch.distributed.init_process_group("fsdp_shm").

For tensors in host memory, of processes on one host. FSDP2, DDP and whatever else communicates through torch.distributed run
on it unchanged.
"""
import torch.distributed  # before the module, which uses torch's libraries

from ._built_for import TORCH

if torch.__version__.split("+")[0] != TORCH:
    raise ImportError(f"fsdp_shm was built for torch {TORCH}, found {torch.__version__}; build it for this one: "
                      "scripts/package torch-backend --python PYTHON")

from . import _C  # noqa: E402  (another torch would not have its symbols)

torch.distributed.Backend.register_backend("fsdp_shm", _C.create, extended_api=True, devices=["cpu"])
