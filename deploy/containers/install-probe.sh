#!/bin/sh
# What the init container of a watched pod runs: install-probe.sh VOLUME CONTAINER...
#
# Copies the probe (the package "tidegauge" beside this script) into the pod's volume and makes a run directory there for
# each of the watched containers that are named. They may run as any user, and see the one read-only and the other as
# /run/tidegauge (docs/kubernetes_jobs.md). May run again in the same volume: the kubelet starts a pod anew after a reboot.
#
# Not -e: it ends with 0 whatever happens, for a pod whose init container fails does not start. Without the folders the
# job runs unwatched: Python passes over a part of PYTHONPATH that is not there.
set -u
umask 022
LC_ALL=C # a-z are 26 letters
export LC_ALL

volume=${1-}
[ $# -eq 0 ] || shift
source=${0%/*}/tidegauge

give_up() { # WHY
  echo "tidegauge: $1: the job runs unwatched" >&2
  [ -z "$volume" ] || rm -rf -- "$volume/probe.new"
  exit 0
}

if [ -z "$volume" ] || [ ! -d "$volume" ]; then
  give_up "usage: install-probe.sh VOLUME CONTAINER...; '$volume' is not a folder"
fi

make_folder() { # FOLDER
  [ -d "$1" ] || mkdir -- "$1" || give_up "the run directory cannot be created"
}

# Like /tmp: each user makes a folder there, and the sticky bit keeps others' hands off it. The volume itself has none, and
# a probe does not write where anybody could put something else in its folder's place. What is no name of a container
# (DNS-1123: Kubernetes has checked it) becomes no path here.
make_folder "$volume/run"
for container; do
  case $container in
  "" | -* | *[!a-z0-9-]*)
    echo "tidegauge: an argument is not a container name: no run directory for it" >&2
    continue
    ;;
  esac
  make_folder "$volume/run/$container"
  chmod 1777 "$volume/run/$container" || give_up "a run directory cannot be made writable for all users"
done

# Under another name until it is complete: a container never sees half a probe. What is left of an earlier start goes first.
rm -rf -- "$volume/probe.new" "$volume/probe"
mkdir -- "$volume/probe.new" || give_up "the probe's folder cannot be created"
cp -R -- "$source" "$volume/probe.new/tidegauge" || give_up "the probe cannot be copied"
chmod -R a+rX,go-w "$volume/probe.new" || give_up "the probe cannot be made readable"
mv -- "$volume/probe.new" "$volume/probe" || give_up "the probe cannot be moved into place"
