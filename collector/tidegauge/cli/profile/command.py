"""``tidegauge profile`` shows what fills the GPU at the peak, of a job or a recorded snapshot, and compares two."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, cast

from tidegauge.cli.arguments import LIST_GOES_ON, OUTPUT, add_examples, file_to_write, group, parse_cap, positive_count
from tidegauge.cli.errors import BAD_NEWS, FINE, UsageError, bad_file, need
from tidegauge.cli.output import said_when_slow, spare_what_is_read, write_output
from tidegauge.cli.service_api import add_api_arguments
from tidegauge.core.text import one_line

if TYPE_CHECKING:
    from tidegauge.analysis.profile.recording import NamedRecording
    from tidegauge.cli.profile.estimated import BesideEstimate
    from tidegauge.cli.profile.job import ComparedRank
    from tidegauge.core.profile.advice import StepAdvice
    from tidegauge.core.profile.comparison import ProfileComparison
    from tidegauge.core.profile.step_profile import StepProfile

HELP = "show what fills the GPU at the peak, by category, phase and line: of a job or a snapshot; or compare two"
DIFF = "diff"
DEFAULT_TOP = 12
_FILE_NAME = re.compile(r"[/\\]|\.(?:pickle|pkl|snap|npz|zst|gz|json)\b", re.IGNORECASE)
"""What is not there and looks like this is a file that is missing, not a job."""
_WORKLOAD = re.compile(r"[a-z0-9-]+/[a-z0-9-]+(?: \(.*\))?(?::[0-9]+)?")
"""The name of a job on Kubernetes, ``namespace/name``, which looks like a file's."""
_PERCENT = re.compile(r"(-?[0-9]{1,6}(?:\.[0-9]{1,6})?)\s*%", re.ASCII)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "%(prog)s [options] JOB\n       %(prog)s [options] --last\n       %(prog)s [options] SNAPSHOT\n"
        "       %(prog)s [options] diff BEFORE AFTER"
    )
    parser.add_argument(
        "snapshots", metavar="SNAPSHOT", nargs="*", type=_name,
        help="PyTorch or Tidegauge snapshot with allocation history and Python stacks of one training step or more; "
        "after the word diff, two: of two runs, commits, settings or ranks. A name that is no file here is a job of "
        "the service; after diff also JOB:RANK",
    )  # fmt: skip
    parser.set_defaults(**{LIST_GOES_ON: "snapshots"})
    parser.add_argument("--last", action="store_true", help="the job with the newest profile")
    parser.add_argument(
        "--now", action="store_true",
        help="ask the job's running ranks to record two training steps now, and wait for it",
    )  # fmt: skip
    parser.add_argument("--ranks", type=_ranks, default=(), metavar="0,3", help="only these ranks of a job")
    parser.add_argument(
        "--device", type=int, metavar="N",
        help="device to use if a snapshot has several (default: the one that holds most; diff needs it)",
    )  # fmt: skip
    parser.add_argument(
        "--fail-if-peak-grows", type=_percent, metavar="SHARE",
        help="with diff: exit with 1 if the peak of AFTER is higher by more than this, such as 2%%; "
        "=-5%%: if it is not lower by 5%% at least",
    )  # fmt: skip
    parser.add_argument(
        "--world-size", type=positive_count, metavar="N",
        help="also tell what sharding over N ranks would save (ZeRO-1, FSDP2)",
    )  # fmt: skip
    parser.add_argument(
        "--limit", type=parse_cap, metavar="SIZE",
        help="memory of the card, such as 80GiB: tells how much larger the batch can be on it",
    )  # fmt: skip
    parser.add_argument(
        "--estimate", type=_name, metavar="FILE",
        help="what `tidegauge estimate --json` printed for this job: shows both, part by part",
    )  # fmt: skip
    output = group(parser, OUTPUT)
    output.add_argument(
        "--top", type=positive_count, default=DEFAULT_TOP, metavar="N",
        help=f"show the N lines that hold, or changed, most (default: {DEFAULT_TOP}); --json has all",
    )  # fmt: skip
    output.add_argument(
        "--html", type=_page_file, metavar="FILE",
        help="also write a page: memory over the recording, by category, or over both; of a job, of its ranks",
    )  # fmt: skip
    add_api_arguments(parser)
    add_examples(
        parser,
        "tidegauge profile 4711                     the fullest rank of a job, and all side by side",
        "tidegauge profile 4711 --ranks 0,3 --now   record two steps of these ranks now",
        "tidegauge profile snapshot.pickle",
        "tidegauge profile snapshot.pickle --html profile.html",
        "tidegauge profile snapshot.pickle --limit 80GiB --world-size 8",
        "tidegauge profile snapshot.pickle --estimate estimate.json",
        "tidegauge profile diff 4711:0 4711:3       two ranks of a job",
        "tidegauge profile diff main.pickle branch.pickle --html diff.html --fail-if-peak-grows 2%",
    )


def run(args: argparse.Namespace) -> int:
    files = args.snapshots
    spare_what_is_read(args.html, [*files, args.estimate])
    if not files or (len(files) == 1 and not _is_file(files[0])):
        return _job(files, args)
    if args.last or args.now or args.ranks:
        hint = "; diff takes a rank of a job as JOB:RANK" if files[0] == DIFF else ""
        raise UsageError(f"--last, --now and --ranks are about a job, not about snapshots{hint}")
    if files[0] == DIFF and len(files) > 1:
        return _diff(files[1:], args)
    if len(files) > 1:
        raise UsageError(f"one snapshot at a time; to compare two: tidegauge profile diff {files[0]} {files[1]}")
    if args.fail_if_peak_grows is not None:
        raise UsageError("--fail-if-peak-grows needs two snapshots: tidegauge profile diff BEFORE AFTER")
    _check_is_there(files[0], ", and no job has a name like this")
    with said_when_slow(f"replaying {one_line(files[0])}"):
        recording, profile, advice = _advised(files[0], args)
        page = None if args.html is None else _page(recording, profile, advice, files[0])
    if page is not None:
        write_output(args.html, page.encode(errors="replace"))
    if args.json:
        estimated = _estimated(args, profile)
        beside = {} if estimated is None else {"estimate": [one._asdict() for one in estimated.parts]}
        print(json.dumps({"file": files[0], **_wire(profile), "advice": _wire(advice), **beside}))
    else:
        from tidegauge.cli.profile.page import print_page, profile_page

        estimated = _estimated(args, profile)
        print_page(profile_page(profile, args.top, advice))
        if estimated is not None:
            print()
            print_page([estimated.table])
    return FINE


def _estimated(args: argparse.Namespace, profile: StepProfile) -> Optional[BesideEstimate]:
    """Raises ``CommandError``."""
    if args.estimate is None:
        return None
    from tidegauge.cli.profile.estimated import beside_estimate, read_estimate

    return beside_estimate(read_estimate(args.estimate), profile)


def _is_file(name: str) -> bool:
    """Whether it is a snapshot, and not a job: whatever is there as a file, or has a file's name."""
    looks_so = _FILE_NAME.search(name) is not None and _WORKLOAD.fullmatch(name) is None
    return Path(name).exists() or looks_so


def _check_is_there(name: str, also: str = "") -> None:
    """Raises ``UsageError`` that names files with a close name."""
    try:
        Path(name).stat()
    except FileNotFoundError as error:
        from tidegauge.cli.profile.missing import close_files

        raise UsageError(f"{one_line(name)}: no such file{also}{close_files(name)}") from error
    except (OSError, ValueError):
        return  # whoever reads it says what is wrong


def _job(named: list[str], args: argparse.Namespace) -> int:
    if bool(named) == args.last:
        raise UsageError("name a job or a snapshot, or use --last for the job with the newest profile")
    if not (args.device is args.fail_if_peak_grows is args.world_size is args.limit is None):
        raise UsageError(
            "--device, --world-size, --limit and --fail-if-peak-grows are about snapshots, not about a job"
        )
    from tidegauge.cli.profile.job import show_job

    return show_job(named[0] if named else None, args)


def _diff(files: list[str], args: argparse.Namespace) -> int:
    if args.world_size is not None or args.limit is not None:
        raise UsageError("--world-size and --limit are for the advice on one snapshot: tidegauge profile SNAPSHOT")
    if args.estimate is not None:
        raise UsageError("--estimate goes beside one profile: tidegauge profile SNAPSHOT or JOB --estimate FILE")
    if len(files) != 2:
        raise UsageError(
            f"diff compares two snapshots, and got {len(files)}: tidegauge profile diff BEFORE AFTER; either may be a "
            "JOB, or a rank of it, JOB:RANK"
        )
    if args.device is not None and not any(map(_is_file, files)):
        raise UsageError("--device is about snapshots, not about jobs: name a rank as JOB:RANK")
    ranks: dict[str, ComparedRank] = {}
    for name in files:
        if _is_file(name):
            _check_is_there(name)
        elif name not in ranks:
            from tidegauge.cli.profile.job import rank_of_job

            ranks[name] = rank_of_job(name, args)
    with said_when_slow("replaying and comparing the snapshots"):
        before, after = (ranks[name].profile if name in ranks else _profile(name, args.device) for name in files)
        from tidegauge.core.profile.comparison import compare_profiles

        compared = compare_profiles(before, after)
    subjects = [ranks[name].title if name in ranks else name for name in files]
    if args.html is not None:
        pages = need("tidegauge_exporter.reports.profile_comparison_page", extra="agent", what="a page")
        made = pages.render_comparison(before, after, compared, subjects=subjects, made_unix_s=time.time())
        write_output(args.html, str(made).encode(errors="replace"))
    if args.json:
        print(json.dumps({"before": subjects[0], "after": subjects[1], **_wire(compared)}))
    else:
        from tidegauge.cli.profile.page import comparison_page, print_page

        which = [f"Before: {subjects[0]}. After: {subjects[1]}."] if ranks else []
        doubts = [f"Of {one.title}: {problem}." for one in ranks.values() for problem in one.problems]
        print_page([*which, *comparison_page(compared, args.top), *doubts])
    most = args.fail_if_peak_grows
    return BAD_NEWS if most is not None and compared.grown_bytes > most * compared.before_peak_bytes else FINE


def _recording(file: str, device: Optional[int], *, chooses: bool = False) -> NamedRecording:
    """``chooses``: of several devices takes the one that holds most, and says so."""
    # The modules that read and replay are loaded here, because other commands do not need them.
    from tidegauge.analysis.compiling import prepare_model
    from tidegauge.analysis.traces import near_peak
    from tidegauge.analysis.traces.reading import open_trace

    most, events = near_peak.MAX_PROFILED_EVENTS, 0

    def on_read(count: int) -> None:
        nonlocal events
        events = count
        prepare_model(min(count, most))

    def on_choice(sentence: str) -> None:
        print(one_line(f"tidegauge profile: {file} {sentence}; --device N shows another"), file=sys.stderr)

    try:
        trace = open_trace(
            Path(file),
            device=device,
            on_read=on_read,
            beginning=lambda one: near_peak.near_peak(one, most).trace,
            on_choice=on_choice if chooses else None,
        )
        if len(trace) < events:
            said = f"{file} has {events:,} events; the profile is of {len(trace):,} around its peak, counted from 0"
            print(f"tidegauge profile: {said}", file=sys.stderr)
        # Only now: how the model is imported depends on the length of the trace.
        from tidegauge.analysis.profile.recording import recording_of

        return recording_of(trace)
    except ValueError as error:
        raise bad_file(file, error) from error


def _profile(file: str, device: Optional[int]) -> StepProfile:
    recording = _recording(file, device)
    from tidegauge.analysis.profile.profile import profile_of_recording

    return profile_of_recording(recording)


def _advised(file: str, args: argparse.Namespace) -> tuple[NamedRecording, StepProfile, StepAdvice]:
    recording = _recording(file, args.device, chooses=True)
    from tidegauge.analysis.profile.profile import profile_of_recording
    from tidegauge.cli.profile.advising import advise

    advice = advise(recording, ranks=args.world_size, card_bytes=args.limit)
    return recording, profile_of_recording(recording), advice


def _page(recording: NamedRecording, profile: StepProfile, advice: StepAdvice, file: str) -> str:
    pages = need("tidegauge_exporter.reports.profile_page", extra="agent", what="a page")
    made = pages.render_profile(profile, advice, recording=recording, subject=file, made_unix_s=time.time())
    return str(made)


def _wire(value: StepProfile | StepAdvice | ProfileComparison) -> Mapping[str, Any]:
    from tidegauge.core.wire import to_wire

    return cast("Mapping[str, Any]", to_wire(value))


def _ranks(text: str) -> tuple[int, ...]:
    """``0,3`` as numbers. Raises ``ArgumentTypeError``."""
    from tidegauge.core.profile.request import ranks_of  # here, for a command line that has none

    ranks = ranks_of(",".join(part.strip() for part in text.split(",")))
    if ranks is None:
        raise argparse.ArgumentTypeError(f"{text!r} are not ranks, such as 0,3")
    return ranks


def _name(text: str) -> str:
    """Of a file or a job. Raises ``ArgumentTypeError``."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the name is empty")
    return text


def _page_file(text: str) -> Path:
    """The name of a file. Raises ``ArgumentTypeError``."""
    if text == "-":
        raise argparse.ArgumentTypeError(
            "a page goes to a file, as standard output has the tables; `tidegauge report SNAPSHOT -o -` writes a page "
            "of a snapshot there"
        )
    return file_to_write(text)


def _percent(text: str) -> Fraction:
    """``2%`` as a fraction. Raises ``ArgumentTypeError``."""
    match = _PERCENT.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage, such as 2%")
    return Fraction(match[1]) / 100
