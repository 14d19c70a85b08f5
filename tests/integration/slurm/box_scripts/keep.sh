#!/bin/bash
# Runs a Slurm box (tests/integration/slurm/box.py) from outside its namespaces until it ends; leaves nothing behind.
# Environment: BOX, the box's folder; BOX_CGROUP=1 when jobs get cgroups; the rest is for boot.sh, which see.
set -euo pipefail
umask 022   # everybody in the box reads what is made here

here=$(cd "$(dirname "$0")" && pwd)
controllers=(freezer devices memory cpuset)
# Shards share the machine's cgroups, and each has a pid namespace of its own: two boxes may have the same pid.
subtree=tidegauge-box-$(stat -Lc %i /proc/self/ns/pid)-$$
namespaces=(--mount --net --pid --uts --ipc)

# Where this process is in the hierarchy of a controller (cgroups(7): "9:freezer:/path").
own_cgroup() { sed -n "s/^[0-9]*:$1://p" /proc/self/cgroup; }

make_cgroups() {
  local controller parent
  for controller in "${controllers[@]}"; do
    parent=/sys/fs/cgroup/$controller$(own_cgroup "$controller")
    mkdir "$parent/$subtree"
    cgroups+=("$parent/$subtree")
    if [ "$controller" = cpuset ]; then   # a new one is empty, and a process cannot enter it
      cat "$parent/cpuset.cpus" >"$parent/$subtree/cpuset.cpus"
      cat "$parent/cpuset.mems" >"$parent/$subtree/cpuset.mems"
      echo 1 >"$parent/$subtree/cgroup.clone_children"
    fi
  done
}

# Slurm makes folders of its own in there. A cgroup can be removed a moment after its last process has ended.
remove_cgroups() {
  local tries cgroup
  for cgroup in "${cgroups[@]}"; do
    for ((tries = 0; tries < 1500; tries++)); do
      find "$cgroup" -depth -type d -exec rmdir {} + 2>/dev/null || true
      [ -d "$cgroup" ] || break
      sleep 0.02
    done
  done
}

cgroups=()
if [ "$BOX_CGROUP" = 1 ]; then
  trap remove_cgroups EXIT
  make_cgroups
  namespaces+=(--cgroup)
fi
# In a shell of its own, so that this one stays outside what it has to remove.
(
  for cgroup in ${cgroups[@]+"${cgroups[@]}"}; do echo "$BASHPID" >"$cgroup/cgroup.procs"; done
  exec unshare "${namespaces[@]}" --fork --kill-child "$here/first.sh"
)
