"""Another author's series of per-rank GPU memory: typical training and inference jobs, healthy and leaking. numpy only.

corpus(seed, variants, set_) -> list[Series]; to_1hz(series) -> Series.   set_='core': as it is, without `h_tenants`; 'all':
what I hold for undecidable (label 0, ambiguous) is counted too, and `h_tenants`, whose neighbours are in `nvml`.

Bytes are made of: keep (alive at the step's boundary), act (more within the step), frag (free pieces of segments in use,
cannot be given back), out (outside the allocator). need = keep + act + frag + out. Out of memory comes in the first step
whose need exceeds the card; the series ends just before it. Healthy series are scaled to fill `util` of the card.
"""
from dataclasses import dataclass, field, replace
from zlib import crc32
import numpy as np

MiB, GiB = float(1 << 20), float(1 << 30)
CARDS = [15.7, 22.1, 39.4, 44.4, 79.1, 79.1, 79.1, 93.1, 139.8, 178.4]


@dataclass
class Series:
    name: str
    family: str
    label: int
    t: np.ndarray
    alloc: np.ndarray
    peak: np.ndarray
    resv: np.ndarray
    nvml: np.ndarray
    capacity: float
    onset: float
    oom: float
    ambiguous: bool
    meta: dict = field(default_factory=dict)


FAMILIES = {}


def fam(name, label):
    def deco(f):
        FAMILIES[name] = (label, f)
        return f
    return deco


def ar(rng, n, tau, sd=1.0):
    """stationary AR(1)"""
    a = np.exp(-1 / tau)
    e = rng.normal(0, sd * np.sqrt(1 - a * a), n)
    y = np.empty(n)
    v = rng.normal(0, sd)
    for i in range(n):
        v = a * v + e[i]
        y[i] = v
    return y


def stairs(n, at, h):
    y = np.zeros(n)
    for k, x in zip(at, np.broadcast_to(h, (len(at),))):
        if 0 <= k < n:
            y[int(k)] += x
    return np.cumsum(y)


def lin(n, a, b):
    return np.clip((np.arange(n) - a) / max(b - a, 1), 0, 1)


def undecidable(need, G, t, C):
    """a person with the same figures would call it dangerous too: at some time growth (G, without noise) is at its
    highest so far, has eaten half of the room that was free when it began, went on for a minute, has not slowed down
    in its last third (0.7 of its mean pace), and came in three rises or more (none above 0.4 of it)"""
    n = len(G)
    if not G.any():
        return 0., False
    e = np.linspace(0, n, 301).astype(int)
    e = np.unique(e)
    g = np.array([G[a:b].mean() for a, b in zip(e[:-1], e[1:])])
    base = np.maximum.accumulate(np.array([(need - G)[a:b].max() for a, b in zip(e[:-1], e[1:])]))
    worst, amb = 0., False
    for x in range(3, len(g)):
        o = x - int(np.argmin(g[:x + 1][::-1]))
        gain = g[x] - g[o]
        if x - o < 3 or gain <= 0 or g[x] < g[:x].max():
            continue
        eaten = gain / max(C - base[x] - g[o], 1.)
        worst = max(worst, eaten)
        if eaten <= .5 or t[e[x + 1] - 1] - t[e[o]] < 60:
            continue
        third = (g[x] - g[o + int(round((x - o) * 2 / 3))]) / (gain / 3)
        if third >= .7 and (np.diff(g[o:x + 1]).max() <= .4 * gain):
            amb = True
    return worst, amb


class Job:
    """one rank. Bytes are shares of the card until finish()."""

    def __init__(s, rng, n=None, dt=None, jitter=True):
        s.rng = rng
        kind = rng.choice(3, p=[.3, .45, .25])
        s.dt = dt if dt else float([np.exp(rng.uniform(np.log(.05), np.log(.3))), np.exp(rng.uniform(np.log(.3), np.log(2))),
                                    np.exp(rng.uniform(np.log(2), np.log(12)))][kind])
        lo, hi = [(6000, 16000), (2500, 10000), (1200, 4500)][0 if s.dt < .3 else 1 if s.dt < 2 else 2]
        s.n = n if n else int(rng.integers(lo, hi))
        n = s.n
        s.C = rng.choice(CARDS) * GiB
        s.base = rng.uniform(.15, .5)
        s.act0 = s.base * rng.uniform(.3, 1.3)
        s.keep = np.full(n, s.base)
        s.act = s.act0 * (1 + rng.normal(0, rng.choice([.001, .01, .03]), n))
        s.out = np.full(n, 0.)
        s.frag = np.full(n, s.base * rng.uniform(.005, .05))
        s.slack = rng.uniform(.01, .2)
        s.slack_noise = rng.choice([.0, .02, .06])
        s.seg = rng.choice([2, 20]) * MiB
        s.empty = []
        # optimizer state comes with the first step
        s.keep[0] -= .6 * s.base
        s.keep[1] -= .05 * s.base
        if n > 40:
            warm = int(rng.integers(2, 30))
            s.act[:warm] *= np.linspace(.7, 1, warm)
        if jitter:
            j = rng.choice(4, p=[.3, .3, .25, .15])
            if j == 1:      # logged batch every few steps
                s.keep += (np.arange(n) % rng.integers(5, 60) == 0) * rng.uniform(.0005, .01)
            elif j == 2:    # cycles, collected now and then
                s.keep += s.teeth(int(rng.integers(20, 300)), .3) * rng.uniform(.001, .02)
            elif j == 3:    # next batch is there already, or not yet
                s.keep += (rng.random(n) < rng.uniform(.2, .8)) * rng.uniform(.001, .01)
        # time
        w = s.dt * rng.lognormal(0, rng.choice([.01, .05, .2]), n)
        stall = rng.random(n) < rng.choice([0, .002, .01])
        w = w * np.where(stall, rng.uniform(2, 12, n), 1)
        w[0] *= 10
        s.w = w
        s.evals = []
        if rng.random() < .6:
            s.evaluate(int(n / rng.integers(3, 30)), rng.uniform(10, 120) * max(s.dt, .2))
        if rng.random() < .5:
            k = int(n / rng.integers(2, 12))
            s.w[k::k] += rng.uniform(5, 60)

    def teeth(s, period, jitter=.05, late=0.):
        y = np.empty(s.n)
        i = 0
        while i < s.n:
            p = max(2, int(period * (1 + s.rng.normal(0, jitter))))
            if s.rng.random() < late:
                p *= 2
            m = min(p, s.n - i)
            y[i:i + m] = np.arange(m) / period
            i += m
        return y

    def evaluate(s, every, secs):
        """hooked steps of an evaluation: less activation, a few steps; or a pause"""
        every = max(every, 30)
        s.evals = list(range(every, s.n, every))
        if s.rng.random() < .5:
            m = int(s.rng.integers(3, 12))
            for k in s.evals:
                s.act[k:k + m] *= s.rng.uniform(.3, 1.1)
                s.keep[k:k + m] += s.act0 * .05
        else:
            for k in s.evals:
                s.w[k] += secs
        if s.rng.random() < .25:
            s.empty = s.evals

    def finish(s, name, label, onset=None, grow=None, util=None, straight=0., meta=None, outside=0.):
        """grow: (what, shape 0..1..) of a leak, scaled so that memory runs out where shape is 1."""
        rng, n, C = s.rng, s.n, s.C
        ctx = rng.uniform(.35, .9) * GiB
        s.keep, s.act, s.out, s.frag = (np.maximum(x, 0) for x in (s.keep, s.act, s.out, s.frag))
        if label == 0:
            util = util if util else rng.uniform(.55, .98)
            k = (util * C - ctx) / (s.keep + s.act + s.frag + s.out).max()
        else:
            util = util if util else rng.uniform(.35, .9)
            k = (util * C - ctx) / (s.keep + s.act + s.frag + s.out).max()   # fits without the leak
        keep, act, frag, out = s.keep * k, s.act * k, s.frag * k, s.out * k + ctx
        if hasattr(s, 'out_bytes'):
            out = out + np.minimum(s.out_bytes, max(0., .995 * C - (keep + act + frag + out).max()))
        end, oom = n, np.nan
        t = np.cumsum(s.w)
        amb = False
        if label == 1:
            what, g = grow
            need = keep + act + frag + out
            at1 = np.argmax(g >= 1) if (g >= 1).any() else n - 1
            a = C - need[:at1 + 1].max() if at1 else C - need[0]
            a = max(a, .05 * C) * 1.0
            for _ in range(40):
                grown = need + (2 if what == 'cat' else 1) * a * g
                over = np.nonzero(grown > C)[0]
                if len(over):
                    break
                a *= 1.05
            end = int(over[0])
            oom = t[end]
            if what == 'keep':
                keep = keep + a * g
            elif what == 'cat':
                keep = keep + a * g
                act = act + a * g
            elif what == 'act':
                act = act + a * g
            elif what == 'frag':
                frag = frag + a * g
            elif what == 'out':
                out = out + np.floor(a * g / (2 * MiB)) * 2 * MiB
        else:
            s.eaten, amb = undecidable(keep + act + frag + out, getattr(s, 'grown', np.zeros(n)) * k, t, C)
        keep = np.floor(keep / 512) * 512
        peak = np.floor((keep + act) / 512) * 512
        if end < 8:
            end = 8
        sl = 1 + s.slack + s.slack_noise * np.abs(rng.normal(0, 1, n))
        resv = np.empty(n)
        r, empty = 0., set(s.empty)
        for i in range(end):
            want = np.ceil((peak[i] * sl[i] + frag[i]) / s.seg) * s.seg
            if i in empty:
                r = np.ceil((keep[i] + frag[i]) / s.seg) * s.seg
            r = max(r, want)
            if r + out[i] > C:
                r = min(np.ceil((peak[i] + frag[i]) / (2 * MiB)) * 2 * MiB, C - out[i])
                r = max(r, peak[i])
            resv[i] = r
        t, keep, peak, resv, out, w = t[:end], keep[:end], peak[:end], resv[:end], out[:end], s.w[:end]
        # NVML is refreshed at 10 Hz
        ph = rng.uniform(0, .1)
        tick = np.floor((t - ph) / .1) * .1 + ph - rng.uniform(0, .06, end)
        j = np.clip(np.searchsorted(t, tick, 'left'), 0, end - 1)
        prev = np.maximum(j - 1, 0)
        seen = np.where((tick - (t[j] - w[j])) > .3 * np.minimum(w[j], s.dt), resv[j], resv[prev])
        nvml = np.ceil((seen + out[j]) / (2 * MiB)) * 2 * MiB
        nvml = np.minimum(nvml, C)
        on = np.nan if onset is None else float(t[min(onset, end - 1)])
        m = dict(meta or {}, oom_in_series=label == 1, dt=s.dt, util=util, n=end, straight_eaten=getattr(s, 'eaten', 0), inactive_split=frag[:end])
        return Series(name, name, label, t, keep, peak, resv, nvml, C, on, float(oom), bool(amb), m)


# ------------------------------------------------------------------------------------------------- healthy
def lengths(rng, n, hi=None):
    x = rng.lognormal(0, rng.uniform(.3, .7), n)
    return np.minimum(x, hi or rng.uniform(3, 6))


@fam('h_llm_varlen', 0)
def _(rng, v, name):
    """unpacked fine-tuning: activations a + b*len (+ c*len^2 without flash attention)"""
    j = Job(rng)
    x = lengths(rng, j.n)
    c = rng.choice([0, .3])
    j.act = j.act0 * (.2 + x * .5 + c * x * x * .2)
    j.w = j.w * (.4 + .6 * x / x.mean())
    return j.finish(name, 0, util=rng.uniform(.8, .985))


@fam('h_len_curriculum', 0)
def _(rng, v, name):
    """sequence length in 4-6 stages, or in many small ones, up to the length the card was sized for"""
    j = Job(rng)
    if v == 0:
        k = int(rng.integers(3, 6))
        f = 2.0 ** (stairs(j.n, np.sort(rng.uniform(.05, .9, k)) * j.n, 1) - k)
    else:
        e = rng.uniform(.3, .8)
        f = .2 + .8 * np.floor(lin(j.n, 0, e * j.n) * 24) / 24
    j.act = j.act * f * 1.5
    j.grown = j.act - j.act[:10].min()
    j.keep += j.act * rng.choice([0, .02, .05])             # logits and batch alive at the boundary
    return j.finish(name, 0, straight=float(np.ptp(j.act)) * (.9 if v else 0))


def sessions(rng, n, rate, life, size, day=None):
    """bytes held by sessions that come at random, grow while they live, and are dropped"""
    d = np.zeros(n + 2)
    slope = np.zeros(n + 2)
    m = rng.poisson(rate * n)
    at = np.sort(rng.uniform(0, n, m))
    if day is not None:
        at = at[rng.random(m) < day[at.astype(int)]]
    L = np.maximum(rng.exponential(life, len(at)), 3)
    S = size * rng.lognormal(0, .7, len(at))
    for a, l, z in zip(at, L, S):
        a, b = int(a), min(int(a + l), n)
        if b <= a:
            continue
        g = z / l
        slope[a] += g
        slope[b] -= g
        d[b] -= g * (b - a)
    return np.maximum(np.cumsum(np.cumsum(slope))[:n] + np.cumsum(d)[:n], 0)


@fam('h_kv_sessions', 0)
def _(rng, v, name):
    """KV cache of chat sessions, dropped at their end: fills to the equilibrium"""
    j = Job(rng)
    life = j.n * rng.uniform(.02, .12)
    y = sessions(rng, j.n, 40 / life, life, 1.)
    lim = np.quantile(y, rng.uniform(.9, 1))                # admission control
    y = np.minimum(y, lim) / lim
    y *= rng.uniform(.1, .6)
    j.keep += y
    j.grown = y
    j.act *= rng.uniform(.1, .5)
    return j.finish(name, 0, util=rng.uniform(.75, .97))


@fam('h_prefix_cache', 0)
def _(rng, v, name):
    """prefix cache with a cap: misses get rarer while it fills; Zipf keys"""
    j = Job(rng)
    keys = int(j.n * rng.uniform(.2, 1.5))
    p = 1 / np.arange(1, keys + 1) ** rng.uniform(.8, 1.3)
    draws = rng.choice(keys, (j.n, 3), p=p / p.sum())
    seen, y, have = set(), np.zeros(j.n), 0
    size = rng.lognormal(0, .5, keys)
    cap = size.sum() * rng.uniform(.2, 1.0)
    for i in range(j.n):
        for d in draws[i]:
            if d not in seen and have + size[d] <= cap:
                seen.add(d)
                have += size[d]
        y[i] = have
    y /= y[-1]
    f = rng.uniform(.1, .6)
    j.keep += f * y
    j.grown = f * y
    full = int(np.argmax(y >= .995))
    late = (y[full] - y[full * 2 // 3]) / max(1 / 3, 1e-9)  # pace of the last third before it was full, against its mean
    return j.finish(name, 0, straight=f if late > .6 else 0., meta=dict(late=late))


@fam('h_moe', 0)
def _(rng, v, name):
    """expert imbalance: activations wander, high at first, then balanced"""
    j = Job(rng)
    i = np.arange(j.n)
    im = rng.uniform(.3, .8) * np.exp(-i / (j.n * rng.uniform(.02, .3))) + .1
    j.act = j.act0 * (1 + im * np.abs(ar(rng, j.n, rng.uniform(2, 400))) + .05 * np.abs(rng.normal(0, 1, j.n)))
    j.slack_noise = .06
    return j.finish(name, 0, util=rng.uniform(.75, .97))


@fam('h_unfreeze', 0)
def _(rng, v, name):
    """layer groups unfrozen at epochs: gradients, state and activations of each"""
    j = Job(rng)
    k = int(rng.integers(2, 9))
    ep = j.n / (k + rng.integers(1, 8))
    h = rng.lognormal(0, .5, k)
    f = rng.uniform(.1, .5)
    y = stairs(j.n, ep * np.arange(1, k + 1), h / h.sum())
    j.keep += f * y
    j.act *= .5 + .5 * y
    j.grown = f * y
    return j.finish(name, 0, straight=f if k >= 4 else 0.)


@fam('h_lora_adapters', 0)
def _(rng, v, name):
    """adapters loaded on demand up to a number; sometimes one is put out"""
    j = Job(rng)
    k = int(rng.integers(6, 40))
    at = np.cumsum(rng.exponential(j.n * rng.uniform(.2, .8) / k, k))
    f = rng.uniform(.02, .2)
    j.grown = f * stairs(j.n, at, rng.lognormal(0, .4, k) / k)
    j.keep += j.grown
    return j.finish(name, 0)


@fam('h_ema_late', 0)
def _(rng, v, name):
    """EMA from a late step on, a copy of the best weights, one teacher"""
    j = Job(rng)
    k = int(rng.integers(1, 4))
    j.keep += stairs(j.n, rng.uniform(.02, .8, k) * j.n, j.base * rng.uniform(.15, .3))
    return j.finish(name, 0, util=rng.uniform(.7, .98))


@fam('h_compile_graphs', 0)
def _(rng, v, name):
    """recompilation and a graph pool for each new shape: coupons, ever rarer"""
    j = Job(rng)
    k = int(rng.integers(6, 50))
    p = rng.dirichlet(np.full(k, rng.uniform(.5, 3)))
    first = rng.geometric(np.maximum(p * rng.uniform(.02, .4), 2 / j.n))
    h = rng.lognormal(0, .6, k) / k
    j.grown = rng.uniform(.05, .4) * stairs(j.n, first, h)
    j.frag += j.grown
    for f in first:
        if f < j.n:
            j.w[f] += rng.uniform(5, 60)
    return j.finish(name, 0)


@fam('h_ckpt_toggle', 0)
def _(rng, v, name):
    """activation checkpointing switched on and off, or a factor by stage"""
    j = Job(rng)
    m = rng.random(j.n) < 0
    k = np.sort(rng.uniform(.02, .98, rng.integers(1, 7))) * j.n
    m = (stairs(j.n, k, 1) % 2 == 1) ^ (rng.random() < .5)
    j.act *= np.where(m, rng.uniform(.2, .5), 1)
    return j.finish(name, 0, util=rng.uniform(.75, .98))


@fam('h_replay_gpu', 0)
def _(rng, v, name):
    """replay buffer on the card that is allocated as it fills, 30-60 % of the card (undecidable beyond half of the room)"""
    j = Job(rng)
    start, e = j.n * rng.uniform(0, .1), j.n * rng.uniform(.15, .8)
    pace = np.maximum(.3, 1 + .3 * ar(rng, j.n, j.n / 30))
    y = np.clip(np.cumsum(np.where(np.arange(j.n) > start, pace, 0)) / pace.mean() / (e - start), 0, 1)
    f = j.base * rng.uniform(.6, 2.5) * (1 if v else .5)
    j.keep += f * y
    j.grown = f * y
    return j.finish(name, 0, util=rng.uniform(.6, .95), straight=f)


@fam('h_replay_chunks', 0)
def _(rng, v, name):
    """replay in chunks of many episodes, fast while the policy acts at random, then at the pace of training; below 45 % of the room"""
    j = Job(rng)
    k = int(rng.integers(10, 60))
    a = j.n * rng.uniform(.02, .1)
    at = np.concatenate([np.sort(rng.uniform(0, a, k // 3)), np.sort(rng.uniform(a, j.n * rng.uniform(.2, .9), k - k // 3))])
    f = rng.uniform(.05, .2)
    y = stairs(j.n, at, 1 / k)
    j.keep += f * y
    j.grown = f * y
    return j.finish(name, 0, util=rng.uniform(.5, .75), straight=f)


@fam('h_gan_resize', 0)
def _(rng, v, name):
    """progressive resolution: activations double with each, batch halves sometimes, layers are faded in"""
    j = Job(rng)
    k = int(rng.integers(3, 7))
    at = (np.arange(1, k + 1) + rng.normal(0, .05, k)) * j.n / (k + 1)
    lvl = stairs(j.n, at, 1)
    j.act = j.act * 1.7 ** lvl / 1.7 ** k * 2
    add = lvl / k * rng.uniform(.02, .15)
    j.keep += add
    j.grown = add + j.act0 * 2 * (1.7 ** lvl - 1) / 1.7 ** k
    j.empty = [int(a) for a in at] if rng.random() < .5 else []
    return j.finish(name, 0)


@fam('h_fsdp', 0)
def _(rng, v, name):
    """unsharded units in flight at the boundary; reserved creeps and settles"""
    j = Job(rng)
    u = j.base * rng.uniform(.03, .15)
    j.keep += u * rng.choice(3, j.n, p=[.7, .2, .1])
    j.act *= 1 + .1 * np.abs(rng.normal(0, 1, j.n))
    j.frag += u * 2 * (1 - np.exp(-np.arange(j.n) / (j.n * rng.uniform(.01, .08))))
    j.slack_noise = .06
    return j.finish(name, 0, util=rng.uniform(.8, .98))


@fam('h_epoch_metrics', 0)
def _(rng, v, name):
    """predictions kept for the metric of an epoch and given back; 1-3 epochs, or 6-20 (first tooth beyond half: undecidable)"""
    j = Job(rng)
    k = rng.uniform(1.2, 3.6) if v == 0 else rng.uniform(6, 20)
    f = rng.uniform(.02, .4)
    y = j.teeth(int(j.n / k), .0)
    j.keep += f * y
    j.grown = f * y
    return j.finish(name, 0, straight=f)


@fam('h_eval_state', 0)
def _(rng, v, name):
    """a phase of evaluation with steps of its own: state grows, then is reset; training between is flat"""
    j = Job(rng)
    k = int(rng.integers(1, 6))
    per, m = j.n // k, int(j.n / k * rng.uniform(.05, .3))
    f = rng.uniform(.05, .35)
    g = np.zeros(j.n)
    for a in range(per - m, j.n, per):
        b = min(a + m, j.n)
        g[a:b] = np.arange(b - a) / m
        j.act[a:b] *= .4
    j.keep += f * g
    j.grown = f * g
    return j.finish(name, 0, straight=f)


@fam('h_batch_ramp', 0)
def _(rng, v, name):
    """micro-batch ramps up in 5-16 stages: only what a step needs in between grows"""
    j = Job(rng)
    k = int(rng.integers(5, 17))
    e = rng.uniform(.2, .8)
    f = rng.uniform(.2, .6)
    y = np.floor(lin(j.n, 0, e * j.n) * k) / k
    j.act = j.act * (f + (1 - f) * y) * 1.5
    j.grown = j.act - j.act[:3].min()
    # straight to the end of the room is as bad as a leak of peaks; beyond three quarters undecidable
    return j.finish(name, 0, straight=float(np.ptp(j.act)) * .67)


@fam('h_sparse_state', 0)
def _(rng, v, name):
    """rows or tables of embeddings get their state when first seen: distinct Zipf items, ever slower"""
    j = Job(rng)
    items = int(10 ** rng.uniform(2.5, 4.5))
    p = 1 / np.arange(1, items + 1) ** rng.uniform(.9, 1.4)
    p /= p.sum()
    b = rng.uniform(.5, 20)
    i = np.unique(np.geomspace(1, j.n, 150).astype(int))
    y = np.array([(1 - (1 - p) ** (b * x)).sum() for x in i])
    y = np.interp(np.arange(1, j.n + 1), i, y)
    y += np.sqrt(np.maximum(y, 1)) * .1 * np.sort(rng.random(j.n))
    y = np.maximum.accumulate(y)
    f = rng.uniform(.1, .6)
    j.keep += f * y / y[-1]
    j.grown = f * y / y[-1]
    return j.finish(name, 0)


@fam('h_nccl_lazy', 0)
def _(rng, v, name):
    """communicators and channels made when first used, most early, some at the first evaluation or checkpoint"""
    j = Job(rng)
    k = int(rng.integers(4, 20))
    at = np.concatenate([rng.exponential(20, k - 2) + 1, j.n * rng.uniform(.05, .6, 2)])
    j.out_bytes = stairs(j.n, np.sort(at), rng.uniform(16, 300, k) * MiB)
    return j.finish(name, 0, util=rng.uniform(.8, .985))


@fam('h_tenants', 0)
def _(rng, v, name):
    """only the card's figure is readable: neighbours come, grow, go (in `nvml`)"""
    j = Job(rng)
    y = np.zeros(j.n)
    for _k in range(int(rng.integers(2, 9))):
        a = int(rng.uniform(0, .9) * j.n)
        b = min(j.n, a + int(rng.exponential(.3) * j.n) + 5)
        warm = int(rng.uniform(5, 200))
        y[a:b] += rng.uniform(.03, .2) * np.minimum(1, np.arange(b - a) / warm)
    j.out += y
    return j.finish(name, 0, util=rng.uniform(.7, .97))


@fam('h_diffusion_buckets', 0)
def _(rng, v, name):
    """aspect buckets of about the same area, several resolutions; cudnn's search at each first shape"""
    j = Job(rng)
    k = int(rng.integers(6, 40))
    a = rng.choice([.4, 1, 1.9]) * rng.uniform(.9, 1.1, k) if rng.random() < .5 else rng.choice([.4, 1, 1.9], k) * rng.uniform(.9, 1.1, k)
    p = rng.dirichlet(np.full(k, .7))
    b = rng.choice(k, j.n, p=p)
    j.act = j.act0 * a[b]
    _u, first = np.unique(b, return_index=True)
    j.act[first] *= rng.uniform(1, 1.4, len(first))
    j.frag += j.act0 * rng.uniform(.05, .4) * stairs(j.n, first, 1 / k)
    j.slack_noise = .06
    return j.finish(name, 0, util=rng.uniform(.8, .985))


@fam('h_gnn', 0)
def _(rng, v, name):
    """sampled graphs, sizes with a heavy tail; the next one is on the card at the boundary"""
    j = Job(rng)
    x = np.minimum(rng.pareto(rng.uniform(1.7, 3.5), j.n) + .5, rng.uniform(8, 25))
    j.act = j.act0 * .3 * x
    j.keep += j.act0 * rng.uniform(.01, .08) * np.roll(x, -1)
    j.slack_noise = .06
    return j.finish(name, 0, util=rng.uniform(.7, .98))


@fam('h_cudnn_warm', 0)
def _(rng, v, name):
    """benchmark mode: tall peaks at first shapes, workspaces settle slowly"""
    j = Job(rng)
    k = int(rng.integers(5, 60))
    first = (j.n * rng.beta(.4, 2, k)).astype(int)
    for f in first:
        j.act[f] *= rng.uniform(1.1, 2)
    j.out_bytes = stairs(j.n, np.sort(first), rng.uniform(2, 20) * MiB)
    return j.finish(name, 0, util=rng.uniform(.7, .98))


@fam('h_gpu_prefetch', 0)
def _(rng, v, name):
    """queue of batches on the card, depth wanders with the loader; batches of random size"""
    j = Job(rng)
    d = int(rng.integers(2, 16))
    q = np.clip(np.round(d / 2 + d / 2 * ar(rng, j.n, rng.uniform(5, 600))), 0, d)
    q[:d] = np.minimum(q[:d], np.arange(min(d, j.n)))
    j.keep += rng.uniform(.005, .04) * q * rng.uniform(.7, 1.3, j.n)
    return j.finish(name, 0)


@fam('h_log_buffer', 0)
def _(rng, v, name):
    """something is collected and written every N steps; a write is late now and then"""
    j = Job(rng)
    j.grown = rng.uniform(.005, .2) * j.teeth(int(rng.uniform(100, 2000)), rng.choice([0, .1, .3]), .04)
    j.keep += j.grown
    return j.finish(name, 0)


@fam('h_rlhf', 0)
def _(rng, v, name):
    """generation and training in turn; answers get longer up to the limit"""
    j = Job(rng)
    it = int(rng.integers(8, 40))
    ph = np.arange(j.n) % it
    gen = ph < it * rng.uniform(.3, .7)
    tau = j.n * rng.uniform(.1, .5)
    L = .3 + .7 * (1 - np.exp(-np.arange(j.n) / tau)) * (1 + .08 * ar(rng, j.n, j.n / 60))
    L = np.minimum(L, rng.uniform(.8, 1))
    j.keep += rng.uniform(.02, .1) * L * (ph / it)
    j.act = j.act0 * L * np.where(gen, .5 + ph / it, 1) * rng.uniform(.9, 1.1, j.n)
    j.empty = list(range(0, j.n, it)) if rng.random() < .5 else []
    return j.finish(name, 0, util=rng.uniform(.75, .97))


@fam('h_history_full', 0)
def _(rng, v, name):
    """L-BFGS history or a memory bank: fills early, then replaces"""
    j = Job(rng)
    m = int(rng.uniform(20, 400))
    f = rng.uniform(.03, .4)
    j.keep += f * lin(j.n, 1, m)
    j.grown = f * lin(j.n, 1, m)
    return j.finish(name, 0, straight=f if m * j.dt > 60 else 0)


@fam('h_last_k_copies', 0)
def _(rng, v, name):
    """the last K copies of the weights are kept (K of 3-5), for averaging or as opponents"""
    j = Job(rng)
    k = int(rng.integers(3, 6))
    ep = j.n / (k + rng.uniform(2, 12))
    f = j.base * rng.uniform(.1, .3)
    y = stairs(j.n, ep * np.arange(1, k + 1), 1.)
    j.keep += f * y
    j.grown = f * y
    return j.finish(name, 0, straight=f * k if k >= 4 else 0)


@fam('h_second_stage', 0)
def _(rng, v, name):
    """stage two with higher resolution or a larger head: a jump and a warm-up; sometimes memory falls first"""
    j = Job(rng)
    a = int(j.n * rng.uniform(.2, .8))
    up = 1 - np.exp(-np.maximum(np.arange(j.n) - a, 0) / rng.uniform(3, 100))
    j.act = j.act * np.where(np.arange(j.n) >= a, 1 + rng.uniform(.2, 1.5) * up, 1)
    j.keep += np.where(np.arange(j.n) >= a, rng.uniform(-.3, .5) * j.base * up, 0)
    j.empty = [a]
    return j.finish(name, 0)


@fam('h_day_load', 0)
def _(rng, v, name):
    """server whose sessions follow the day: half a wave or more, up to 60 % of the room"""
    j = Job(rng, n=int(rng.integers(5000, 14000)), dt=rng.uniform(1, 6))
    day = .25 + .75 * np.sin(np.pi * (np.arange(j.n) / j.n * rng.uniform(.8, 3) + rng.uniform(0, .3))) ** 2
    life = j.n * rng.uniform(.004, .03)
    y = sessions(rng, j.n, 60 / life, life, 1., day)
    y /= y.max()
    j.grown = rng.uniform(.05, .25) * y
    j.keep += j.grown
    return j.finish(name, 0, util=rng.uniform(.5, .8))


@fam('h_gc_manual', 0)
def _(rng, v, name):
    """collection by hand each N steps, or Python's own at odd times: cycles with tensors"""
    j = Job(rng)
    j.grown = rng.uniform(.02, .2) * j.teeth(int(rng.uniform(50, 1000)), rng.choice([.0, .5]))
    j.keep += j.grown
    return j.finish(name, 0)


# --------------------------------------------------------------------------------------------------- leaks
def start(j, lo=0., hi=.35):
    return int(j.n * j.rng.uniform(lo, hi)) if j.rng.random() < .7 else 3


@fam('l_loss_graph', 1)
def _(rng, v, name):
    """total += loss: what each step saved stays, by the length of its batch"""
    j = Job(rng)
    x = lengths(rng, j.n)
    j.act = j.act0 * (.3 + .4 * x)
    a = start(j)
    g = np.cumsum(np.where(np.arange(j.n) >= a, x, 0))
    return j.finish(name, 1, a, ('keep', g / (g[-1] * rng.uniform(.5, .95))))


@fam('l_epoch_graph', 1)
def _(rng, v, name):
    """a graph is kept per epoch: even stairs"""
    j = Job(rng)
    k = int(rng.integers(6, 26))
    ep = j.n / (k + 1)
    a = int(ep * rng.integers(1, 4))
    at = np.arange(a, j.n, ep) + rng.normal(0, .01 * ep, len(np.arange(a, j.n, ep)))
    return j.finish(name, 1, a, ('keep', stairs(j.n, at, rng.uniform(.85, 1.15, len(at))) / len(at) * 1.1))


@fam('l_eval_only', 1)
def _(rng, v, name):
    """predictions of each evaluation are kept; evaluation has steps of its own"""
    j = Job(rng)
    k = int(rng.integers(8, 41))
    per = j.n // (k + 1)
    m = max(3, int(per * rng.uniform(.02, .3)))
    inc = np.zeros(j.n)
    for s in range(per, j.n, per):
        inc[s:s + m] = 1
        j.act[s:s + m] *= rng.uniform(.3, .6)
    g = np.cumsum(inc)
    return j.finish(name, 1, per, ('keep', g / g[-1] * 1.1))


@fam('l_rare_event', 1)
def _(rng, v, name):
    """an exception or a skipped step keeps its frame: 12-60 large blocks at random times"""
    j = Job(rng)
    k = int(rng.integers(12, 61))
    at = np.sort(rng.uniform(0, j.n, k))
    return j.finish(name, 1, int(at[0]), ('keep', stairs(j.n, at, rng.lognormal(0, .5, k)) / k * 1.1))


@fam('l_tiny', 1)
def _(rng, v, name):
    """a few hundred KiB a step under random lengths; memory runs out after 20,000 steps"""
    n = int(rng.integers(18000, 30000))
    j = Job(rng, n=n, dt=rng.uniform(.1, 1))
    x = lengths(rng, n)
    j.act = j.act0 * (.3 + .4 * x)
    j.keep += j.act0 * .02 * np.roll(x, -1)
    a = start(j, .0, .2)
    return j.finish(name, 1, a, ('keep', lin(n, a, n * .9) * 1.0 + np.maximum(0, (np.arange(n) - .9 * n) / n)),
                    util=rng.uniform(.8, .97))


@fam('l_late', 1)
def _(rng, v, name):
    """begins after 60-85 % of the job"""
    j = Job(rng)
    a = int(j.n * rng.uniform(.6, .85))
    return j.finish(name, 1, a, ('keep', np.maximum(np.arange(j.n) - a, 0) / (j.n - a) * 1.1))


@fam('l_heavy_noise', 1)
def _(rng, v, name):
    """a straight leak below what wanders by 5-20 % of the room"""
    j = Job(rng)
    a = start(j)
    util = rng.uniform(.4, .8)
    amp = (1 - util) / util * (j.base + j.act0) * rng.uniform(.05, .2)
    j.keep += amp * (1 + np.clip(ar(rng, j.n, rng.choice([1, 10, 100])), -1, 3))
    return j.finish(name, 1, a, ('keep', np.maximum(np.arange(j.n) - a, 0) / (j.n - a) * 1.2), util=util)


@fam('l_slowing', 1)
def _(rng, v, name):
    """its pace halves, twice or three times, and goes on to the end"""
    j = Job(rng)
    a = start(j, 0, .2)
    k = int(rng.integers(1, 4))
    cut = a + np.sort(rng.uniform(.1, .6, k)) * (j.n - a)
    r = .5 ** stairs(j.n, cut, 1) * (np.arange(j.n) >= a)
    g = np.cumsum(r)
    return j.finish(name, 1, a, ('keep', g / g[-1] * 1.1))


@fam('l_float_key', 1)
def _(rng, v, name):
    """a cache whose key is a float: hardly ever a hit; sizes by bucket"""
    j = Job(rng)
    a = start(j)
    new = rng.random(j.n) < rng.uniform(.1, 1)
    s = rng.choice([1, 2, 4, 8], j.n, p=[.4, .3, .2, .1])
    g = np.cumsum(np.where(np.arange(j.n) >= a, new * s, 0)).astype(float)
    return j.finish(name, 1, a, ('keep', g / g[-1] * 1.1))


@fam('l_hooks', 1)
def _(rng, v, name):
    """one more hook each epoch, each keeps something a step: the pace grows by epoch"""
    j = Job(rng)
    ep = int(j.n / rng.integers(5, 25))
    r = (np.arange(j.n) // ep).astype(float)
    g = np.cumsum(r)
    return j.finish(name, 1, ep, ('keep', g / g[-1] * 1.1))


@fam('l_outside', 1)
def _(rng, v, name):
    """streams, handles, workspaces outside torch: 8-64 MiB at random or by epoch"""
    j = Job(rng)
    k = int(rng.integers(30, 400))
    a = start(j)
    at = np.sort(rng.uniform(a, j.n, k)) if v == 0 else np.linspace(a, j.n, k)
    return j.finish(name, 1, a, ('out', stairs(j.n, at, 1 / k) * 1.1), util=rng.uniform(.6, .92))


@fam('l_fragments', 1)
def _(rng, v, name):
    """fragments creep: reserved rises, tensors do not"""
    j = Job(rng)
    x = lengths(rng, j.n)
    j.act = j.act0 * (.3 + .4 * x)
    a = start(j, 0, .2)
    inc = (rng.random(j.n) < rng.uniform(.02, .5)) * rng.exponential(1, j.n) * (np.arange(j.n) >= a)
    g = np.cumsum(inc)
    return j.finish(name, 1, a, ('frag', g / g[-1] * 1.1))


@fam('l_saw', 1)
def _(rng, v, name):
    """with a buffer that is flushed: teeth of 5-30 % of the room"""
    j = Job(rng)
    util = rng.uniform(.4, .8)
    room = (1 - util) / util * (j.base + j.act0)
    j.keep += room * rng.uniform(.05, .3) * j.teeth(int(rng.uniform(.02, .2) * j.n), .1)
    a = start(j)
    return j.finish(name, 1, a, ('keep', np.maximum(np.arange(j.n) - a, 0) / (j.n - a) * 1.3), util=util)


@fam('l_pauses', 1)
def _(rng, v, name):
    """pauses of hours: the job stands still (v 0), or it runs without growth (v 1)"""
    j = Job(rng)
    k = int(rng.integers(2, 7))
    r = np.ones(j.n)
    if v == 0:
        j.w[rng.integers(50, j.n, k)] += rng.uniform(1800, 20000, k)
    else:
        for s in rng.uniform(.05, .9, k):
            r[int(s * j.n):int((s + rng.uniform(.02, .1)) * j.n)] = 0
    g = np.cumsum(r)
    return j.finish(name, 1, 3, ('keep', g / g[-1] * 1.1))


@fam('l_sessions', 1)
def _(rng, v, name):
    """sessions of a server, some of which are never dropped, below a daily load"""
    j = Job(rng, n=int(rng.integers(6000, 14000)), dt=rng.uniform(.5, 4))
    day = .4 + .6 * np.sin(np.pi * np.arange(j.n) / j.n * rng.uniform(1, 5)) ** 2
    life = j.n * rng.uniform(.003, .02)
    util = rng.uniform(.4, .8)
    y = sessions(rng, j.n, 30 / life, life, 1., day)
    j.keep += y / y.max() * (1 - util) / util * (j.base + j.act0) * rng.uniform(.05, .3)
    lost = rng.random(j.n) < day * rng.uniform(.01, .2)
    g = np.cumsum(lost * rng.lognormal(0, .7, j.n))
    return j.finish(name, 1, 3, ('keep', g / g[-1] * 1.2), util=util)


@fam('l_peak_only', 1)
def _(rng, v, name):
    """what a step needs grows step by step (memory of a rollout, history fed back); nothing of it is kept at its end"""
    j = Job(rng)
    a = start(j)
    g = np.maximum(np.arange(j.n) - a, 0) / (j.n - a) * 1.1
    return j.finish(name, 1, a, ('act', g))


@fam('l_comm_groups', 1)
def _(rng, v, name):
    """a new process group per epoch or evaluation, never destroyed: stairs outside"""
    j = Job(rng)
    k = int(rng.integers(8, 50))
    per = j.n / (k + 1)
    at = per * np.arange(1, k + 1)
    return j.finish(name, 1, int(per), ('out', stairs(j.n, at, 1 / k) * 1.1), util=rng.uniform(.6, .92))


@fam('l_cat', 1)
def _(rng, v, name):
    """history = torch.cat([history, new]): needs twice what it keeps for a moment"""
    j = Job(rng)
    a = start(j)
    g = np.maximum(np.arange(j.n) - a, 0) / (j.n - a) * 1.1
    return j.finish(name, 1, a, ('cat', g))


@fam('l_checkpoint_copy', 1)
def _(rng, v, name):
    """each checkpoint leaves its copy on the card: 5-10 large stairs"""
    j = Job(rng)
    k = int(rng.integers(5, 11))
    per = j.n / (k + 1)
    at = per * np.arange(1, k + 1)
    return j.finish(name, 1, int(per), ('keep', stairs(j.n, at, 1 / k) * 1.05))


@fam('l_after_unfreeze', 1)
def _(rng, v, name):
    """two or three healthy stairs first, then a leak"""
    j = Job(rng)
    k = int(rng.integers(2, 4))
    j.keep += stairs(j.n, np.sort(rng.uniform(.02, .4, k)) * j.n, rng.uniform(.02, .1))
    a = int(j.n * rng.uniform(.4, .7))
    return j.finish(name, 1, a, ('keep', np.maximum(np.arange(j.n) - a, 0) / (j.n - a) * 1.1))


@fam('l_curriculum', 1)
def _(rng, v, name):
    """keeps something by length, and lengths go up in stages"""
    j = Job(rng)
    k = int(rng.integers(2, 5))
    f = 2.0 ** (stairs(j.n, np.sort(rng.uniform(.1, .8, k)) * j.n, 1) - k)
    j.act = j.act * (.3 + f)
    g = np.cumsum(f * rng.lognormal(0, .4, j.n))
    return j.finish(name, 1, 3, ('keep', g / g[-1] * 1.1))


@fam('l_bursts', 1)
def _(rng, v, name):
    """leaks only while a phase runs (data of one kind, generation), which comes again every few hundred steps"""
    j = Job(rng)
    per = int(j.n / rng.uniform(5, 30))
    r = ((np.arange(j.n) + rng.integers(per)) % per) < per * rng.uniform(.1, .6)
    g = np.cumsum(r * rng.lognormal(0, .5, j.n))
    a = int(np.argmax(g > 0))
    return j.finish(name, 1, a, ('keep', g / g[-1] * 1.1))


# --------------------------------------------------------------------------------------------------- views
def corpus(seed, variants=2, set_=None):
    out = []
    for name, (label, f) in FAMILIES.items():
        if name == 'h_tenants' and set_ != 'all':
            continue
        for v in range(variants):
            s = f(np.random.default_rng([int(seed), crc32(name.encode()), v, 3]), v, name)
            s.name = f'{name}-{seed}-{v}'
            s.meta['undecidable'] = s.ambiguous
            if set_ == 'all':
                s.ambiguous = False
            out.append(s)
    return out


def to_1hz(s):
    """a poller that reads once a second, anywhere in a step: up to the peak in the first part, down in the second"""
    med = float(np.median(np.diff(s.t)))
    if med >= 1.0:
        return s
    rng = np.random.default_rng([crc32(s.name.encode()), 31])
    T = np.arange(rng.uniform(0, 1), s.t[-1], 1.0)
    T = np.sort(np.clip(T + np.abs(rng.normal(0, .02, len(T))), 0, s.t[-1] - 1e-6))
    if len(T) < 2:
        T = np.array([s.t[-1] * .5, s.t[-1] * .99])
    k = np.searchsorted(s.t, T, 'left')
    d = np.minimum(np.diff(s.t, prepend=0.), 5 * med)
    u = np.clip((T - (s.t[k] - d[k])) / d[k], 0, 1)          # a long step: waiting first, then work
    a0 = s.alloc[np.maximum(k - 1, 0)]
    pk = s.peak[k]
    turn = .55
    al = np.where(u < turn, a0 + (pk - a0) * u / turn, s.alloc[k] + (pk - s.alloc[k]) * (1 - u) / (1 - turn))
    al = np.floor(np.minimum(al, pk) / 512) * 512
    rs = np.where(u > .3, s.resv[k], s.resv[np.maximum(k - 1, 0)])
    rs = np.maximum(rs, al)
    peak = al.copy()                                          # highest since the last reading
    for i in range(len(T)):
        lo = k[i - 1] if i else 0
        if k[i] > lo:
            peak[i] = max(peak[i], s.peak[lo:k[i]].max())
        if u[i] >= turn:
            peak[i] = max(peak[i], pk[i])
    return replace(s, t=T, alloc=al, peak=np.minimum(peak, rs), resv=rs, nvml=np.maximum(s.nvml[k], rs), meta=dict(s.meta, hz=True, inactive_split=s.meta['inactive_split'][k]))


if __name__ == '__main__':
    from collections import Counter
    c, bad = Counter(), 0
    for seed in range(1, 4):
        for s in corpus(seed):
            c[s.label, s.ambiguous] += 1
            assert (s.alloc <= s.peak + 1).all() and (s.peak <= s.resv + 1).all() and (np.diff(s.t) > 0).all(), s.name
            assert s.resv.max() <= s.capacity + 1, s.name
            if s.label == 1:
                on = np.searchsorted(s.t, s.onset)
                print(f'{s.name:26s} n={len(s.t):6d} {s.t[-1]/3600:6.2f} h onset {on/len(s.t):.2f}  dt {s.meta["dt"]:.2f}  end need '
                      f'{s.peak[-1]/s.capacity:.2f}  a {s.alloc[3]/s.capacity:.2f}->{s.alloc[-1]/s.capacity:.2f}')
            else:
                print(f'{s.name:26s} n={len(s.t):6d} {s.t[-1]/3600:6.2f} h straight {s.meta["straight_eaten"]:.2f} amb {s.ambiguous} '
                      f' a {s.alloc[3]/s.capacity:.2f}->{s.alloc.max()/s.capacity:.2f} r {s.resv[3]/s.capacity:.2f}->{s.resv.max()/s.capacity:.2f}')
    print(c)
