"""The leak detector: what one rank's memory does over time, turned into a `Verdict`; and what that means for its job.

Values in, values out. The numbers that steer it are in `params`; docs/detector.md says how it works and where it ends.
"""

from __future__ import annotations

from tidegauge.core.detector.params import DEFAULT, Params
from tidegauge.core.detector.peers import JobVerdict, Suspect, judge_job
from tidegauge.core.detector.rank import RankDetector

__all__ = ["DEFAULT", "JobVerdict", "Params", "RankDetector", "Suspect", "judge_job"]
