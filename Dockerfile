# The programs in a container, for CPUs (the default) or for NVIDIA GPUs; docs/installing.md says how to use it.
#   docker build --target cpu -t fsdp .
#   docker build --target cuda -t fsdp:cuda .
FROM debian:12 AS source
WORKDIR /src
COPY . .

FROM source AS build-cuda
ENV CUDA_HOME=/opt/cuda/nvidia/cu13
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates python3-pip
RUN python3 -m pip install -q --no-deps --target /opt/cuda nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 \
  nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
RUN scripts/build --cuda lib/all apps/all
RUN cmake --install build-cuda --prefix /opt/fsdp --component programs --strip && \
  cmake --install build-cuda --prefix /opt/fsdp --component libtorch && \
  rm -r /opt/fsdp/lib/fsdp/libtorch/torch/include /opt/fsdp/lib/fsdp/libtorch/nvidia/*/include

FROM debian:12 AS cuda
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=build-cuda /opt/fsdp /usr/local
RUN apt-get update && apt-get install -y --no-install-recommends libgomp1 libhdf5-103-1 libpcre2-8-0 libsentencepiece0 \
  libspdlog1.10 libutf8proc2 libxxhash0 libzstd1 zlib1g libcurl4 ca-certificates python3-pip && rm -rf /var/lib/apt/lists/*
WORKDIR /work

FROM source AS build-cpu
RUN scripts/build --cpu lib/all apps/all
RUN apt-get install -y --no-install-recommends dpkg-dev file && scripts/package deb --build-dir build --output /packages

FROM debian:12 AS cpu
RUN --mount=type=bind,from=build-cpu,source=/packages,target=/packages apt-get update && \
  apt-get install -y --no-install-recommends /packages/fsdp-toolkit_*.deb /packages/fsdp-libtorch_*.deb ca-certificates python3-pip && \
  rm -rf /var/lib/apt/lists/*
WORKDIR /work
