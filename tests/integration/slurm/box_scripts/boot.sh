#!/bin/bash
# Makes a Slurm box out of the new namespaces that it runs in: files, devices, network and daemons. Ends when all nodes
# are idle.
#
# Environment, all from box.py:
#   BOX             the folder: etc/ (files for /etc), log/, home/, work/, root/ (empty: a place to mount on)
#   BOX_TREE        whose programs: / for this machine's, or a Debian tree
#   BOX_VISIBLE     folders of the machine that are there inside under the same name, one a line
#   BOX_HOSTS       "name address" of each node, one a line
#   BOX_GPUS        how many a node has
#   BOX_ACCOUNTING  1: with slurmdbd and MariaDB
#   BOX_CGROUP      1: an own tree of cgroups
set -euo pipefail
exec >"$BOX/log/boot.log" 2>&1
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
here=$(cd "$(dirname "$0")" && pwd)
mapfile -t visible <<<"$BOX_VISIBLE"

mark() { echo "$(date +%T.%3N) $*"; }

# All of the machine (or of the tree) read-only below, what is written in memory above.
make_root() {
  local root=$BOX/root/all folder device
  mount --make-rprivate /
  mount -t tmpfs -o mode=0755 tmpfs "$BOX/root"
  mkdir "$BOX"/root/{above,work,all}
  mount -t overlay -o "lowerdir=$BOX_TREE,upperdir=$BOX/root/above,workdir=$BOX/root/work" overlay "$root"
  mkdir -p "$root"/{dev,proc,sys,run,tmp,root}
  mount -t tmpfs -o mode=0755 tmpfs "$root/run"
  mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
  mount -t tmpfs -o mode=0755 tmpfs "$root/root"   # the Python of a checkout often lives below root's home
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys"

  mount -t tmpfs -o mode=0755 tmpfs "$root/dev"
  for device in null zero full random urandom tty; do
    mknod -m 0666 "$root/dev/$device" c $(stat -c '0x%t 0x%T' "/dev/$device")
  done
  for ((device = 0; device < BOX_GPUS; device++)); do mknod -m 0666 "$root/dev/nvidia$device" c 195 "$device"; done
  mkdir "$root"/dev/{pts,shm}
  mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$root/dev/pts"
  mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
  ln -s pts/ptmx "$root/dev/ptmx"
  ln -s /proc/self/fd "$root/dev/fd"
  for device in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${device%:*}" "$root/dev/${device#*:}"; done

  # First all folders in the box's own layer, where opening them to everybody changes nothing outside; then the mounts.
  for folder in "${visible[@]}"; do
    mkdir -p "$root$folder"
    open_way "$root" "${folder%/*}"
  done
  for folder in "${visible[@]}"; do mount --bind "$folder" "$root$folder"; done

  mkdir -p "$root/mnt/machine"
  cd "$root"
  pivot_root . mnt/machine
  cd /
  umount --lazy /mnt/machine
  rmdir /mnt/machine
}

# Every user may pass through FOLDER and the folders above it.
open_way() {
  local root=$1 folder=$2
  while [ -n "$folder" ]; do
    chmod a+x "$root$folder"
    folder=${folder%/*}
  done
}

own_cgroups() {
  local controller
  mount -t tmpfs -o mode=0755 tmpfs /sys/fs/cgroup
  for controller in freezer devices memory cpuset; do
    mkdir "/sys/fs/cgroup/$controller"
    mount -t cgroup -o "$controller" cgroup "/sys/fs/cgroup/$controller"
  done
}

write_files() {
  local file
  for file in passwd group hosts resolv.conf; do   # each may be a link on the machine
    rm -f "/etc/$file"
    cp "$BOX/etc/$file" "/etc/$file"
  done
  mkdir -p /etc/slurm
  mount --bind "$BOX/etc/slurm" /etc/slurm
  install -d /run/lock /run/netns
  install -d -o slurm -g slurm /run/slurm /var/spool/slurm /var/spool/slurm/controller "$BOX/log"
  install -d -m 1777 /run/tidegauge
}

# With lo alone getaddrinfo() finds no address (AI_ADDRCONFIG) and Slurm's daemons try for ever.
make_network() {
  ip link set lo up
  ip link add bridge0 type bridge
  ip address add 10.77.0.1/24 dev bridge0
  ip link set bridge0 up
}

start_munge() {
  install -d -m 0755 -o munge -g munge /run/munge
  install -d -m 0700 -o munge -g munge /etc/munge /var/lib/munge /var/log/munge
  rm -f /etc/munge/munge.key
  (umask 0377 && head -c 128 /dev/urandom >/etc/munge/munge.key)   # each box its own
  chown munge:munge /etc/munge/munge.key
  setpriv --reuid=munge --regid=munge --clear-groups munged
}

start_node() {
  local name=$1 address=$2
  ip netns add "$name"
  ip link add "to-$name" type veth peer name eth0 netns "$name"
  ip link set "to-$name" master bridge0 up
  ip -n "$name" link set lo up
  ip -n "$name" address add "$address/24" dev eth0
  ip -n "$name" link set eth0 up
  ip -n "$name" route add default via 10.77.0.1
  nsenter --net="/run/netns/$name" unshare --mount --uts --ipc --pid --fork --kill-child "$here/node.sh" "$name" &
  node_pids+=("$!")
}

# Every node idle.
wait_for_nodes() {
  local pid
  while [ "$SECONDS" -lt 150 ]; do
    [ "$(sinfo -h -N -o %T | grep -c '^idle$')" != "${#node_pids[@]}" ] || return 0
    for pid in "${node_pids[@]}"; do kill -0 "$pid" || return 1; done   # else one ended, and said why above
    sleep 0.02
  done
  echo "not every node became idle:"
  sinfo -N -o '%N %T %E'
  return 1
}

mark "making the box"
make_root
[ "$BOX_CGROUP" != 1 ] || own_cgroups
hostname ctl
write_files
make_network
mark "munge"
start_munge
if [ "$BOX_ACCOUNTING" = 1 ]; then . "$here/accounting.sh"; fi
mark "controller"
slurmctld
mark "nodes"
node_pids=()
while read -r name address; do start_node "$name" "$address"; done <<<"$BOX_HOSTS"
wait_for_nodes
mark "every node is idle"
