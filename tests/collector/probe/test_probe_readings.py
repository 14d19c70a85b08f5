# unittest, not pytest: these tests run under every Python of the jobs, which need not have pytest
# ruff: noqa: PT009, PT027
from __future__ import annotations

import unittest

from probe_fakes import nested_stats
from tidegauge.core.samples import EventCode, RecordKind, Sample
from tidegauge.probe.runtime.readings import counts_of


class ReadingStatistics(unittest.TestCase):
    def test_each_number_lands_in_the_field_of_its_name(self) -> None:
        stats = nested_stats(1000, 5000, peak=9000, ooms=2, retries=3)
        sample = Sample(1, RecordKind.STEP, EventCode.NONE, 0, 0, 0, 0, 0, 0, *counts_of(stats))  # type: ignore[arg-type]
        self.assertEqual((sample.allocated_bytes, sample.reserved_bytes), (1000, 5000))
        self.assertEqual(
            (sample.active_bytes, sample.inactive_split_bytes, sample.requested_bytes),
            (1001, 1002, 1003),
        )
        self.assertEqual(
            (sample.allocated_peak_bytes, sample.reserved_peak_bytes, sample.requested_peak_bytes),
            (9000, 9000, 9000),
        )
        self.assertEqual((sample.alloc_retries, sample.ooms), (3, 2))
        self.assertEqual((sample.device_allocs, sample.device_frees), (6, 7))
        self.assertEqual((sample.segments, sample.blocks), (4, 5))

    def test_readings_that_an_older_torch_lacks_are_unknown(self) -> None:
        stats = nested_stats(1000, 5000)
        del stats["requested_bytes"], stats["num_device_alloc"]
        counts = counts_of(stats)
        self.assertEqual(len(counts), 16)
        self.assertEqual((counts[4], counts[9], counts[12]), (None, None, None))
        self.assertEqual((counts[0], counts[1], counts[13], counts[15]), (1000, 5000, 7, 5))

    def test_statistics_without_the_two_that_matter_are_refused(self) -> None:
        with self.assertRaises(KeyError):
            counts_of({})


if __name__ == "__main__":
    unittest.main()
