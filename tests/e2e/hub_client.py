"""What the hub's own client (huggingface_hub) finds at HF_ENDPOINT: hub_client.py KIND REPOSITORY prints a line "PATH SHA256" for each file."""

import hashlib
import sys
import tempfile
from pathlib import Path

from huggingface_hub import HfApi, hf_hub_download

kind, repository = sys.argv[1:]
with tempfile.TemporaryDirectory() as folder:
    for path in sorted(HfApi().list_repo_files(repository, repo_type=kind)):
        file = hf_hub_download(repository, path, repo_type=kind, cache_dir=folder)
        print(path, hashlib.sha256(Path(file).read_bytes()).hexdigest())
