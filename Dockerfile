# Joex: the executor and the operator, one image. Both stages have the same base, because the venv refers to its Python.
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
# Without an entry in passwd the user has no name, which libraries ask for, and a container whose pod sets runAsUser gets
# the group root.
RUN echo 'joex:x:65532:65532:Joex:/tmp:/usr/sbin/nologin' >>/etc/passwd \
    && echo 'joex:x:65532:' >>/etc/group
# HOME is for pods whose user has no entry in passwd: the Kubernetes client reads it when it is imported.
ENV PATH=/opt/joex/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# A number, so that Kubernetes sees that it is not root.
USER 65532:65532
# For your own apps: FROM this image, COPY tasks.py . and then --app tasks:app
WORKDIR /app
ENTRYPOINT ["joex"]
