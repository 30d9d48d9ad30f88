# The image of `vouch-build`, with PyTorch.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
FROM ${PYTHON_IMAGE} AS base
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_PROGRESS_BAR=off PIP_ROOT_USER_ACTION=ignore

# The requirements file changes only with the dependencies, so that Docker can cache their layer.
FROM base AS requirements
WORKDIR /src
RUN --mount=type=cache,target=/root/.cache/pip pip install uv==0.13.9
COPY docker/requirements.py pyproject.toml uv.lock ./
RUN python requirements.py build postgres milvus > requirements.txt \
 && python requirements.py build postgres milvus --without-torch > without-torch.txt

FROM base AS wheel
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY model_store model_store
COPY index_builder index_builder
COPY service service
COPY vouch_search vouch_search
COPY .ci/wheel.py .ci/wheel.py
RUN --mount=type=cache,target=/root/.cache/pip \
    pip wheel --no-deps --wheel-dir /wheels .

FROM base
# The service's image has the same user, because both images use the volume of bundles.
RUN useradd --uid 10001 --user-group --no-log-init --create-home vouch \
 && install -d -o vouch -g vouch /bundles /home/vouch/.cache
# The builder uses the CPU. PyTorch's own index has builds without CUDA, which are several GB smaller
# than the builds on PyPI. If this index cannot be reached, PyPI is used.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=bind,from=requirements,source=/src,target=/src \
    if pip install --retries 1 --no-deps --index-url "${TORCH_INDEX}" \
         $(grep -oE '^torch(vision)?==[^ ]+' /src/requirements.txt); \
    then pip install --no-deps -r /src/without-torch.txt; \
    else echo "No torch from ${TORCH_INDEX}; taking PyPI's."; \
         pip install --no-deps -r /src/requirements.txt; \
    fi
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip install --no-deps --no-cache-dir /wheels/*.whl \
 && rm /usr/local/bin/vouch-serve

# The photographs of the demo, and their configuration.
COPY docs/demo /demo

# Without this variable, ONNX Runtime sends usage data to Microsoft.
ENV ORT_DISABLE_TELEMETRY=1 PYTHONUNBUFFERED=1
USER 10001:10001
# Runs are on the volume of the bundles, because a finished bundle is published by renaming it.
WORKDIR /bundles
ENTRYPOINT ["vouch-build"]
