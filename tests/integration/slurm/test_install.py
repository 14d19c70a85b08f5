"""``deploy/slurm/install.sh``: says what it would touch, touches that, and what it installs works on a real Slurm."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from integration.needs import missing
from integration.service import eventually
from integration.slurm.box import CHECKOUT, SERVICE_PYTHON, SlurmBox
from integration.slurm.conftest import StartBox

INSTALL = CHECKOUT / "deploy/slurm/install.sh"
PREFIX = SERVICE_PYTHON.parent.parent
HEAD = ("--role", "head", "--node-address", "10.0.0.1")
UNITS = "/etc/systemd/system"
NODE = ("--role", "node", "--head", "10.0.0.1:6399", "--without-spank")


def install(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [INSTALL, "--root", root, "--prefix", str(PREFIX), *arguments], stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=60, check=False, env={"PATH": os.environ["PATH"]},
    )  # fmt: skip


def files(root: Path) -> dict[str, str]:
    """Every file below, with its mode."""
    return {
        f"/{path.relative_to(root)}": f"{stat.S_IMODE(path.stat().st_mode):04o}"
        for path in root.rglob("*")
        if path.is_file()
    }


def told(done: subprocess.CompletedProcess[str], root: Path) -> dict[str, tuple[str, str]]:
    """State and mode of each path that the installer listed."""
    lines = [line.split() for line in done.stdout.splitlines() if str(root) in line]
    return {path.removeprefix(str(root)): (state, mode) for state, mode, _, path in lines}


@pytest.mark.parametrize("role", [HEAD, NODE], ids=["head", "node"])
def test_slurm_install_touches_only_the_files_it_lists(tmp_path: Path, role: tuple[str, ...]) -> None:
    done = install(tmp_path, *role, "--yes")
    assert done.returncode == 0, done.stderr
    assert {path: ("new", mode) for path, mode in files(tmp_path).items()} == told(done, tmp_path)


def test_without_a_yes_it_only_says(tmp_path: Path) -> None:
    done = install(tmp_path, *HEAD)
    assert (done.returncode, files(tmp_path)) == (2, {})
    assert "/etc/systemd/system/tidegauge-head.service" in done.stdout
    assert "--yes" in done.stderr


def test_a_second_time_there_is_nothing_to_do(tmp_path: Path) -> None:
    install(tmp_path, *NODE, "--yes")
    again = install(tmp_path, "--role", "node", "--without-spank")
    assert again.returncode == 0
    assert {state for state, _ in told(again, tmp_path).values()} == {"same", "stays"}


def test_slurm_install_repairs_our_files_and_keeps_the_admins(tmp_path: Path) -> None:
    install(tmp_path, *NODE, "--yes")
    prolog, config = tmp_path / "usr/local/lib/tidegauge/prolog.sh", tmp_path / "etc/tidegauge/config.yaml"
    prolog.chmod(0o777)
    config.write_text("cluster: mine\n")
    done = install(tmp_path, *NODE, "--yes")
    assert [path for path, (state, _) in told(done, tmp_path).items() if state == "changed"] == [
        "/usr/local/lib/tidegauge/prolog.sh"
    ]
    assert stat.S_IMODE(prolog.stat().st_mode) == 0o755
    assert config.read_text() == "cluster: mine\n"


def test_uninstalling_leaves_settings_and_nothing_else(tmp_path: Path) -> None:
    token = tmp_path / "token-of-the-head"
    token.write_text("secret")
    root = tmp_path / "root"
    install(root, *NODE, "--token-file", str(token), "--yes")
    assert files(root)["/etc/tidegauge/token"] == "0600"
    done = install(root, "--role", "node", "--uninstall", "--yes")
    assert done.returncode == 0, done.stderr
    assert sorted(files(root)) == [f"/etc/tidegauge/{name}" for name in ("agent.env", "config.yaml", "token")]


def test_a_head_that_is_a_node_too_gets_the_opener_and_no_second_agent(tmp_path: Path) -> None:
    done = install(tmp_path, *HEAD, "--role", "node", "--without-spank", "--yes")
    assert done.returncode == 0, done.stderr
    installed = files(tmp_path)
    units = {path.removeprefix(f"{UNITS}/") for path in installed if path.startswith(UNITS)}
    assert units == {"tidegauge-head.service", "tidegauge-head.service.d/node.conf", "tidegauge-opener.service"}
    assert "/usr/local/lib/tidegauge/prolog.sh" in installed
    assert "/etc/tidegauge/agent.env" not in installed
    assert "systemctl enable --now tidegauge-opener tidegauge-head" in done.stdout

    refused = install(tmp_path, *NODE, "--yes")
    assert (refused.returncode, files(tmp_path)) == (2, installed)
    assert "--role head --role node" in refused.stderr

    done = install(tmp_path, "--role", "node", "--uninstall", "--yes")
    assert done.returncode == 0, done.stderr
    assert files(tmp_path) == files_of_a_head(tmp_path / "head")
    install(tmp_path, "--role", "head", "--uninstall", "--yes")
    assert sorted(files(tmp_path)) == ["/etc/tidegauge/config.yaml", "/etc/tidegauge/head.env"]


def files_of_a_head(root: Path) -> dict[str, str]:
    install(root, *HEAD, "--yes")
    try:
        return files(root)
    finally:
        shutil.rmtree(root)


@pytest.mark.parametrize("home", ["/root/.pyenv", "/home/ada/uv"])
def test_an_environment_whose_python_units_cannot_see_is_named(tmp_path: Path, home: str) -> None:
    python = tmp_path / "venv/bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to(f"{home}/bin/python3")
    done = install(tmp_path / "root", *HEAD, "--prefix", str(tmp_path / "venv"), "--yes")
    assert done.returncode == 0, done.stderr
    assert f"units cannot see {home}/bin/python3" in done.stdout
    assert "cannot see" not in install(tmp_path / "other", *HEAD, "--prefix", "/usr", "--yes").stdout


def test_scripts_that_slurm_conf_names_are_not_removed(tmp_path: Path) -> None:
    install(tmp_path, *NODE, "--yes")
    slurm_conf = tmp_path / "etc/slurm/slurm.conf"
    slurm_conf.parent.mkdir()
    slurm_conf.write_text("Prolog=/usr/local/lib/tidegauge/prolog.sh\n")
    done = install(tmp_path, "--role", "node", "--uninstall", "--yes")
    assert done.returncode == 3
    assert "scontrol reconfigure" in done.stderr
    assert (tmp_path / "usr/local/lib/tidegauge/prolog.sh").exists()


def test_the_admins_plugstack_is_not_edited(tmp_path: Path) -> None:
    plugstack = tmp_path / "etc/slurm/plugstack.conf"
    plugstack.parent.mkdir(parents=True)
    plugstack.write_text("optional /usr/lib/other.so\n")
    done = install(tmp_path, "--role", "submit", "--yes")
    if "cannot be built" in done.stderr:
        missing("Slurm's headers or a C compiler")
    assert plugstack.read_text() == "optional /usr/lib/other.so\n"
    assert "include /etc/slurm/plugstack.conf.d/*.conf" in done.stdout


def test_uninstalling_leaves_what_includes_other_plugins(tmp_path: Path) -> None:
    install(tmp_path, *NODE, "--without-spank", "--yes")
    folder = tmp_path / "etc/slurm/plugstack.conf.d"
    folder.mkdir(parents=True)
    plugstack = tmp_path / "etc/slurm/plugstack.conf"
    plugstack.write_text("include /etc/slurm/plugstack.conf.d/*.conf\n")
    for name in ("other.conf", "tidegauge.conf"):
        (folder / name).touch()
    done = install(tmp_path, "--role", "node", "--uninstall", "--yes")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in folder.iterdir()] == ["other.conf"]
    assert plugstack.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--role is needed"),
        (("--role", "boss"), "head, node or submit"),
        (("--role", "head"), "--node-address is needed"),
        (("--role", "node", "--head", "10.0.0.1"), "HOST:PORT"),
        (("--role", "head", "--node-address", "1.2.3.4\nExecStartPre=/bin/evil"), "an IP address"),
        (("--role", "head", "--node-address"), "needs a value"),
        (("--frobnicate",), "unknown option --frobnicate"),
    ],
)
def test_a_wrong_call_says_what_is_wrong_and_touches_nothing(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    done = install(tmp_path, "--yes", *arguments)
    assert (done.returncode, files(tmp_path)) == (2, {})
    assert words in done.stderr


def test_without_tidegauge_it_says_how_to_get_it(tmp_path: Path) -> None:
    done = install(tmp_path, "--role", "submit", "--prefix", "/nowhere", "--yes")
    assert (done.returncode, files(tmp_path)) == (3, {})
    assert "pip install" in done.stderr


def test_systemd_finds_no_fault_in_the_installed_units(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        missing("systemd-analyze")
    for root in (tmp_path / "head", tmp_path / "node"):
        install(root, *(HEAD if root.name == "head" else NODE), "--yes")
    units = sorted(tmp_path.glob(f"*{UNITS}/*.service"))
    assert len(units) == 3
    done = subprocess.run(
        ["systemd-analyze", "verify", *units], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def is_prolog_run(box: SlurmBox) -> bool:
    """``scontrol reconfigure`` returns before the nodes have read what is new."""
    job = box.sbatch("test -e /run/tidegauge/slurm/$SLURM_JOB_ID && echo there; true")
    box.wait(job, "COMPLETED")
    return "there" in box.output(job)


def test_the_installed_option_and_scripts_work_on_a_real_slurm(start_box: StartBox) -> None:
    """From nothing to a job with ``--memory-profile``, in the order of docs/slurm.md."""
    box = start_box(nodes=1, gpus=1)
    node = ["--role", "node", "--head", f"{box.address('ctl')}:6399"]
    for host, arguments in (("ctl", ["--role", "submit"]), ("n1", node)):
        box.run(INSTALL, "--prefix", PREFIX, *arguments, "--yes", node=host, timeout_s=60)
    conf = box.run("cat", "/etc/slurm/slurm.conf").stdout
    scripts = "".join(f"{name}=/usr/local/lib/tidegauge/{name.lower()}.sh\n" for name in ("Prolog", "Epilog"))
    box.write_file("slurm.conf", conf + scripts)
    box.run("scontrol", "reconfigure")
    eventually(lambda: is_prolog_run(box), "slurmd has heard of the prolog")
    job = box.sbatch("env; cat /run/tidegauge/slurm/$SLURM_JOB_ID", "--memory-profile=stats")
    box.wait(job, "COMPLETED")
    assert "TIDEGAUGE_PROFILE=stats\n" in box.output(job)
    assert f"JOB_ID={job}\nUID=5001\n" in box.output(job)
    left = box.run("ls", "/run/tidegauge/slurm", node="n1")
    assert left.stdout == ""
    assert box.run("sinfo", "-h", "-o", "%T").stdout.strip() == "idle"
