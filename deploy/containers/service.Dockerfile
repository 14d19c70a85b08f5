# Two images with one Python and one Ray, since Ray refuses a node with another version of either (docs/kubernetes.md):
# `service` is head and controller, `agent` what runs on every GPU node.
#
#   docker build -f deploy/containers/service.Dockerfile --target service -t REGISTRY/tidegauge:VERSION .
#   docker build -f deploy/containers/service.Dockerfile --target agent -t REGISTRY/tidegauge-agent:VERSION .
#
# Own package index or authority: `--secret id=pip_conf,src=FILE`, a pip.conf, and `--secret id=ca_bundle,src=FILE`, PEM.
# No secret gets into a layer, the history or the environment. Own base image: `--build-arg BASE=IMAGE`, with `python`
# and its venv.
#
# The base is named by tag, which its publisher may move: pin it by digest in your own copy if you must be able to build
# the same image again. Nothing is fetched when it runs.
ARG PYTHON=3.12-slim-bookworm
ARG BASE=python:${PYTHON}

FROM ${BASE} AS build
WORKDIR /src
# strip makes both images some 40 MB smaller; where Debian's packages cannot be had they are built all the same.
RUN command -v strip >/dev/null || { apt-get -q update && apt-get -q install -y --no-install-recommends binutils; } \
 || echo "no binutils: libraries keep their symbols" >&2
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY deploy/containers/install.sh ./
COPY collector collector
COPY exporter exporter
COPY scheduler_hooks scheduler_hooks
# What an agent needs, first: the service's environment is made on top of it, and so has the same Ray. grpcio asks the
# kubelet whose a GPU is, cryptography makes certificates for engine_tls.
RUN --mount=type=secret,id=pip_conf --mount=type=secret,id=ca_bundle \
    python -m venv /opt/tidegauge && ./install.sh '.[node]' grpcio cryptography

FROM build AS build-agent
COPY deploy/containers/prune.py ./
RUN python prune.py /opt/tidegauge agent

FROM ${BASE} AS base
# Names for the numbers that the chart runs it as: head and controller, agents. The opener alone is root, by the chart's
# word. Nothing is setuid.
RUN for name in tidegauge:x:10001 tidegauge-agent:x:60949; do \
      echo "$name:" >>/etc/group && echo "$name:${name##*:}::/tmp:/usr/sbin/nologin" >>/etc/passwd || exit; \
    done \
 && find / -xdev -type f -perm /6000 -exec chmod a-s {} +
ENV PATH=/opt/tidegauge/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
ENTRYPOINT ["tidegauge"]
CMD ["--help"]

FROM base AS agent
COPY --from=build-agent /opt/tidegauge /opt/tidegauge
USER 60949:60949
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Tidegauge agent" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"

FROM build AS build-service
RUN --mount=type=secret,id=pip_conf --mount=type=secret,id=ca_bundle ./install.sh '.[all]'
COPY deploy/containers/prune.py ./
RUN python prune.py /opt/tidegauge service

# The last one: what is built without a target.
FROM base AS service
COPY --from=build-service /opt/tidegauge /opt/tidegauge
USER 10001:10001
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Tidegauge head and controller" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
