#!/bin/bash
# own_namespaces.sh COMMAND …: COMMAND with a network, processes, /run and /dev/shm of its own; standard input and output
# stay. Integration tests run side by side in such shards (tests/integration/shards.py): a port, a process, a ring or a
# named network of one shard is nobody else's. All processes of a shard end with COMMAND. Needs root.
set -euo pipefail
# The first process of a pid namespace adopts orphans, and its end is everybody's: that is this bash, which waits.
inside='
set -e
mount -t tmpfs -o mode=0755 tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mkdir -p /run/lock
ip link set lo up
exec 3<&0
# A job in the background starts with interrupts ignored.
env --default-signal=INT,QUIT "$@" <&3 3<&- &
child=$!
exec 3<&-
set +e
wait "$child"'
exec unshare --net --mount --propagation private --pid --fork --kill-child --mount-proc bash -c "$inside" shard "$@"
