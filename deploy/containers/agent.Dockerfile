# The service: head, agents and controller are this one image (docs/kubernetes.md).
#
#   docker build -f deploy/containers/agent.Dockerfile -t REGISTRY/tidegauge:VERSION .
#
# The base is named by tag, which its publisher may move: pin it by digest in your own copy if you must be able to build
# the same image again. Nothing is fetched when it runs.
ARG PYTHON=3.12-slim-bookworm

FROM python:${PYTHON} AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY collector collector
COPY exporter exporter
COPY scheduler_hooks scheduler_hooks
# Ray refuses a node with another version of itself or of Python: the versions are fixed, and one image serves all.
RUN python -m venv /opt/tidegauge \
 && /opt/tidegauge/bin/python -m pip install --no-cache-dir -c constraints.txt '.[all]' \
 && /opt/tidegauge/bin/tidegauge config show >/dev/null

FROM python:${PYTHON}
COPY --from=build /opt/tidegauge /opt/tidegauge
# Names for the numbers that the chart runs it as: head and controller, agents. The opener alone is root, by the chart's
# word.
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /tmp --shell /usr/sbin/nologin tidegauge \
 && useradd --uid 60949 --user-group --no-create-home --home-dir /tmp --shell /usr/sbin/nologin tidegauge-agent
ENV PATH=/opt/tidegauge/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
ENTRYPOINT ["tidegauge"]
CMD ["--help"]
