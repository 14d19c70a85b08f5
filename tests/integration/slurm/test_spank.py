"""The SPANK plugin on a real Slurm: what each option does to the environment of batch scripts and tasks."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from integration.needs import missing
from integration.slurm.box import SlurmBox
from integration.slurm.conftest import StartBox
from integration.slurm.spank_site import SOURCE, Site
from integration.slurm.task_environ import in_job, in_task, seen
from tidegauge.core.jobs.fraction import start_fraction
from tidegauge.probe.activation.launch import PYTHONPATH_FOLDER

PROLOG = """#!/bin/sh
env | grep ^SPANK_TIDEGAUGE_ | sort > /tmp/prolog.$SLURM_JOB_ID
exit 0
"""


@pytest.fixture(scope="module")
def site(start_box: StartBox) -> Site:
    files = {"prolog.sh": (PROLOG, 0o755)}
    box = start_box(nodes=2, gpus=2, shards_per_gpu=4, files=files, slurm_conf="Prolog=/etc/slurm/prolog.sh")
    for partition in ("forced", "denied"):
        box.run("scontrol", "create", f"PartitionName={partition}", "Nodes=ALL")
    return Site(box)


def make(*words: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("make") is None:
        missing("no make: the plugin cannot be built")
    return subprocess.run(["make", "-C", SOURCE, *words], capture_output=True, text=True)


def test_make_without_headers_says_what_to_install(tmp_path: Path) -> None:
    done = make(f"BUILD={tmp_path}", f"SLURM_PREFIX={tmp_path}")
    assert done.returncode != 0
    assert f"there is no slurm/spank.h in {tmp_path}/include. Install Slurm's headers" in done.stderr
    assert not list(tmp_path.iterdir())


def test_install_without_a_folder_says_how_to_find_it(tmp_path: Path, site: Site) -> None:
    done = make(f"BUILD={site.box.work / 'build'}", "install", f"DESTDIR={tmp_path}")
    assert done.returncode != 0
    assert "scontrol show config | grep PluginDir" in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_bare_option_of_srun_reaches_every_task_on_every_node(site: Site) -> None:
    box = site.configure(f"probe={site.probe}")
    done = box.run("srun", "--nodes=2", "--ntasks=3", "--memory-profile", "./show", "task", user="alice")
    assert seen(done.stdout) == [("task", {"TIDEGAUGE_PROFILE": "auto", "PYTHONPATH": str(site.probe)})] * 3


def test_spank_sets_nothing_for_a_job_without_options(site: Site) -> None:
    assert in_task(site.configure(f"probe={site.probe}")) == {}


def test_the_site_chooses_the_level_of_the_bare_option(site: Site) -> None:
    assert in_task(site.configure("bare=stats"), "--memory-profile") == {"TIDEGAUGE_PROFILE": "stats"}


@pytest.mark.parametrize("level", ["off", "dormant", "stats", "auto", "trace"])
def test_each_level_is_handed_on_as_it_was_given(site: Site, level: str) -> None:
    assert in_task(site.configure("default=stats"), f"--memory-profile={level}") == {"TIDEGAUGE_PROFILE": level}


@pytest.mark.parametrize(
    ("option", "value", "choices"),
    [
        ("memory-profile", "bogus", "one of off, dormant, stats, auto, trace"),
        ("memory-profile", "AUTO", "one of off"),
        ("memory-fraction", "0", "a decimal number above 0 and at most 1, such as 0.5"),
        ("memory-fraction", "1.01", "a decimal number above 0"),
        ("memory-fraction", "half", "a decimal number above 0"),
        ("memory-fraction", "0." + "1" * 60, "a decimal number above 0"),
        ("memory-profile-signal", "TERM", "USR1, USR2, or a realtime signal such as RTMIN+3"),
        ("memory-profile-signal", "9", "USR1, USR2"),
        ("memory-profile-checkpoints", "/a::/b", "a path, or several separated by ':'"),
        ("memory-profile-checkpoints", "/a" * 2048, "a path"),
    ],
)
def test_a_bad_value_is_refused_with_words_before_anything_is_submitted(
    site: Site, option: str, value: str, choices: str
) -> None:
    site.configure()
    for command in (["srun"], ["sbatch"], ["salloc"]):
        said = site.refused(*command, f"--{option}={value}", *([] if command == ["sbatch"] else ["true"]))
        assert f"--{option}: '{value[:47]}' is not {choices}" in said


def test_a_value_with_control_characters_is_shown_without_them(site: Site) -> None:
    site.configure()
    assert "'a?b?[31m'" in site.refused("srun", "--memory-profile=a\nb\x1b[31m", "true")


def test_an_sbatch_line_is_read_and_the_command_line_beats_it(site: Site) -> None:
    script = "#SBATCH --memory-profile=stats\n#SBATCH --memory-fraction=0.5\n./show batch\nsrun ./show step\n"
    box = site.configure()
    expected = {"TIDEGAUGE_PROFILE": "trace", "TIDEGAUGE_MEMORY_FRACTION": "0.5"}
    assert in_job(box, script, "--memory-profile=trace") == [("batch", expected), ("step", expected)]


def test_a_nested_srun_overrides_the_job(site: Site) -> None:
    script = "srun --memory-profile=off ./show off\nsrun --memory-fraction=0.25 ./show less\n"
    assert in_job(site.configure(), script, "--memory-profile=stats", "--memory-fraction=0.5") == [
        ("off", {"TIDEGAUGE_PROFILE": "off", "TIDEGAUGE_MEMORY_FRACTION": "0.5"}),
        ("less", {"TIDEGAUGE_PROFILE": "stats", "TIDEGAUGE_MEMORY_FRACTION": "0.25"}),
    ]


def test_export_none_loses_no_option_on_its_way_to_the_batch_script(site: Site) -> None:
    options = {
        "TIDEGAUGE_PROFILE": "stats",
        "TIDEGAUGE_MEMORY_FRACTION": "0.5",
        "TIDEGAUGE_CHECKPOINT_SIGNAL": "SIGRTMIN+3",
        "TIDEGAUGE_CHECKPOINT_PATH": "/scratch/a b:/scratch/c",
    }
    given = [
        "--memory-profile=stats", "--memory-fraction=0.5", "--memory-profile-signal=SIGRTMIN+3",
        "--memory-profile-checkpoints=/scratch/a b:/scratch/c",
    ]  # fmt: skip
    found = in_job(site.configure(), "./show batch\nsrun ./show step\n", "--export=NONE", *given)
    assert found == [("batch", options), ("step", options)]


def test_srun_inside_salloc_has_the_options_and_the_shell_has_not(site: Site) -> None:
    shell = "./show shell; srun --ntasks=1 --nodes=1 ./show step"
    done = site.configure().run("salloc", "--nodes=2", "--memory-profile", "sh", "-c", shell, user="alice")
    assert seen(done.stdout) == [("shell", {}), ("step", {"TIDEGAUGE_PROFILE": "auto"})]


def test_arrays_and_requeued_jobs_keep_the_options(site: Site) -> None:
    script = """./show attempt-${SLURM_RESTART_COUNT-0}
        while [ -z "$SLURM_RESTART_COUNT" ]; do sleep 0.1; done
    """
    box = site.configure()
    requeued = box.sbatch(script, "--memory-profile=stats", "--open-mode=append")
    array = box.sbatch("./show $SLURM_ARRAY_TASK_ID\n", "--array=3-4", "--memory-profile", "--output=array-%a.out")
    box.wait(requeued, "RUNNING")
    _wait_for_line(box, box.work / f"slurm-{requeued}.out")
    box.run("scontrol", "requeue", requeued, user="alice")
    box.wait(requeued, "PENDING", "RUNNING", "COMPLETED")  # never its first run: that ends with the command
    box.start_soon(requeued)
    box.wait(array, "COMPLETED\nCOMPLETED")
    tasks = [(box.work / f"array-{number}.out").read_text() for number in (3, 4)]
    assert [seen(task) for task in tasks] == [[(number, {"TIDEGAUGE_PROFILE": "auto"})] for number in ("3", "4")]
    box.wait(requeued, "COMPLETED")
    expected = {"TIDEGAUGE_PROFILE": "stats"}
    assert seen(box.output(requeued)) == [("attempt-0", expected), ("attempt-1", expected)]


def _wait_for_line(box: SlurmBox, path: Path) -> None:
    box.run("sh", "-c", 'until grep -q seen: "$0"; do sleep 0.05; done', str(path))


def test_an_option_beats_the_users_own_variable_and_that_beats_the_sites_default(site: Site) -> None:
    box = site.configure("default=dormant")
    own = {"TIDEGAUGE_PROFILE": "trace", "TIDEGAUGE_CHECKPOINT_SIGNAL": "USR1"}
    assert in_task(box) == {"TIDEGAUGE_PROFILE": "dormant"}
    assert in_task(box, environ=own) == own
    assert in_task(box, "--memory-profile=stats", "--memory-profile-signal=USR2", environ=own) == {
        "TIDEGAUGE_PROFILE": "stats", "TIDEGAUGE_CHECKPOINT_SIGNAL": "USR2",
    }  # fmt: skip


def test_a_users_variable_that_is_no_level_is_left_for_the_probe_to_complain_about(site: Site) -> None:
    assert in_task(site.configure("default=stats"), environ={"TIDEGAUGE_PROFILE": "full"}) == {
        "TIDEGAUGE_PROFILE": "full"
    }


def test_spank_ignores_invalid_values_on_the_node(site: Site) -> None:
    garbled = {"SLURM_SPANK_TIDEGAUGE_PROFILE": "bogus", "SLURM_SPANK_TIDEGAUGE_MEMORY_FRACTION": "-1"}
    assert in_task(site.configure(), environ=garbled) == {}


def test_a_fraction_alone_gets_the_least_level_that_applies_it(site: Site) -> None:
    assert in_task(site.configure(), "--memory-fraction=0.5") == {
        "TIDEGAUGE_PROFILE": "dormant", "TIDEGAUGE_MEMORY_FRACTION": "0.5",
    }  # fmt: skip
    assert in_task(site.configure("default=stats"), "--memory-fraction=0.5")["TIDEGAUGE_PROFILE"] == "stats"


def test_options_without_effect_are_told_once_and_do_not_stop_the_job(site: Site) -> None:
    box = site.configure()
    options = ["--memory-profile=off", "--memory-fraction=0.5", "--memory-profile-signal=USR2"]
    done = box.run("sbatch", *options, user="alice", stdin="#!/bin/sh\nsrun true\n")
    job = done.stdout.split()[-1]
    assert "--memory-fraction has no effect with --memory-profile=off" in done.stderr
    assert "--memory-profile-signal has no effect without --memory-profile-checkpoints" in done.stderr
    box.wait(job, "COMPLETED")
    assert "no effect" not in box.output(job)


def test_a_forced_partition_raises_what_is_below_its_level_and_nothing_else(site: Site) -> None:
    box = site.configure("force=gpu:dormant force=forced:dormant force=forced:stats force=forced:off default=dormant")
    assert in_task(box, "-p", "forced")["TIDEGAUGE_PROFILE"] == "stats"
    assert in_task(box, "-p", "forced", "--memory-profile=off")["TIDEGAUGE_PROFILE"] == "stats"
    assert in_task(box, "-p", "forced", environ={"TIDEGAUGE_PROFILE": "off"})["TIDEGAUGE_PROFILE"] == "stats"
    assert in_task(box, "-p", "forced", "--memory-profile=trace")["TIDEGAUGE_PROFILE"] == "trace"
    assert in_task(box, "-p", "denied")["TIDEGAUGE_PROFILE"] == "dormant"


def test_a_denied_partition_gets_nothing_and_deny_beats_force(site: Site) -> None:
    box = site.configure(f"default=stats force=denied:trace deny=denied probe={site.probe}")
    assert in_task(box, "-p", "denied", "--memory-profile", environ={"TIDEGAUGE_PROFILE": "stats"}) == {}
    assert in_task(box)["TIDEGAUGE_PROFILE"] == "stats"


def test_a_step_is_told_what_its_partition_makes_of_its_option(site: Site) -> None:
    box = site.configure("force=forced:stats deny=denied")
    step = ["srun", "--memory-profile=off", "true"]
    forced = box.run("salloc", "-p", "forced", *step, user="alice").stderr
    assert "--memory-profile=off is raised to stats, the least in partition forced" in forced
    assert "no effect in partition denied" in box.run("salloc", "-p", "denied", *step, user="alice").stderr


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "{probe}"),
        ("/a:/b", "{probe}:/a:/b"),
        (":/a::/b:", "{probe}:/a:/b"),
        ("/a:{probe}", "{probe}:/a"),
        ("{probe}", "{probe}"),
    ],
)
def test_the_probes_folder_comes_first_once_and_without_empty_entries(site: Site, before: str, after: str) -> None:
    box = site.configure(f"probe={site.probe}")
    own = {"PYTHONPATH": before.format(probe=site.probe)}
    assert in_task(box, "--memory-profile", environ=own)["PYTHONPATH"] == after.format(probe=site.probe)
    assert in_task(box, "--memory-profile=off", environ=own).get("PYTHONPATH") == own["PYTHONPATH"]


def test_a_python_without_tidegauge_waits_for_torch_with_the_probe(site: Site) -> None:
    box = site.configure(f"probe={PYTHONPATH_FOLDER}")
    python = Path(sys.base_prefix) / "bin/python3"
    code = "import sys; print([type(finder).__module__ for finder in sys.meta_path])"
    hooks = {
        option: box.run("srun", option, python, "-c", code, user="alice").stdout
        for option in ("--memory-profile=off", "--memory-profile")
    }
    assert "tidegauge" in hooks["--memory-profile"]
    assert "tidegauge" not in hooks["--memory-profile=off"]


@pytest.mark.parametrize("probe", ["/nowhere/probe", "/etc/passwd"])
def test_a_probe_folder_that_is_not_there_changes_no_pythonpath(site: Site, probe: str) -> None:
    box = site.configure(f"probe={probe}")
    found = in_task(box, "--memory-profile", environ={"PYTHONPATH": "/a"})
    assert found == {"TIDEGAUGE_PROFILE": "auto", "PYTHONPATH": "/a"}
    logs = "".join(path.read_text() for path in box.logs.glob("slurmd-*.log"))
    assert f"no folder {probe} (probe= in plugstack.conf) on this node" in logs


def test_prolog_sees_what_was_asked_for(site: Site) -> None:
    box = site.configure("default=dormant")
    for options, expected in (
        (["--memory-profile=trace", "--memory-fraction=0.5"], ["MEMORY_FRACTION=0.5", "PROFILE=trace"]),
        ([], ["PROFILE=dormant"]),
    ):
        done = box.run("srun", "-w", "n1", *options, "printenv", "SLURM_JOB_ID", user="alice")
        prolog = box.run("cat", f"/tmp/prolog.{done.stdout.strip()}", node="n1").stdout
        assert prolog.splitlines() == [f"SPANK_TIDEGAUGE_{line}" for line in expected]


def test_shards_become_a_share_and_where_the_site_wants_it_a_cap(site: Site) -> None:
    box = site.configure("shards_per_gpu=4")
    assert in_task(box, "--gres=shard:1") == {"TIDEGAUGE_GPU_SHARE": "0.250000"}
    assert in_task(box, "--gres=shard:4") == {}
    assert in_task(box, "--gres=gpu:1") == {}
    assert in_task(site.configure("cap_shares=yes"), "--gres=shard:1") == {}

    site.configure("shards_per_gpu=4 cap_shares=yes")
    cap = f"{start_fraction(0.25):.6f}"
    share = {"TIDEGAUGE_GPU_SHARE": "0.250000"}
    assert in_task(box, "--gres=shard:1") == {
        **share, "TIDEGAUGE_MEMORY_FRACTION": cap, "TIDEGAUGE_PROFILE": "dormant",
    }  # fmt: skip
    for asked, expected in (("0.9", cap), (cap, cap), ("0.1", "0.1")):
        options = ["--gres=shard:1", "--memory-profile", f"--memory-fraction={asked}"]
        assert in_task(box, *options)["TIDEGAUGE_MEMORY_FRACTION"] == expected
    for own, expected in (("0.9", cap), ("everything", cap), ("0.1", "0.1")):
        found = in_task(box, "--gres=shard:1", environ={"TIDEGAUGE_MEMORY_FRACTION": own})
        assert found["TIDEGAUGE_MEMORY_FRACTION"] == expected


def test_a_batch_job_with_shards_has_its_share_in_script_and_steps(site: Site) -> None:
    found = in_job(site.configure("shards_per_gpu=4"), "./show batch\nsrun ./show step\n", "--gres=shard:3")
    assert found == [(name, {"TIDEGAUGE_GPU_SHARE": "0.750000"}) for name in ("batch", "step")]


def test_mps_is_a_share_of_memory_only_where_the_site_says_so(start_box: StartBox) -> None:
    site = Site(start_box(nodes=1, gpus=2, mps_per_gpu=100))
    assert in_task(site.configure(), "--gres=mps:50") == {}
    assert in_task(site.configure("mps_shares=yes"), "--gres=mps:50") == {"TIDEGAUGE_GPU_SHARE": "0.500000"}
    assert in_task(site.configure("mps_shares=yes cap_shares=yes"), "--gres=mps:50") == {
        "TIDEGAUGE_GPU_SHARE": "0.500000",
        "TIDEGAUGE_MEMORY_FRACTION": f"{start_fraction(0.5):.6f}",
        "TIDEGAUGE_PROFILE": "dormant",
    }
    assert in_task(site.configure("mps_shares=yes cap_shares=yes"), "--gres=mps:100") == {}


ANSWER = "job 7: completed after 2 h; rank 0 on n1: 9.0 GiB of 80.0 GiB reserved (11%)"
END_PROGRAM = f"""#!/bin/bash
echo "$*" >>/tmp/end.calls; chmod a+rw /tmp/end.calls; env >>/tmp/end.environ 2>/dev/null
printf '%s\\nmore\\n' '{ANSWER}'; echo noise >&2
"""
ENDS = "end=/etc/slurm/end api=http://ctl:9495 end_after=1"


def end_of(site: Site, program: str, *words: str, arguments: str = ENDS, command: str = "sleep 1") -> str:
    """What ``srun`` of Alice's prints on its standard error; it has to end as its command does."""
    site.box.run("rm", "-f", "/tmp/end.calls", "/tmp/end.environ")
    site.box.write_file("end", (program, 0o755))
    box = site.configure(arguments)
    own = {"PYTHONPATH": "/mine", "TIDEGAUGE_API_TOKEN": "secret"}
    return box.run("srun", *words, "bash", "-c", command, user="alice", environ=own).stderr


def end_calls(site: Site) -> list[str]:
    return site.box.run("cat", "/tmp/end.calls", check=False).stdout.splitlines()


def test_at_its_end_srun_tells_once_what_its_job_used(site: Site) -> None:
    said = end_of(site, END_PROGRAM, "--nodes=2", "--ntasks=3", "--memory-profile")
    assert said == f"srun: tidegauge: {ANSWER}\n"
    (call,) = end_calls(site)
    alice = site.box.run("id", "-u", "alice").stdout.strip()
    assert re.fullmatch(rf"job \d+ --brief --wait 1 --since 6\ds --uid {alice} --api http://ctl:9495", call)
    environ = site.box.run("cat", "/tmp/end.environ").stdout.splitlines()
    assert "TIDEGAUGE_API_TOKEN=secret" in environ
    assert not [line for line in environ if line.startswith(("PYTHONPATH", "SLURM_"))]


def test_srun_that_is_told_to_be_quiet_tells_nothing(site: Site) -> None:
    assert end_of(site, END_PROGRAM, "-Q", "--memory-profile") == ""


def test_control_characters_do_not_reach_the_terminal(site: Site) -> None:
    said = end_of(site, "#!/bin/bash\nprintf 'job 7: \\e[31mred\\r\\x7f \u00d7 %%s%%n\\n'\n", "--memory-profile")
    assert said == "srun: tidegauge: job 7: ?[31mred?? \u00d7 %s%n\n"


def test_in_a_batch_job_the_end_stands_in_its_log(site: Site) -> None:
    site.box.write_file("end", (END_PROGRAM, 0o755))
    box = site.configure(ENDS)
    job = box.sbatch("srun sleep 1", "--memory-profile=stats")
    box.wait(job, "COMPLETED")
    assert f"tidegauge: {ANSWER}\n" in box.output(job)


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        (["--memory-profile"], ENDS.replace("end_after=1", "end_after=30")),
        (["--memory-profile"], "api=http://ctl:9495 end_after=1"),
        (["--memory-profile=off"], ENDS),
        (["--memory-profile=dormant"], ENDS),
        ([], ENDS),
        (["--memory-profile", "--partition=denied"], f"{ENDS} deny=denied"),
    ],
)
def test_of_a_short_or_unwatched_srun_nothing_is_told(site: Site, words: list[str], arguments: str) -> None:
    said = end_of(site, END_PROGRAM, *words, arguments=arguments)
    assert "tidegauge: job" not in said
    assert end_calls(site) == []


@pytest.mark.parametrize(
    "program",
    ["exit 3", "echo no; exit 3", "sleep 600", "sleep 600 & echo no; sleep 600", "kill -9 $$", "yes"],
)
def test_a_program_that_fails_hangs_or_floods_changes_nothing(site: Site, program: str) -> None:
    assert end_of(site, f"#!/bin/bash\n: end-of-a-job\n{program}\n", "--memory-profile") == ""
    assert site.box.run("pgrep", "-f", "/etc/slurm/end", check=False).stdout == ""


def test_a_program_that_is_not_there_changes_nothing(site: Site) -> None:
    assert end_of(site, END_PROGRAM, "--memory-profile", arguments=ENDS.replace("slurm/end", "slurm/none")) == ""


def test_srun_ends_as_its_command_did(site: Site) -> None:
    site.box.write_file("end", (END_PROGRAM, 0o755))
    done = site.configure(ENDS).run(
        "srun", "--memory-profile", "bash", "-c", "sleep 1; exit 7", user="alice", check=False
    )
    assert done.returncode == 7
    assert f"tidegauge: {ANSWER}\n" in done.stderr


def test_arguments_that_are_not_understood_are_passed_over(site: Site) -> None:
    bad = "bogus default=everything probe=relative force=gpu:bogus force=:stats cap_shares=perhaps shards_per_gpu=0"
    box = site.configure(f"{bad} deny= default=stats")
    assert in_task(box) == {"TIDEGAUGE_PROFILE": "stats"}
    assert "tidegauge" not in box.run("srun", "true", user="alice").stderr
    logs = "".join(path.read_text() for path in box.logs.glob("slurmd-*.log"))
    for argument in f"{bad} deny=".split():
        assert f"tidegauge: argument '{argument}' in plugstack.conf is ignored" in logs


def test_a_plugin_for_another_release_stops_no_submission_as_optional(site: Site) -> None:
    """Made with headers that say the release before: Slurm looks at year and month of what a plugin was built with."""
    box = site.box
    prefix = box.work / "older"
    headers = prefix / "include/slurm"
    headers.mkdir(parents=True)
    find = 'dirname "$(echo "#include <slurm/spank.h>" | cc -E -M - | grep -o "[^ ]*/spank.h")"'
    box.run("sh", "-c", f'cp "$({find})"/*.h {headers}')
    version = headers / "slurm_version.h"
    text, count = re.subn(r"(#define\s+SLURM_VERSION_NUMBER\s+)0x\w+", r"\g<1>0x150800", version.read_text())
    assert count == 1
    version.write_text(text)
    box.run("make", "-C", str(SOURCE), f"BUILD={prefix}", f"SLURM_PREFIX={prefix}")
    site.configure("default=stats", plugin=str(prefix / "tidegauge.so"))
    done = box.run("srun", "./show", "task", user="alice")
    assert seen(done.stdout) == [("task", {})]
    assert "Incompatible Slurm plugin" in done.stderr
    assert in_job(box, "srun ./show step\n") == [("step", {})]
    assert "unrecognized option" in site.refused("srun", "--memory-profile", "true")
