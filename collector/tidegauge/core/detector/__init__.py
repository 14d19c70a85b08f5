"""The leak detector: judges one rank's memory over time as a `Verdict`, and combines the verdicts of a job's ranks.

Values in, values out. The numbers that steer it are in `params`; docs/detector.md says how it works and where it ends.
"""

from __future__ import annotations

from tidegauge.core.detector.params import DEFAULT, Params
from tidegauge.core.detector.peers import JobVerdict, Suspect, judge_job
from tidegauge.core.detector.rank import RankDetector

__all__ = ["DEFAULT", "JobVerdict", "Params", "RankDetector", "Suspect", "judge_job"]
