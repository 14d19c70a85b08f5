"""Pods of the chart as processes of this machine: commands, variables, volumes, users and rights as rendered, in
namespaces of a cluster's own. What a kubelet does for that and no more. Images may be given by their roots; where there
are none the checkout and its Python stand for them.
"""

from __future__ import annotations

import base64
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

from integration.chart.pods import Pod
from integration.chart.rendering import Object

HEAD_IP, NODE_IP, NODE_NAME = "10.77.0.1", "10.77.0.2", "node-b"
PROGRAMS = Path(sys.executable).parent
CHECKOUT = Path(__file__).resolve().parents[3]
IMAGE = {"/var/lib/image/checkout": CHECKOUT, "/var/lib/image/python": Path(sys.base_prefix)}
"""What stands for the pods' image: where the head keeps it, and where it is on this machine, which a pod's own ``/tmp``
may hide."""

HEAD = f"""
set -eu
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
for folder in etc run var/lib; do  # what a pod mounts is mounted here: the machine's own folders stay as they are
  mkdir -p "$1/$folder" "$1/$folder.work"
  mount -t overlay overlay -o "lowerdir=/$folder,upperdir=$1/$folder,workdir=$1/$folder.work" "/$folder"
done
mkdir -p /var/lib/image/checkout /var/lib/image/python
mount --bind "$4" /var/lib/image/checkout
mount --bind "$3" /var/lib/image/python
case "$3" in /root/*)  # a Python there is shut away from other users
  mkdir "$1/python"
  mount --bind "$3" "$1/python"
  mount -t tmpfs -o mode=0755 tmpfs /root
  mkdir -p "$3"
  mount --bind "$1/python" "$3" ;;
esac
printf '127.0.0.1 localhost\\n{HEAD_IP} %s\\n' "$2" >/etc/hosts
ip link set lo up
ip link add to-node type veth peer name to-head
ip address add {HEAD_IP}/24 dev to-node
ip link set to-node up
ip route add default dev to-node  # gRPC looks for a way out before it listens
echo ready
read -r _
"""
NODE = f"""
set -eu
echo ready
read -r _
ip link set lo up
ip address add {NODE_IP}/24 dev to-head
ip link set to-head up
ip route add default dev to-head
echo ready
read -r _
"""


class PodsHere:
    """A network with two places for pods, that of the head and that of a node. Everything in it ends with it."""

    def __init__(
        self, folder: Path, head_name: str, objects: Sequence[Object], roots: Mapping[str, Path] = MappingProxyType({})
    ) -> None:
        """``head_name``: what DNS would know the head's Service by. ``folder``: an empty one. ``roots``: of images."""
        self._roots = roots
        self._objects = {(thing["kind"], thing["metadata"]["name"]): thing for thing in objects}
        self._started: list[subprocess.Popen[Any]] = []
        new = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._head = _keeper([*new, "sh", "-c", HEAD, "sh", str(folder), head_name, sys.base_prefix, str(CHECKOUT)])
        self._node = _keeper(["unshare", "--net", "sh", "-c", NODE])
        children = Path(f"/proc/{self._head.pid}/task/{self._head.pid}/children").read_text()
        inside = f"--target={children.split()[0]}"
        node_net = f"--net=/proc/{self._node.pid}/ns/net"
        self._enter = {
            HEAD_IP: ["nsenter", inside, "--mount", "--pid", "--net"],
            NODE_IP: ["nsenter", inside, "--mount", "--pid", node_net],
        }
        move = ["nsenter", inside, "--net", "ip", "link", "set", "to-head", "netns", str(self._node.pid)]
        subprocess.run(move, check=True, timeout=60)
        _go_on(self._node)

    def start(self, pod: Pod, ip: str) -> subprocess.Popen[str]:
        """The pod's init containers, then all its others at once; what they say is the process's stdout, and the first
        of them is the process."""
        process = subprocess.Popen(
            [*self._enter[ip], "unshare", "--mount", "--propagation", "private", "sh", "-euc", self._script(pod, ip)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self._started.append(process)
        return process

    def end(self, pod: subprocess.Popen[str], *, within_s: float) -> None:
        """Ask a pod's first container to end, as a kubelet does, and wait for that."""
        inside = Path(f"/proc/{pod.pid}/task/{pod.pid}/children").read_text().split()[0]  # nsenter waits for it
        os.kill(int(inside), signal.SIGTERM)
        pod.wait(within_s)

    def start_job(self, uid: int, ip: str, *command: str) -> None:
        """A container of another user's, beside the pods there."""
        user = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
        script = f"mount -t tmpfs -o mode=1777 tmpfs /dev/shm; exec {shlex.join([*user, *command])}"
        self._started.append(
            subprocess.Popen(
                [*self._enter[ip], "unshare", "--mount", "--propagation", "private", "sh", "-euc", script],
                stdin=subprocess.PIPE, env={"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT / "collector")},
            )
        )  # fmt: skip

    def run(self, *command: str, ip: str = HEAD_IP) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self._enter[ip], *command], capture_output=True, text=True, timeout=100, check=False)

    def close(self) -> None:
        for process in (self._node, self._head, *self._started):
            process.kill()
            if process.stdout is None or process.stdout.closed:  # a test has read all of it
                process.wait()
                if process.stdin is not None:
                    process.stdin.close()
            else:
                process.communicate()

    def __enter__(self) -> PodsHere:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _script(self, pod: Pod, ip: str) -> str:
        """Everything that is writable is a volume: the root is read-only, as the containers' is."""
        group = pod.spec.get("securityContext", {}).get("fsGroup")
        volumes = {volume["name"]: volume for volume in pod.spec.get("volumes", ())}
        lines = ["mkdir -p /var/lib/volumes", "export v=$(mktemp -d /var/lib/volumes/pod-XXXX)", "chmod 755 $v"]
        for name in {mount["name"]: None for c in pod.containers for mount in c.get("volumeMounts", ())}:
            lines += self._volume(volumes.get(name, {"name": name, "emptyDir": {}}), group)
        init, (first, *others) = pod.spec.get("initContainers", ()), pod.spec["containers"]
        lines += [self._in_container(pod, one, ip) for one in init]
        lines += [f"{self._in_container(pod, one, ip)} >/dev/null &" for one in others]
        return "\n".join([*lines, f"exec {self._in_container(pod, first, ip)}"])

    def _in_container(self, pod: Pod, container: Mapping[str, Any], ip: str) -> str:
        script = shlex.quote(self._mounted(pod, container, ip))
        return f"unshare --mount --propagation private sh -euc {script}"

    def _mounted(self, pod: Pod, container: Mapping[str, Any], ip: str) -> str:
        image = self._roots.get(container["image"])
        root, lines = "" if image is None else str(image), []
        if image is not None:
            lines += [f"mount --bind {root} {root}", f"touch {root}/etc/hosts"]
            lines += [f"mount --rbind {path} {root}{path}" for path in ("/proc", "/dev", "/sys", "/etc/hosts")]
        for mount in container.get("volumeMounts", ()):
            path = root + mount["mountPath"]
            lines += [f"mkdir -p {path}", f"mount --bind $v/{mount['name']} {path}"]
            hidden = {kept: place for kept, place in IMAGE.items() if not root and Path(path) in place.parents}
            for kept, place in hidden.items():
                lines += [f"mkdir -p {place}", f"mount --bind {kept} {place}"]
            if mount.get("readOnly") and not hidden:
                lines.append(f"mount -o remount,bind,ro {path}")
        if pod.spec.get("automountServiceAccountToken", True) and pod.namespace:
            # Without token: there is no API server. In an image /var/run is a link to /run, not to the root's.
            mounted = f"{root}/run/secrets/kubernetes.io/serviceaccount"
            lines += [
                f"mkdir -p {mounted}",
                f"mount -t tmpfs tmpfs {mounted}",
                f"echo {pod.namespace} >{mounted}/namespace",
            ]
        run = f"{f'chroot {root} ' if root else ''}{self._command(pod, container, ip)}"
        return "\n".join([*lines, f"mount -o remount,bind,ro {root or '/'}", f"exec {run}"])

    def _volume(self, volume: Mapping[str, Any], group: int | None) -> Iterator[str]:
        place = f"$v/{volume['name']}"
        yield f"mkdir {place}; mount -t tmpfs -o mode=0777 tmpfs {place}"
        files, mode = self._files(volume)
        if files:  # which are links, so that the kubelet can replace all of them at once
            yield f"mkdir {place}/..1; ln -s ..1 {place}/..data"
        if group is not None:
            mode |= 0o440  # so that the group can read; what would be writable would be 0660
        for name, content in files.items():
            encoded = base64.b64encode(content).decode()
            yield f"echo {encoded} | base64 -d >{place}/..1/{name}; chmod {mode:o} {place}/..1/{name}"
            yield f"ln -s ..data/{name} {place}/{name}"
        if group is not None:
            yield f"chown -hR :{group} {place}; chmod g+rwxs {place}"

    def _files(self, volume: Mapping[str, Any]) -> tuple[dict[str, bytes], int]:
        if "configMap" in volume:
            data = self._objects["ConfigMap", volume["configMap"]["name"]]["data"]
            return {name: text.encode() for name, text in data.items()}, 0o644
        if "secret" in volume:
            wanted = [item["key"] for item in volume["secret"].get("items", ())]
            files = self._secret(volume["secret"]["secretName"])
            return {name: files[name] for name in wanted or files}, volume["secret"]["defaultMode"]
        if "projected" in volume:
            of_secrets = [source["secret"]["name"] for source in volume["projected"]["sources"] if "secret" in source]
            sources = map(self._secret, of_secrets)
            return {name: data for files in sources for name, data in files.items()}, volume["projected"]["defaultMode"]
        return {}, 0

    def _secret(self, name: str) -> dict[str, bytes]:
        return {key: base64.b64decode(text) for key, text in self._objects["Secret", name]["data"].items()}

    def _value(self, variable: Mapping[str, Any], fields: Mapping[str, str]) -> str:
        source = variable.get("valueFrom", {})
        if "secretKeyRef" in source:
            return self._secret(source["secretKeyRef"]["name"])[source["secretKeyRef"]["key"]].decode()
        return fields[source["fieldRef"]["fieldPath"]] if source else variable.get("value", "")

    def _command(self, pod: Pod, container: Mapping[str, Any], ip: str) -> str:
        context = {**pod.spec.get("securityContext", {}), **container["securityContext"]}
        fields = {"status.podIP": ip, "spec.nodeName": NODE_NAME}
        programs = "/opt/tidegauge/bin" if container["image"] in self._roots else PROGRAMS
        environ = {"PATH": f"{programs}:/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
        for variable in container.get("env", ()):
            environ[variable["name"]] = self._value(variable, fields)
        words = [*container.get("command", ["tidegauge"]), *container.get("args", ())]
        words = [word.replace("$(POD_IP)", environ.get("POD_IP", "")) for word in words]
        kept = [f"+{name.lower()}" for name in context["capabilities"].get("add", ())]
        user, group = context["runAsUser"], context.get("runAsGroup", context["runAsUser"])
        return shlex.join(
            [
                "env", "-i", *(f"{name}={value}" for name, value in environ.items()), "setsid", "--wait", "setpriv",
                f"--reuid={user}", f"--regid={group}", "--clear-groups", f"--bounding-set={','.join(['-all', *kept])}",
                "--inh-caps=-all", "--no-new-privs", *words,
            ]
        )  # fmt: skip


def _keeper(command: Sequence[str]) -> subprocess.Popen[str]:
    """A shell that keeps namespaces until its end, once it says that it is ready."""
    keeper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    _await_ready(keeper)
    return keeper


def _go_on(keeper: subprocess.Popen[str]) -> None:
    assert keeper.stdin is not None
    keeper.stdin.write("go on\n")
    keeper.stdin.flush()
    _await_ready(keeper)


def _await_ready(keeper: subprocess.Popen[str]) -> None:
    assert keeper.stdout is not None
    assert keeper.stdout.readline() == "ready\n", f"no namespaces: the shell ended with {keeper.wait(10)}"
