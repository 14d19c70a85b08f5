# What the init container of a watched pod runs: it copies the probe into the pod's volume (install-probe.sh). The probe is
# standard library Python for the job's own interpreter, so there is none in here.
#
#   docker build -f deploy/containers/probe.Dockerfile -t REGISTRY/tidegauge-probe:VERSION .
#
# The base is named by tag, which its publisher may move: pin it by digest in your own copy if you must be able to build
# the same image again. Nothing is fetched when it runs.
ARG PROBE_BASE=busybox:1.36.1-musl

FROM ${PROBE_BASE}
COPY deploy/containers/install-probe.sh /probe/install-probe.sh
COPY collector/tidegauge/__init__.py collector/tidegauge/py.typed /probe/tidegauge/
COPY collector/tidegauge/core /probe/tidegauge/core
COPY collector/tidegauge/probe /probe/tidegauge/probe
COPY collector/tidegauge/integrations /probe/tidegauge/integrations
RUN chmod 0755 /probe/install-probe.sh
# Pod Security `restricted` wants a number that is not root's.
USER 65532:65532
ENTRYPOINT ["/probe/install-probe.sh"]
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Tidegauge probe" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
