#!/bin/sh
# install.sh REQUIREMENT...: into the image's environment, as constraints.txt pins it. The index and its authority are
# the build's secrets where it has some, and stay in no layer.
set -eu
[ ! -e /run/secrets/pip_conf ] || export PIP_CONFIG_FILE=/run/secrets/pip_conf
[ ! -e /run/secrets/ca_bundle ] || export PIP_CERT=/run/secrets/ca_bundle
exec /opt/tidegauge/bin/python -m pip install --no-cache-dir --no-compile -c constraints.txt "$@"
