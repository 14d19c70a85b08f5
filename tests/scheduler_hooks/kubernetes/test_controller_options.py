"""The controller's command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegauge_scheduler_hooks.kubernetes.controller.options import MemoryCheckOptions, parse_options
from tidegauge_scheduler_hooks.kubernetes.owners import KINDS

WEBHOOK = ("--probe-image=probe:1", "--certificate-dir=/etc/certificates")


def test_in_a_pod_only_the_webhook_has_to_be_said(tmp_path: Path) -> None:
    own = tmp_path / "namespace"
    own.write_text("tidegauge\n")
    options = parse_options(WEBHOOK, own_namespace=own)
    assert options.namespace == "tidegauge"
    assert (options.kubeconfig, options.namespaces) == (None, None)
    assert options.kinds == tuple(KINDS)
    assert options.pod_conditions
    assert options.webhook is not None
    assert (options.webhook.port, options.health_port) == (9443, 8081)
    assert options.webhook.injection.shared_gpu_replicas is None


def test_everything_can_be_said() -> None:
    options = parse_options(
        ["--kubeconfig=kube.yaml", "--namespace=a", "--lease=l", "--namespaces=x, y,x", "--kinds=Job,RayJob",
         "--webhook-host=::", "--webhook-port=1", "--probe-image=p", "--service-name=s",
         "--webhook-configuration=w", "--certificate-secret=c", "--shared-gpu-replicas=4",
         '--probe-resources={"limits": {"cpu": "1"}}', "--health-host=::1", "--health-port=65535",
         "--log-level=debug", "--no-pod-conditions", "--api-qps=50", "--api-burst=100"]
    )  # fmt: skip
    assert not options.pod_conditions
    assert (options.api_qps, options.api_burst) == (50, 100)
    assert options.namespaces == ("x", "y")
    assert options.kinds == ("Job", "RayJob")
    assert options.webhook is not None
    assert options.webhook.certificate_secret == "c"
    assert options.webhook.injection.shared_gpu_replicas == 4
    assert options.webhook.injection.probe_resources == {"limits": {"cpu": "1"}}
    assert (options.health_host, options.health_port, options.log_level) == ("::1", 65535, "debug")


def test_admission_check_is_answered_only_where_that_is_asked_for() -> None:
    plain = parse_options(["--namespace=a", "--no-webhook"])
    assert (plain.memory_check, plain.memory_policies) == (None, False)
    assert parse_options(["--namespace=a", "--no-webhook", "--memory-policies"]).memory_policies
    asked = ["--memory-check=reject", "--memory-check-within=30", "--needs-file=/etc/needs.tsv"]
    found = parse_options(["--namespace=a", "--no-webhook", *asked]).memory_check
    assert found == MemoryCheckOptions(Path("/etc/needs.tsv"), rejects=True, within_s=30.0)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--no-webhook"], "--namespace is needed outside a pod"),
        (["--namespace=a"], "--probe-image"),
        (["--namespace=a", "--probe-image=p"], "either --certificate-dir or --certificate-secret"),
        (["--namespace=a", *WEBHOOK, "--certificate-secret=s"], "either --certificate-dir or --certificate-secret"),
        (["--namespace=a", "--probe-image=p", "--certificate-secret=s"], "--webhook-configuration"),
        (["--namespace=a", "--no-webhook", "--kinds=Job,CronJob"], "unknown kind 'CronJob'; choose from Job, JobSet"),
        (["--namespace=a", "--no-webhook", "--kinds=,"], "separated by commas"),
        (["--namespace=a", "--no-webhook", "--health-port=0"], "not a port"),
        (["--namespace=a", "--no-webhook", "--health-port=70000"], "not a port"),
        (["--namespace=a", "--no-webhook", "--shared-gpu-replicas=-1"], "not a count"),
        (["--namespace=a", "--no-webhook", "--probe-resources={"], "not JSON"),
        (["--namespace=a", "--no-webhook", '--probe-resources={"cpu": "1"}'], "requests"),
        (["--namespace=a", "--no-webhook", "--memory-check=tell", "--namespaces=x"], "needs all namespaces"),
        (["--namespace=a", "--no-webhook", "--memory-check=stop"], "invalid choice: 'stop'"),
        (["--namespace=a", "--no-webhook", "--memory-check-within=601"], "not a number of seconds (1 to 600)"),
        (["--namespace=a", "--no-webhook", "--api-qps=19"], "less than 20"),
        (["--namespace=a", "--no-webhook", "--resub"], "unrecognized arguments"),
    ],
)
def test_controller_options_refuse_contradictory_arguments(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_options(arguments, own_namespace=tmp_path / "nobody")
    assert ended.value.code == 2
    assert says in capsys.readouterr().err
