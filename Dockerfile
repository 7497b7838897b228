# Sluice in a container, from Debian's packages alone.
#
#   docker build --target cpu -t sluice .
#   docker build --target cuda -t sluice-cuda .        needs the NVIDIA Container Toolkit to run on a GPU
#   docker run --rm -v "$PWD:/work" sluice train_gpt2 --data text.txt --output runs/first
#
# The programs are compiled for x86-64-v3 (AVX2), not for the machine that builds the image. Packages' names are in
# scripts/install_deps. `scripts/test images` runs these steps without Docker.

FROM debian:trixie-slim AS base
SHELL ["/bin/bash", "-c"]
WORKDIR /src
COPY scripts/install_deps scripts/
RUN scripts/install_deps build && rm -rf /var/lib/apt/lists/*
COPY . .

FROM base AS cpu-build
RUN cmake -S . -B /build -G Ninja -DCMAKE_BUILD_TYPE=Release -DSLUICE_MARCH=x86-64-v3 \
      -DSLUICE_BUILD_TESTS=OFF -DSLUICE_BUILD_BENCH=OFF -DCMAKE_INSTALL_PREFIX=/opt/sluice \
    && cmake --build /build && cmake --install /build --component programs

# Debian has the CUDA toolkit in non-free and NCCL in contrib. nvcc takes an older g++, whose libstdc++ CMake would link
# before that of g++, with which Debian's libraries are built. At run time the driver is the host's.
FROM base AS cuda-build
RUN sed -i 's/^Components: main$/Components: main contrib non-free/' /etc/apt/sources.list.d/debian.sources \
    && scripts/install_deps cuda && rm -rf /var/lib/apt/lists/*
RUN cmake -S . -B /build -G Ninja -DCMAKE_BUILD_TYPE=Release -DSLUICE_MARCH=x86-64-v3 -DSLUICE_CUDA=on \
      -DSLUICE_CUDA_ARCHITECTURES="80-real;86-real;89-real;90" \
      -DCMAKE_CUDA_HOST_COMPILER="$(scripts/install_deps --list cuda | grep '^g++-')" \
      -DCMAKE_EXE_LINKER_FLAGS=-L"$(dirname "$(g++ -print-libgcc-file-name)")" \
      -DSLUICE_BUILD_TESTS=OFF -DSLUICE_BUILD_BENCH=OFF -DCMAKE_INSTALL_PREFIX=/opt/sluice \
    && cmake --build /build && cmake --install /build --component programs

# sshd is for Kubernetes' MPI operator (docs/guide/on-a-cluster.md) and not started here. Its host keys are made when it
# starts, since everybody has those of an image; until then ssh tries again.
FROM debian:trixie-slim AS runtime
COPY scripts/install_deps /usr/local/sbin/
RUN install_deps runtime && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_* \
    && printf '%s\n' 'StrictHostKeyChecking no' 'UserKnownHostsFile /dev/null' 'LogLevel ERROR' \
      'ConnectionAttempts 30' > /etc/ssh/ssh_config.d/ranks.conf
ENV PATH=/opt/sluice/bin:/opt/sluice/libexec/sluice:$PATH OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
WORKDIR /work

FROM runtime AS cuda
RUN sed -i 's/^Components: main$/Components: main contrib non-free/' /etc/apt/sources.list.d/debian.sources \
    && install_deps cuda-runtime && rm -rf /var/lib/apt/lists/*
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=cuda-build /opt/sluice /opt/sluice

FROM runtime AS cpu
COPY --from=cpu-build /opt/sluice /opt/sluice
