# The image of the service, without PyTorch and without a compiler. In this image, `vouch-build` has
# only the commands that need no PyTorch, such as pull, backup, restore, compact, prune and doctor.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
FROM ${PYTHON_IMAGE} AS base
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_PROGRESS_BAR=off PIP_ROOT_USER_ACTION=ignore

# The requirements file changes only with the dependencies, so that Docker can cache their layer.
FROM base AS requirements
# `milvus` is 110 MB: pymilvus imports pandas and grpc. `remote` pulls bundles from buckets. `gpu`
# would add NVIDIA's libraries.
ARG EXTRAS="serve operate telemetry postgres milvus text remote"
WORKDIR /src
RUN --mount=type=cache,target=/root/.cache/pip pip install uv==0.13.9
COPY docker/requirements.py pyproject.toml uv.lock ./
RUN python requirements.py ${EXTRAS} > requirements.txt

FROM base AS wheel
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY model_store model_store
COPY service service
COPY index_builder index_builder
COPY vouch_search vouch_search
COPY .ci/wheel.py .ci/wheel.py
RUN --mount=type=cache,target=/root/.cache/pip \
    pip wheel --no-deps --wheel-dir /wheels .

FROM base
# The builder's image has the same user, because both images use the volume of bundles.
RUN useradd --uid 10001 --user-group --no-log-init --no-create-home --home-dir /tmp vouch \
 && install -d -o vouch -g vouch /backups /bundles /keys
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=bind,from=requirements,source=/src/requirements.txt,target=/requirements.txt \
    pip install --no-deps -r /requirements.txt
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip install --no-deps --no-cache-dir /wheels/*.whl

# Without this variable, ONNX Runtime sends usage data to Microsoft.
ENV ORT_DISABLE_TELEMETRY=1 PYTHONUNBUFFERED=1
# VOUCH_DRAIN_S: load balancers need a few seconds to notice that a replica stops.
ENV VOUCH_HOST=0.0.0.0 VOUCH_PORT=8080 VOUCH_BUNDLE=/bundles VOUCH_DRAIN_S=5
USER 10001:10001
WORKDIR /tmp
EXPOSE 8080
STOPSIGNAL SIGTERM
# The check reads only variables. Therefore set variables, and give the service no options.
HEALTHCHECK --interval=10s --timeout=5s --retries=3 --start-period=180s --start-interval=1s \
    CMD ["vouch-serve", "--check-health"]
ENTRYPOINT ["vouch-serve"]
