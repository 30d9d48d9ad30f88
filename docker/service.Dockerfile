# The online half: answers queries. No torch, nothing that compiles. `vouch-build` has the commands of
# an operator here: backup, restore, compact, prune, upgrade, doctor.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
FROM ${PYTHON_IMAGE} AS base
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_PROGRESS_BAR=off PIP_ROOT_USER_ACTION=ignore

# What has to be installed, as a file that changes only when that does.
FROM base AS requirements
# `milvus` is 110 MB: pymilvus imports pandas and grpc. `remote` pulls bundles from buckets. `gpu`
# would add NVIDIA's libraries.
ARG EXTRAS="serve operate telemetry milvus text remote"
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
# The builder's image has the same user: the volume of bundles is shared.
RUN useradd --uid 10001 --user-group --no-log-init --no-create-home --home-dir /tmp vouch \
 && install -d -o vouch -g vouch /backups /bundles /keys
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=bind,from=requirements,source=/src/requirements.txt,target=/requirements.txt \
    pip install --no-deps -r /requirements.txt
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip install --no-deps --no-cache-dir /wheels/*.whl

# ONNX Runtime sends usage data to its maker unless told not to.
ENV ORT_DISABLE_TELEMETRY=1 PYTHONUNBUFFERED=1
# Load balancers need a few seconds to see that a replica ends.
ENV VOUCH_HOST=0.0.0.0 VOUCH_PORT=8080 VOUCH_BUNDLE=/bundles VOUCH_DRAIN_S=5
USER 10001:10001
WORKDIR /tmp
EXPOSE 8080
STOPSIGNAL SIGTERM
# It reads the variables that the service reads: set these, and give the service no options.
HEALTHCHECK --interval=10s --timeout=5s --retries=3 --start-period=180s --start-interval=1s \
    CMD ["vouch-serve", "--check-health"]
ENTRYPOINT ["vouch-serve"]
