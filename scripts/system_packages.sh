#!/usr/bin/env bash
# system_packages.sh [COMMAND …]: Debian packages that the tests need, each beside the command (or the file) that shows it
# is there; those of the COMMANDs alone where some are named. Asks nothing. As root with apt it installs what is missing;
# else it says what is missing and how to get it, and goes on: the tests that need it then say that they were skipped
# (in CI they fail instead).
set -euo pipefail
needed=(
  "gcc gcc libc6-dev"          # the fake-GPU rig is C
  "readelf binutils"           # ... and reads which symbols torch wants
  "prometheus prometheus"      # a real Prometheus scrapes the agent
  "promtool prometheus"
  "prometheus-alertmanager prometheus-alertmanager"   # a real Alertmanager groups, silences and notifies
  "chromium chromium"          # the report and the previews are looked at in a real browser
  "postgres postgresql"        # a real PostgreSQL holds incidents and audit
  "slurmctld slurmctld slurmd slurm-client munge"   # a real Slurm: one controller and three nodes
  "/usr/include/slurm/spank.h libslurm-dev"         # ... whose plugin is C
  "slurmdbd slurmdbd slurm-wlm-mysql-plugin"        # ... and whose operators are in an accounting database
  "mariadbd mariadb-server-core mariadb-client-core"   # core: the programs, and no service
  "ip iproute2"                # ... each host with a network of its own
  "unshare util-linux"         # ... and the chaos suite's with all else of its own
  "systemd-analyze systemd"    # how hardened the units are; nothing of it is started
  "mmdebstrap mmdebstrap"      # other releases of Slurm, and Python 3.14, in folders
  "patchelf patchelf"
  "docker-registry docker-registry"   # images and chart are pushed to a real registry
  "buildah buildah"            # ... and built
  "skopeo skopeo"
)
# Debian keeps PostgreSQL's server off the path, and daemons off a user's.
for folder in /usr/sbin /usr/lib/postgresql/*/bin; do PATH=$PATH:$folder; done
missing=()
for line in "${needed[@]}"; do
  read -r command packages <<<"$line"
  [ $# -eq 0 ] || [[ " $* " == *" $command "* ]] || continue
  [[ $command == /* && -e $command ]] || command -v "$command" >/dev/null || missing+=($packages)
done
[ ${#missing[@]} -eq 0 ] && exit 0
mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "installing: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  # No package may start a service here: Debian's tools ask this file (deb-systemd-invoke asks nothing else) before they
  # start one. It is gone again afterwards. Left alone where somebody set it.
  policy=/usr/sbin/policy-rc.d
  if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 0755 "$policy"
  fi
  # ... and postgresql must not make a cluster of its own either: the tests make theirs.
  cluster_conf=/etc/postgresql-common/createcluster.conf
  if [[ " ${missing[*]} " == *" postgresql "* && ! -e $cluster_conf ]]; then
    export UCF_FORCE_CONFFOLD=1   # the package must keep the file, and must not ask
    mkdir -p "${cluster_conf%/*}"
    echo "create_main_cluster = false" >"$cluster_conf"
  fi
  log=$(mktemp)
  if { apt-get update -q && apt-get install -y -q --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    exit 0
  fi
  tail -n 5 "$log" >&2
fi
echo "missing system packages: ${missing[*]}" >&2
echo "install them with: sudo apt-get install ${missing[*]}" >&2
echo "(tests that need them are skipped until then)" >&2
