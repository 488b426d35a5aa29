# Joex: the executor and the operator, one image. Both steps have the same base, for the venv refers to its Python.
ARG PYTHON_IMAGE=python:3.13-slim

FROM ${PYTHON_IMAGE} AS build
WORKDIR /source
COPY . .
ENV PIP_CACHE_DIR=/var/cache/pip
RUN --mount=type=cache,target=/var/cache/pip sh scripts/install_image.sh /opt/joex

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="Joex" \
      org.opencontainers.image.description="A fair job executor for PostgreSQL, and its Kubernetes operator" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/joex /opt/joex
# The Kubernetes client asks for a home when it is imported, and the user has no entry that would name one.
ENV PATH=/opt/joex/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# A number, so that Kubernetes sees that it is not root. It needs no entry in /etc/passwd.
USER 65532:65532
# For apps of yours: FROM this image, COPY tasks.py . and then --app tasks:app
WORKDIR /app
ENTRYPOINT ["joex"]
