#!/bin/bash
# The first process of a Slurm box: has it made (boot.sh), says "ready", and ends when its standard input ends, that is
# with the process that holds the other end of the pipe, however that one ended. The kernel then ends all others of the
# box, for this one is the first of their process namespace. It also takes in those that lost their parent: Bash does
# while it waits.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
exec 9<&0 </dev/null
trap 'exit 1' TERM
# "ready" once boot.sh has ended: its children have their place below this process by then.
{ "$here/boot.sh" 9<&- && echo ready; } || kill -TERM "$$" &
while read -r _ <&9; do :; done
