# Sluice in a container, from Debian's packages alone.
#
#   docker build --target cpu -t sluice .
#   docker build --target cuda -t sluice-cuda .        needs the NVIDIA Container Toolkit to run on a GPU
#   docker run --rm -v "$PWD:/work" sluice train_gpt2 --data text.txt --output runs/first
#
# The programs are compiled for x86-64-v3 (AVX2), not for the machine that builds the image.

FROM debian:trixie-slim AS base
SHELL ["/bin/bash", "-c"]
WORKDIR /src
COPY scripts/install_deps scripts/
RUN apt-get update && scripts/install_deps build && rm -rf /var/lib/apt/lists/*
COPY . .

FROM base AS cpu-build
RUN cmake -S . -B /build -G Ninja -DCMAKE_BUILD_TYPE=Release -DSLUICE_MARCH=x86-64-v3 \
      -DSLUICE_BUILD_TESTS=OFF -DSLUICE_BUILD_BENCH=OFF -DCMAKE_INSTALL_PREFIX=/opt/sluice \
    && cmake --build /build && cmake --install /build --component programs

# Debian has the CUDA toolkit in non-free and NCCL in contrib. nvcc takes g++ 13, whose older libstdc++ CMake would link
# before that of g++ 14, with which Debian's libraries are built. At run time the driver is the host's.
FROM base AS cuda-build
RUN sed -i 's/^Components: main$/Components: main contrib non-free/' /etc/apt/sources.list.d/debian.sources \
    && apt-get update && apt-get install -y --no-install-recommends nvidia-cuda-toolkit libnccl-dev g++-13
RUN cmake -S . -B /build -G Ninja -DCMAKE_BUILD_TYPE=Release -DSLUICE_MARCH=x86-64-v3 -DSLUICE_CUDA=on \
      -DSLUICE_CUDA_ARCHITECTURES="80-real;86-real;89-real;90" -DCMAKE_CUDA_HOST_COMPILER=g++-13 \
      -DCMAKE_EXE_LINKER_FLAGS=-L/usr/lib/gcc/x86_64-linux-gnu/14 \
      -DSLUICE_BUILD_TESTS=OFF -DSLUICE_BUILD_BENCH=OFF -DCMAKE_INSTALL_PREFIX=/opt/sluice \
    && cmake --build /build && cmake --install /build --component programs

FROM debian:trixie-slim AS runtime
RUN apt-get update \
    && apt-get install -y --no-install-recommends libdnnl3.6 libfmt10 libpcre2-8-0 libutf8proc3 zlib1g openmpi-bin \
    && rm -rf /var/lib/apt/lists/*
ENV PATH=/opt/sluice/bin:/opt/sluice/libexec/sluice:$PATH OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
WORKDIR /work

FROM runtime AS cuda
RUN sed -i 's/^Components: main$/Components: main contrib non-free/' /etc/apt/sources.list.d/debian.sources \
    && apt-get update && apt-get install -y --no-install-recommends libcublaslt12 libnccl2 \
    && rm -rf /var/lib/apt/lists/*
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=cuda-build /opt/sluice /opt/sluice

FROM runtime AS cpu
COPY --from=cpu-build /opt/sluice /opt/sluice
