"""The clock of limits: no setting of the host's clock widens an hour."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tidegauge.steady_clock import PolicyClock


@dataclass
class HostClock:
    """A host whose clock somebody sets."""

    wall: float = 1.8e9
    monotonic: float = 50.0

    def wall_s(self) -> float:
        return self.wall

    def monotonic_s(self) -> float:
        return self.monotonic


def clock_of(host: HostClock, not_before_s: float | None = None) -> PolicyClock:
    return PolicyClock(wall_s=host.wall_s, monotonic_s=host.monotonic_s, not_before_s=not_before_s)


def test_clock_begins_at_the_hosts_time() -> None:
    assert clock_of(HostClock()).now_s() == 1.8e9


@given(jump_s=st.floats(-1e9, 1e9), passed_s=st.floats(0, 1e6))
def test_clock_ignores_that_the_hosts_clock_is_set(jump_s: float, passed_s: float) -> None:
    host = HostClock()
    clock = clock_of(host)
    host.wall += jump_s
    host.monotonic += passed_s
    assert abs(clock.now_s() - (1.8e9 + passed_s)) < 1e-3


def test_clock_never_runs_behind_what_was_written_down() -> None:
    assert clock_of(HostClock(wall=1.7e9), not_before_s=1.8e9).now_s() == 1.8e9


def test_clock_goes_on_after_a_restart_where_the_host_is_right() -> None:
    assert clock_of(HostClock(), not_before_s=1.7e9).now_s() == 1.8e9
