"""The stand-in node: pods that are processes of this machine, and what the API server hears of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.kubernetes.stand_in_pods import Bench, condition, exit_codes, open_bench, shell
from integration.kubernetes.target import KubeTarget
from kube_standins.api import MERGE, Object
from kube_standins.images import Image

pytestmark = pytest.mark.timeout(600)

EMPTY = {"name": "shared", "emptyDir": {}}


@pytest.fixture
def bench(kube: KubeTarget, namespace: str, tmp_path: Path) -> Iterator[Bench]:
    with open_bench(kube.kubeconfig, namespace, tmp_path / "node") as bench:
        yield bench


def at(path: str, **more: Any) -> dict[str, Any]:
    return {"volumeMounts": [{"name": "shared", "mountPath": path, **more}]}


def why_not_created(pod: Object) -> str:
    """Of its first container. A call for a volume that was not answered is said in the same place, for a moment."""
    status, *_ = pod["status"].get("containerStatuses") or [{}]
    waiting = status.get("state", {}).get("waiting", {})
    return str(waiting.get("message", "")) if waiting.get("reason") == "CreateContainerConfigError" else ""


# --- running


def test_a_pod_runs_to_its_end_and_its_exit_codes_are_told(bench: Bench) -> None:
    bench.pod("fine", shell("echo done"))
    bench.pod("mixed", shell("exit 0", "zero"), shell("exit 3", "three"), shell("kill -9 $$; exit 7", "itself"))
    fine = bench.in_phase("fine", "Succeeded", "Failed")
    assert (fine["status"]["phase"], exit_codes(fine)) == ("Succeeded", {"main": 0})
    assert bench.node.log_of(fine["metadata"]["uid"], "main") == "done\n"
    mixed = bench.in_phase("mixed", "Succeeded", "Failed")
    # The first process of a pid namespace is not killed from inside (pid_namespaces(7)).
    assert (mixed["status"]["phase"], exit_codes(mixed)) == ("Failed", {"zero": 0, "three": 3, "itself": 7})


def test_a_running_pod_is_ready_and_named_in_its_cgroup(bench: Bench) -> None:
    bench.pod("runs", shell("exec sleep 600"))
    pod = bench.pod_when("runs", lambda pod: condition(pod, "Ready"), "is ready")
    [status] = pod["status"]["containerStatuses"]
    scheme, container_id = status["containerID"].split("://")
    assert (scheme, len(bytes.fromhex(container_id))) == ("containerd", 32)
    pid = bench.node.pid_of(pod["metadata"]["uid"], "main")
    assert f"/pod{pod['metadata']['uid']}/{container_id}\n" in Path(f"/proc/{pid}/cgroup").read_text()
    assert Path(f"/proc/{pid}/status").read_text().split("NSpid:")[1].split("\n")[0].split() == [str(pid), "1"]


def test_a_failing_container_begins_again_until_it_succeeds(bench: Bench) -> None:
    script = "echo x >>/shared/starts; exit $((3 - $(wc -l </shared/starts)))"
    bench.pod("stubborn", shell(script, **at("/shared")), restartPolicy="OnFailure", volumes=[EMPTY])
    pod = bench.in_phase("stubborn", "Succeeded")
    [status] = pod["status"]["containerStatuses"]
    assert (status["restartCount"], status["lastState"]["terminated"]["exitCode"]) == (2, 1)


def test_a_command_that_is_not_there_is_a_start_error(bench: Bench) -> None:
    bench.pod("nothing", {"name": "main", "image": "stand-in", "command": ["no-such-command"]})
    pod = bench.in_phase("nothing", "Failed")
    ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("StartError", 128)
    assert "No such file" in ended["message"]


def test_kube_node_reports_an_unsupported_pod_in_its_status(bench: Bench) -> None:
    bench.pod("image-only", {"name": "main", "image": "some/image"})
    bench.pod_when("image-only", lambda pod: "'some/image'" in why_not_created(pod), "says what is missing")


def test_an_image_can_be_a_folder_and_a_command(kube: KubeTarget, namespace: str, tmp_path: Path) -> None:
    (tmp_path / "image").mkdir()
    (tmp_path / "image/say").write_text("echo from the image: $1\n")
    image = Image(command=("sh", "/inside/say"), folder=str(tmp_path / "image"), at="/inside")
    options = {"image_map": {"registry.invalid/speaker:1": image}}
    with open_bench(kube.kubeconfig, namespace, tmp_path / "node", **options) as bench:
        bench.pod("speaks", {"name": "main", "image": "registry.invalid/speaker:1", "args": ["hello"]})
        pod = bench.in_phase("speaks", "Succeeded")
        assert bench.node.log_of(pod["metadata"]["uid"], "main") == "from the image: hello\n"


# --- what containers see


def test_an_init_container_and_a_container_share_a_volume_by_sub_path(bench: Bench) -> None:
    init = shell("test ! -e /put/later && echo probe >/put/file", "init", **at("/put", subPath="a/b"))
    main = shell("cat /all/a/b/file; echo x >/all/file || echo refused", **at("/all", readOnly=True))
    bench.pod("shares", main, initContainers=[init], volumes=[EMPTY])
    pod = bench.in_phase("shares", "Succeeded")
    assert bench.node.log_of(pod["metadata"]["uid"], "main").splitlines()[0] == "probe"
    assert bench.node.log_of(pod["metadata"]["uid"], "main").splitlines()[-1] == "refused"
    assert (bench.node.empty_dir_of(pod["metadata"]["uid"], "shared") / "a/b/file").read_text() == "probe\n"


def test_a_failing_init_container_keeps_the_others_from_running(bench: Bench) -> None:
    bench.pod("broken", shell("echo never"), initContainers=[shell("exit 4", "init")])
    pod = bench.in_phase("broken", "Failed")
    assert pod["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 4
    assert bench.node.log_of(pod["metadata"]["uid"], "main") == ""


def test_a_sidecar_runs_beside_and_ends_with_the_others(bench: Bench) -> None:
    sidecar = shell("trap 'echo told; exit 0' TERM; echo up >/shared/up; while :; do sleep 0.05; done", "side",
                    restartPolicy="Always", **at("/shared"))  # fmt: skip
    main = shell("while ! [ -e /shared/up ]; do sleep 0.05; done", **at("/shared"))
    bench.pod("beside", main, initContainers=[sidecar], volumes=[EMPTY])
    pod = bench.in_phase("beside", "Succeeded")
    assert bench.node.log_of(pod["metadata"]["uid"], "side") == "told\n"


def test_a_sub_path_that_leads_out_of_its_volume_is_refused(bench: Bench) -> None:
    init = shell("ln -s / /shared/out", "init", **at("/shared"))
    bench.pod("escapes", shell("ls /x", **at("/x", subPath="out")), initContainers=[init], volumes=[EMPTY])
    bench.pod_when("escapes", lambda pod: "leads out of volume" in why_not_created(pod), "is refused")


def test_the_downward_api_and_references_fill_the_environment(bench: Bench) -> None:
    paths = {
        "NAME": "metadata.name", "UID_": "metadata.uid", "NS": "metadata.namespace", "NODE": "spec.nodeName",
        "IP": "status.podIP", "HOST": "status.hostIP",
        "LABEL": "metadata.labels['app.kubernetes.io/name']", "NOTE": "metadata.annotations['tidegauge.dev/attempt']",
    }  # fmt: skip
    env: list[dict[str, Any]] = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in paths.items()
    ]
    env.append({"name": "JOINED", "value": "$(NS)/$(NAME) $$(NS) $(NOT_THERE)"})
    containers = [shell('echo "$JOINED"; env', env=env)]
    body = {
        "metadata": {
            "name": "knows",
            "labels": {"app.kubernetes.io/name": "trainer"},
            "annotations": {"tidegauge.dev/attempt": "2"},
        },
        "spec": bench.pod_spec(*containers),
    }
    bench.create("pods", body)
    pod = bench.in_phase("knows", "Succeeded")
    first, *rest = bench.node.log_of(pod["metadata"]["uid"], "main").splitlines()
    assert first == f"{bench.namespace}/knows $(NS) $(NOT_THERE)"
    environ = dict(line.split("=", 1) for line in rest)
    assert {name: environ[name] for name in paths} == {
        "NAME": "knows", "UID_": pod["metadata"]["uid"], "NS": bench.namespace, "NODE": bench.node.name,
        "IP": pod["status"]["podIP"], "HOST": pod["status"]["hostIP"], "LABEL": "trainer", "NOTE": "2",
    }  # fmt: skip
    assert (environ["KUBERNETES_SERVICE_HOST"], environ["HOSTNAME"]) == (bench.api.address[0], "knows")


def test_containers_of_a_pod_have_users_of_their_own_and_share_dev_shm_alone(bench: Bench) -> None:
    root = shell("echo root >/dev/shm/mine; echo root >/tmp/mine; id -u; exec sleep 600", "root")
    alice = shell(
        "until [ -e /dev/shm/mine ]; do sleep 0.05; done; id -u; id -g; id -G; ls /tmp; "
        "echo x >/dev/shm/mine || echo no; "
        "mkdir /etc/of-my-own && echo root-after-all",
        "alice",
        securityContext={"runAsUser": 5001, "runAsGroup": 5002},
    )
    bench.pod("two", root, alice, securityContext={"fsGroup": 5003, "runAsUser": 0})
    pod = bench.pod_when("two", lambda pod: "alice" in exit_codes(pod), "alice has ended")
    said = bench.node.log_of(pod["metadata"]["uid"], "alice").splitlines()
    assert said[:3] == ["5001", "5002", "5002 5003"]
    assert (said.count("no"), said.count("root-after-all")) == (1, 0)
    assert bench.log_has(pod, "root", "\n") == "0\n"
    owner = os.stat(f"/proc/{bench.node.pid_of(pod['metadata']['uid'], 'root')}").st_uid
    assert owner == 0


def test_root_in_a_pod_is_not_root_of_the_machine(bench: Bench) -> None:
    """Capabilities as a runtime gives them: none to mount with, and none at all where they are dropped."""
    script = "mount -t tmpfs none /mnt || echo no mount; chown 1 /tmp/x || echo no chown"
    bare = shell(f"touch /tmp/x; {script}", "bare", securityContext={"capabilities": {"drop": ["ALL"]}})
    bench.pod("caged", shell(f"touch /tmp/x; {script}"), bare)
    pod = bench.in_phase("caged", "Succeeded")
    assert "no mount" in (main := bench.node.log_of(pod["metadata"]["uid"], "main"))
    assert "no chown" not in main
    assert "no chown" in bench.node.log_of(pod["metadata"]["uid"], "bare")


def test_a_volume_in_memory_is_seen_by_the_containers_alone(bench: Bench) -> None:
    volume = {"name": "shared", "emptyDir": {"medium": "Memory"}}
    bench.pod("memory", shell("echo x >/shared/x; echo written; exec sleep 600", **at("/shared")), volumes=[volume])
    pod = bench.in_phase("memory", "Running")
    bench.log_has(pod, "main", "written")
    pid = bench.node.pid_of(pod["metadata"]["uid"], "main")
    assert Path(f"/proc/{pid}/root/shared/x").read_text() == "x\n"
    assert list(bench.node.empty_dir_of(pod["metadata"]["uid"], "shared").iterdir()) == []


# --- ending


def test_a_deleted_pod_is_told_and_has_its_grace(bench: Bench) -> None:
    bench.pod(
        "told", shell("trap 'echo told; sleep 0.3; echo saved; exit 9' TERM; echo up; while :; do sleep 0.05; done")
    )
    pod = bench.in_phase("told", "Running")
    bench.log_has(pod, "main", "up")
    bench.api.call("DELETE", bench.path("pods", "told"))
    bench.gone("pods", "told")
    assert bench.node.log_of(pod["metadata"]["uid"], "main") == "up\ntold\nsaved\n"


def test_kube_node_kills_a_container_after_its_grace_period(bench: Bench) -> None:
    body = {
        # Keeps the object, so that its last status can be read.
        "metadata": {"name": "deaf", "finalizers": ["tidegauge.dev/test"]},
        "spec": bench.pod_spec(shell("echo up; exec sleep 600"), terminationGracePeriodSeconds=1),
    }
    bench.create("pods", body)
    pod = bench.in_phase("deaf", "Running")
    pid = bench.node.pid_of(pod["metadata"]["uid"], "main")
    bench.api.call("DELETE", bench.path("pods", "deaf"))
    pod = bench.in_phase("deaf", "Failed")
    assert exit_codes(pod) == {"main": 137}
    assert not Path(f"/proc/{pid}").exists()
    bench.api.call("PATCH", bench.path("pods", "deaf"), {"metadata": {"finalizers": None}}, how=MERGE)
    bench.gone("pods", "deaf")


def test_a_pod_that_is_removed_at_once_leaves_no_process(bench: Bench) -> None:
    bench.pod("forced", shell("trap '' TERM; echo up; while :; do sleep 0.05; done"))
    pod = bench.in_phase("forced", "Running")
    pid = bench.node.pid_of(pod["metadata"]["uid"], "main")
    bench.api.call("DELETE", bench.path("pods", "forced"), {"gracePeriodSeconds": 0})
    bench.gone("pods", "forced")
    bench.until(lambda: not Path(f"/proc/{pid}").exists(), "the process has ended")


def test_a_pod_deleted_during_its_init_container_never_begins(bench: Bench) -> None:
    init = shell("trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done", "init")
    bench.pod("early", shell("echo main"), initContainers=[init])
    pod = bench.pod_when("early", lambda pod: pod["spec"].get("nodeName"), "is bound")
    bench.log_has(pod, "init", "up")
    bench.api.call("DELETE", bench.path("pods", "early"))
    bench.gone("pods", "early")
    assert bench.node.log_of(pod["metadata"]["uid"], "main") == ""
