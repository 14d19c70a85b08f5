"""Every number that steers the detector, each with the reason for it. None of them is a size in bytes of a card.

Lengths are counted in *samples* (steps, where the probe has a step hook) and in *floors* (window minima): a training
loop's own clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


@dataclass(frozen=True)
class Params:
    """Settings of one `RankDetector`. The defaults were chosen on tuning seeds of `tests/leakseries`."""

    # floors
    skip_samples: int = 4
    """First samples that are not looked at. Optimizer state, gradients and the first workspaces appear in them."""
    window_samples: int = 4
    """Samples in one floor of the finest scale. One floor hides single spikes, and keeps the cost of a sample low."""
    scale_ratio: int = 4
    """How many floors of a scale make one of the next. With `floors_kept` it leaves 32 to 128 floors for any length."""
    floors_kept: int = 128
    """Floors kept per scale; beyond it the oldest quarter is forgotten. Bounds memory and the cost of one look."""
    scales: int = 10
    """Number of scales: 128 * 4 * 4**9 samples is four years at 1 kHz."""
    look_share: float = 1 / 12
    """The scale that holds the whole run is looked at again after this share of new floors: the number of looks grows
    with the logarithm of time, which is what keeps false alarms from growing with the length of a run."""
    look_floors: int = 4
    """... and of this many new floors, and of twice as many while fewer than `young_floors` are there."""
    young_floors: int = 40
    """Before this many floors (160 steps) only growth out of a flat past can be called a leak: looks are rarer, because
    they would make up most of what a short run costs."""
    look_share_recent: float = 1 / 5
    """The same for the finer scales, which have forgotten the start: their looks go on at a constant pace."""
    forecast_points: int = 24
    """Points of the ladder that rates are fitted to: enough for eight blocks of three."""

    # shape of growth
    floors_min: int = 12
    """Fewest floors that can show a growth. Below it four rises and a pause between them cannot be told from chance."""
    confirm_share: float = 1 / 16
    """The newest share of floors only confirms the level: a level counts once memory stayed above it for this long."""
    levels: int = 32
    """Levels, evenly spread over the growth, whose crossing times describe its shape."""
    starts: int = 8
    """Onsets tried per look, the oldest first."""
    quiet_share: float = 0.05
    """Memory was flat before the onset as long as it was within this share of the growth below it."""
    quiet_reversals: float = 2.0
    """... or within this many usual reversals, whichever is more."""
    bend_ratio: float = 6.0
    """The onset is moved behind a pause in the first half that is this many times the usual one. (The first pause of
    growth with the square of time is 4.5 times its median.)"""
    bend_floors: int = 8
    """... and lasted this many floors."""
    bend_reversals: float = 100.0
    """... in a growth of this many usual reversals: in noise, pauses are chance."""
    rises_min: int = 4
    """Distinct rises wanted. Three are best-model copies, EMA start or unfreezing; a leak's fourth is soon there."""
    jump_max: float = 0.45
    """Largest share of the growth that may come in one rise. Above it it is a change of level, not growth."""
    rises_min_irregular: int = 8
    """The same when the pauses between them are not alike: recompilations, captures and workspaces come in handfuls."""
    excess_max: float = 0.12
    """How far the growth may run ahead of a straight line (share of the growth). Bounds growth that levels off:
    an exponential approach to a plateau reaches it after one time constant."""
    excess_few: float = 0.60
    """... and this over the number of rises: four equal stairs run 0.25 ahead of the line through them."""
    lag_max: float = 0.30
    """How far it may lag behind a straight line before the onset is moved later."""
    last_third_min: float = 0.70
    """Rate of the last third over the mean rate. A filling cache slows down; a leak does not (sqrt growth has 0.55)."""
    last_third_few: float = 0.80
    """... less this over the number of rises: with five stairs the last third may hold one."""
    pause_factor: float = 2.5
    """Growth has ended when nothing was gained for this many times the longest pause during it."""
    pause_factor_regular: float = 1.6
    """The same when the pauses were all alike (epochs): a regular staircase that misses a stair has ended."""
    reversal_ratio_leak: float = 6.0
    """Growth over the usual reversal (90 % quantile of floor minus ladder) that establishes it. Bounded random walks
    (sequence lengths) pass all tests at the end of about one run of a hundred with 6, and of fifty with 4."""
    reversal_ratio_suspect: float = 2.5
    """The same for suspicion."""
    tooth_ratio: float = 1.2
    """Growth seen by a scale that has forgotten the start must exceed this many usual reversals of the whole run."""
    coarse_floors_min: int = 16
    """Floors are merged in pairs, which averages noise out, down to no fewer than this."""

    # persistence
    suspect_samples: int = 48
    """Fewest samples of growth before it is suspected."""
    suspect_history_share: float = 0.08
    """... and as a share of the samples before the growth: drifts as long as this are common in a long run."""
    leak_samples: int = 64
    """Fewest samples of growth before it is called a leak, when it began in a run that was flat before."""
    leak_history_share: float = 0.33
    """... and as a share of the samples before the growth."""
    leak_steps_from_start: int = 168
    """Fewest samples or steps when memory was not flat before: warm-up, first saw-tooth and small buffers
    are over by then."""
    start_share: float = 0.25
    """Memory was flat before a growth when it was so for this share of its length; else growth followed on growth,
    and must also outlast all that came before it: the tail of a levelling-off looks linear."""
    urgent_share: float = 0.125
    """Share of the head-room eaten above which growth need not last `leak_history_share` of the history or
    `leak_steps_from_start`: waiting would cost the job."""
    host_urgent_share: float = 0.25
    """The same of host memory, which a data set that is loaded may take in minutes."""
    leak_looks: int = 2
    """Consecutive looks that must agree before a leak is called."""
    keep_looks: int = 2
    """Looks that may miss an established growth, without seeing that it ended, before it is withdrawn."""

    # most of the head-room eaten, whatever the shape
    look_eaten_min: float = 1 / 16
    """Share of the head-room from which growth is also looked at by what it has eaten, however long it took."""
    look_eaten: float = 1 / 16
    """Share of the head-room eaten between two such looks."""
    net_share: float = 0.6
    """Share of the head-room eaten at which growth of any shape counts, if memory rose again and again."""
    net_share_next: float = 0.5
    """... or at which it counts when one more rise like the largest would eat the rest."""
    net_floors_min: int = 5
    """Fewest floors for that."""
    net_tau_min: float = 0.9
    """Kendall's tau of the floors for that, with fewer floors than `net_z_floors`."""
    net_z_floors: int = 24
    """With so many floors and more, it is Mann and Kendall's test that counts: ..."""
    net_z_min: float = 6.0
    """... so many standard deviations."""
    net_fresh_max: float = 0.25
    """Share of that growth up to which memory may have been before it, for what was before not to count."""
    net_new_min: float = 0.25
    """Fewest of that growth above all that memory was before it: what falls and comes back is no leak."""
    net_jump_max: float = 0.55
    """Largest share of that growth that may come in one rise: a list that doubles gains half in its last."""
    net_rises_min: int = 4
    """Fewest rises of that growth ..."""
    net_rises_even: int = 3
    """... or so many at even times, as checkpoints and epochs are, ..."""
    net_even: float = 1.25
    """... whose pauses differ by this factor at most."""

    # smallest growth, per signal
    allocated_min_bytes: int = 8 * KIB
    """16 blocks of 512 B, the allocator's smallest: less is a handful of counters."""
    reserved_min_bytes: int = 16 * MIB
    """Eight small segments (2 MiB each): less is how segments happened to be cut."""
    nontorch_min_bytes: int = 16 * MIB
    """NVML counts in 2 MiB pages and libraries take workspaces of 8 MiB and more lazily."""
    host_min_bytes: int = 128 * MIB
    """Host memory of a healthy rank creeps (allocator arenas, imports): less is not worth a word. With 256 MiB, and two
    looks after that, a graph kept through an un-detached loss (65 KB a step) was called after half an hour."""
    host_min_s: float = 600.0
    """Seconds that host memory must have grown for the same reason, unless it has eaten `urgent_share`."""

    # signals
    peak_share: float = 3.0
    """Reserved counts as grown only beyond this many times the growth of the allocated peak: one new largest batch
    makes the allocator reserve 1 to 2.5 times its growth (curricula, new lengths), which is no fragmentation."""
    nvml_lag_s: float = 0.3
    """NVML refreshes at 10 Hz: its figure is compared with all that was reserved in this long to twice as long."""
    nvml_lag_samples: int = 32
    """The same in samples, where no clock is given."""

    # severity and forecast
    typical_limit_bytes: int = 80 * GIB
    """The card that is assumed for severity (never for times) when no limit is known: the commonest training card."""
    typical_step_s: float = 0.1
    """Seconds a step is taken to last, for severity only, when no clock is given."""
    warning_s: float = 7 * 24 * 3600.0
    """Time to out-of-memory above which growth is a note: few jobs run longer without a restart."""
    danger_share: float = 0.5
    """Share of the head-room eaten at which growth is dangerous, which is critical. Growth that ends by itself
    (buffers, caches, epochs, ramps) is over by then in nearly all healthy jobs."""
    danger_min_s: float = 60.0
    """... if it went on for this long: fast loops fill a cache in seconds."""
    overdue_factor: float = 1.5
    """Growth is not dangerous any more when nothing was gained for this many times the longest pause during it."""
    overdue_few: float = 1.5
    """Times the largest rise of the newer half, by which the last third may fall short: few rises do not spread
    evenly."""
    even_share: float = 0.1
    """How far growth of reserved memory may leave a straight line, as a share of it, and all of it is taken to stay: an
    idle cache grows by records, ever more rarely; pools that nobody else can use grow with each new user."""
    even_rises: int = 8
    """So many levels at least show that growth is even."""
    own_share_min: float = 0.0625
    """Least share that growth must take of what would be there for it, had others not taken the rest (of the host,
    other processes since it began; outside of the allocator, its idle cache): else a rank that creeps is accused of
    what a neighbour does."""
    danger_share_soon: float = 0.75
    """Share at which it is dangerous however short it was."""
    note_bytes_per_step: float = 4 * KIB
    """With no limit known, leaks up to this rate are notes: a million steps take 4 GiB, a twentieth of a card."""


DEFAULT = Params()


def of_host(params: Params) -> Params:
    """Settings for host memory, which creeps in healthy ranks: fewer floors tell what takes ten minutes and more."""
    return replace(params, floors_kept=params.floors_kept // 2)


def of_largest(params: Params) -> Params:
    """Settings for the largest value so far, fed once a floor. It never falls, and that of random values grows ever
    more slowly: so growth must be straight in many rises, have eaten most of the head-room, and is never caught by
    what it has eaten alone."""
    return replace(
        params,
        skip_samples=max(params.skip_samples // params.window_samples, 1),
        window_samples=1,
        floors_kept=params.floors_kept // 2,
        suspect_samples=params.suspect_samples // params.window_samples,
        leak_samples=params.leak_samples // params.window_samples,
        rises_min=16,
        rises_min_irregular=16,
        excess_max=params.excess_max / 2,
        last_third_min=0.85,
        net_share=inf,
        net_share_next=inf,
        danger_share=0.8,
        danger_share_soon=inf,
    )
