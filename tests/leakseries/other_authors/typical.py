"""Synthetic GPU-memory series of training ranks (typical research / industry jobs). numpy only.

corpus(seed, variants, set_) -> list[Series];  to_1hz(series) -> Series.
Physics: need = peak + unreturnable pieces + outside.  Cached blocks are given back before an allocation fails,
so out-of-memory happens in the first step whose need exceeds the capacity; the series ends right before that step.
"""
from dataclasses import dataclass, field, replace
from zlib import crc32
import numpy as np

GiB = float(1 << 30)
MiB = float(1 << 20)
Q = 512
S2 = 2 << 20
CARDS = [15.77, 22.06, 23.64, 31.73, 39.38, 44.39, 47.53, 79.11, 79.11, 79.11, 93.09, 139.8]


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


FAMILIES = {}          # name -> (label, description, function)


def fam(name, label, desc):
    def deco(f):
        FAMILIES[name] = (label, desc, f)
        return f
    return deco


# ------------------------------------------------------------------------------------------------ shapes
def ramp(n, a, b):
    return np.clip((np.arange(n) - a) / max(b - a, 1), 0.0, 1.0)


def stairs(n, idx, h):
    y = np.zeros(n)
    for k, x in zip(idx, h):
        if k < n:
            y[int(k)] += x
    return np.cumsum(y)


def satexp(n, a, tau):
    i = np.maximum(np.arange(n) - a, 0)
    return 1 - np.exp(-i / tau)


def power(n, a, b, p):
    return ramp(n, a, b) ** p


def logg(n, a, tau, stop):
    i = np.clip(np.arange(n) - a, 0, stop - a)
    return np.log1p(i / tau) / np.log1p((stop - a) / tau)


def saw(n, periods, phase=0.0):
    """position inside the tooth 0..1, and tooth number"""
    pos = np.zeros(n)
    num = np.zeros(n, int)
    i, k = 0, 0
    while i < n:
        p = max(2, int(periods(k)))
        off = int(phase * p) if k == 0 else 0
        m = min(p - off, n - i)
        pos[i:i + m] = (np.arange(m) + off + 1) / p
        num[i:i + m] = k
        i += m
        k += 1
    return pos, num


def ar1(rng, n, rho, sd=1.0):
    e = rng.normal(0, 1, n) * np.sqrt(1 - rho * rho)
    y = np.empty(n)
    v = rng.normal()
    for i in range(n):
        v = rho * v + e[i]
        y[i] = v
    return sd * y


def act_profile(rng, n, kind):
    """activations of a step relative to the largest: in (0, 1]"""
    if kind == 'fixed':
        return np.ones(n)
    if kind == 'packed':
        return 1 - 0.03 * rng.random(n)
    if kind == 'varlen':                       # longest sample of a batch of b
        b = int(rng.choice([2, 4, 8, 16]))
        ln = np.exp(rng.normal(0, rng.uniform(.3, .7), (n, b))).max(1)
        top = np.quantile(ln, rng.uniform(.97, .999))
        return np.clip(ln / top, .08, 1)
    if kind == 'bucket':
        m = int(rng.integers(3, 12))
        lv = np.sort(rng.uniform(.45, 1, m))
        lv[-1] = 1
        return rng.choice(lv, n)
    if kind == 'moe':
        return np.clip(.88 + .05 * ar1(rng, n, rng.uniform(.7, .98)) + .02 * rng.normal(size=n), .5, 1)
    if kind == 'gnn':
        return np.clip(rng.gamma(8, 1, n) / 17, .1, 1)
    if kind == 'multiscale':                   # size changes every 10 steps
        lv = np.linspace(.4, 1, 10)
        return np.repeat(rng.choice(lv, n // 10 + 1), 10)[:n]
    raise KeyError(kind)


ACTS = ['fixed', 'fixed', 'fixed', 'packed', 'packed', 'varlen', 'varlen', 'bucket', 'moe', 'gnn', 'multiscale']


class Job:
    def __init__(s, rng, n=None, nmin=300, nmax=12000, dt=None, dtmin=.02, dtmax=30., p0=None, act=None, jit=None,
                 warm=None, eval_=None, ckpt=None, actshare=None, mintime=240., dtnoise=None):
        s.rng = rng
        s.cap = float(int(rng.choice(CARDS) * GiB) // S2 * S2)
        s.n = n = int(n if n else np.exp(rng.uniform(np.log(nmin), np.log(nmax))))
        if dt is None:
            lo = max(dtmin, mintime / n)
            dt = float(np.exp(rng.uniform(np.log(lo), np.log(max(dtmax, lo * 1.01)))))
        s.dt0 = dt
        sg = rng.choice([.01, .04, .12]) if dtnoise is None else dtnoise
        s.dt = dt * np.exp(rng.normal(0, sg, n))
        strag = rng.random(n) < rng.choice([0, .002, .01])
        s.dt[strag] *= rng.uniform(1.5, 6, int(strag.sum()))
        if rng.random() < .15:                              # throttling, other data, another cluster load
            s.dt[int(n * rng.uniform(.1, .9)):] *= rng.choice([.4, .7, 1.6, 4.])
        s.p0 = p0 = float(rng.uniform(.35, .8) if p0 is None else p0)
        if rng.random() < .4 and p0 < .85:                  # people fill their cards
            s.p0 = p0 = p0 + (.93 - p0) * float(rng.uniform(.2, .7))
        ctx = rng.uniform(.33, .62) * GiB + (rng.uniform(.1, 1.6) * GiB if s.cap > 30 * GiB and rng.random() < .7 else 0)
        ctx = min(ctx, .12 * s.cap)
        s.out0 = ctx
        s.outside = np.full(n, ctx)
        if rng.random() < .4 and warm is not True:         # lazily made NCCL communicators, cuBLAS workspaces
            j = int(rng.integers(1, 5))
            s.outside[:j] *= rng.uniform(.6, .95)
        s.need0 = p0 * s.cap
        torch_ = s.need0 - ctx
        s.a0 = torch_ * float(rng.uniform(.12, .7) if actshare is None else actshare)
        s.A0 = torch_ - s.a0
        s.H = s.cap - s.need0
        s.kind = act or str(rng.choice(ACTS))
        s.act = s.a0 * act_profile(rng, n, s.kind)
        jk = jit or str(rng.choice(['none', 'none', 'batch', 'batch', 'rough']))
        s.alloc = np.full(n, s.A0)
        if jk == 'batch':
            s.alloc -= min(rng.uniform(.2, 60) * MiB, .01 * s.A0) * rng.random(n)
        elif jk == 'rough':
            s.alloc -= s.A0 * rng.uniform(.005, .03) * rng.random(n)
        s.frag = np.full(n, rng.uniform(0, .004) * s.A0 if rng.random() < .5 else 0.)
        s.alloc -= s.frag                                   # need0 stays the upper bound
        s.empty = np.zeros(n, bool)
        s.slack = rng.choice([0, .01, .04, .1]) if s.kind != 'fixed' else rng.choice([0, 0, .01, .03])
        s.meta = {'oom_in_series': False, 'act': s.kind, 'jit': jk}
        warm = rng.random() < .35 if warm is None else warm
        if not warm:
            k = int(rng.choice([1, 1, 1, 2, 4, 8]))
            if rng.random() < .8:                           # optimizer state comes with the first optimizer step
                s.alloc[:k] = s.alloc[:k] * rng.uniform(.3, .8)
            s.act[0] = s.a0                                 # autotuning takes what it can
            s.dt[0] *= rng.uniform(1, 8)
        if (rng.random() < .45) if eval_ is None else eval_:
            s.overlay_eval()
        if (rng.random() < .4) if ckpt is None else ckpt:
            s.overlay_ckpt()

    def overlay_eval(s, top=.97, length=None, per=None):
        rng, n = s.rng, s.n
        per = int(per or max(25, n / rng.uniform(3, 20)))
        m = int(length or max(1, min(per // 6, rng.integers(1, 30))))
        f = rng.uniform(.15, top)
        b = rng.uniform(0, .5) * s.a0 * max(top - f, 0)
        for k in range(per, n, per):
            e = min(n, k + m)
            s.act[k:e] = s.a0 * f * (1 - .02 * rng.random(e - k))
            s.alloc[k:max(k, e - 1)] += b                   # freed in the last step
            s.dt[k:e] *= rng.uniform(.3, .9)
            if rng.random() < .1:
                s.empty[k] = True

    def overlay_ckpt(s):
        rng, n = s.rng, s.n
        per = int(max(20, n / rng.uniform(2, 15)))
        f = rng.uniform(.7, 1)
        for k in range(per - 1, n, per):
            s.act[k] = max(s.act[k], s.a0 * f)
            s.dt[k] += s.dt0 * rng.uniform(1, 20)

    def need(s):
        prev = np.concatenate([s.alloc[:1], s.alloc[:-1]])
        return np.maximum(s.alloc, prev) + s.act + s.frag + s.outside

    # ---------------------------------------------------------------- finish
    def _series(s, family, variant, label, onset_i, ambiguous, allow_oom):
        n, rng = s.n, s.rng
        al = np.maximum(s.alloc, 64 * MiB)
        al = np.ceil(al / Q) * Q
        prev = np.concatenate([al[:1], al[:-1]])
        pk = np.ceil((np.maximum(al, prev) + np.maximum(s.act, 0)) / Q) * Q
        fr = np.maximum(s.frag, 0)
        out = np.ceil(np.maximum(s.outside, 0) / S2) * S2
        t = np.cumsum(s.dt)
        resv = np.zeros(n)
        r = 0.
        end = n
        maxn = 0.
        for i in range(n):
            lim = s.cap - out[i]
            must = -(-(pk[i] + fr[i]) // S2) * S2
            if must > lim:
                end = i
                break
            if s.empty[i]:
                r = must
            want = -(-(pk[i] * 1.0 + fr[i] + s.slack * (pk[i] - al[i])) // S2) * S2
            r = max(r, want)
            if r > lim:                                     # cached blocks are given back
                r = min(lim, must + S2 * int(rng.integers(0, 8)))
            resv[i] = r
        oom = np.nan
        if end < n:
            assert allow_oom, (family, variant, 'healthy series ran out of memory', end, n)
            assert end >= 8, (family, variant, end)
            oom = float(t[end - 1] + s.dt[end] * rng.uniform(.2, .8))
            s.meta['oom_in_series'] = True
        sl = slice(0, end)
        onset = np.nan if onset_i is None else float(t[onset_i - 1] if onset_i > 0 else 0.)
        return Series(f'{family}-{variant}', family, label, t[sl], al[sl], pk[sl], resv[sl], resv[sl] + out[sl], s.cap,
                      onset, oom, bool(ambiguous), s.meta)

    def healthy(s, family, variant, amb=False):
        top = s.need().max()
        if top > .975 * s.cap:                              # keep the shape, fit on the card
            f = (.96 * s.cap - s.out0) / (top - s.out0)
            s.alloc *= f; s.act *= f; s.frag *= f
            s.outside = s.out0 + (s.outside - s.out0) * f
        s.meta['fullest'] = float(s.need().max() / s.cap)
        return s._series(family, variant, 0, None, amb, False)

    def leak(s, family, variant, L, k=None, where='alloc', part=None, onset=None):
        """add the leak shape L (0 before onset).  k: step at which memory runs out; part: share of head-room at the end."""
        n = s.n
        L = np.maximum(np.asarray(L, float), 0)
        on = int(np.argmax(L > 0)) if onset is None else int(onset)
        base = s.need()
        hr = s.cap - base.max() if on < 1 else s.cap - max(base[:on].max(), np.quantile(base, .98))
        s.meta['planned'] = None if k is None or part is not None else int(min(k, n - 1))
        if part is not None:
            hr = s.cap - base.max()
            A = part * hr / L.max()
        else:                                               # runs out at k at the latest, never in the first 12 steps
            k = int(min(k, n - 1))
            lo = min(on + 12, k)
            i = np.arange(lo, k + 1)
            ok = i[L[i] > 0]
            A = ((s.cap - base[ok]) / L[ok]).min() * 1.0005
            over = base + A * L - s.cap
            bad = np.nonzero(over[:lo] > 0)[0]
            s.act[bad] = np.maximum(s.act[bad] - 1.02 * over[bad] - 16 * MiB, 0)
        if part is None:
            fa = {'alloc': 1., 'both': .6}.get(where, 0.)
            while True:
                x = s.alloc + fa * A * L
                nd = np.maximum(x, np.concatenate([x[:1], x[:-1]])) + s.act + s.frag + s.outside + (1 - fa) * A * L
                if nd[:k + 1].max() > s.cap:
                    break
                A *= 1.002
        add = A * L
        if where == 'alloc':
            s.alloc = s.alloc + add
        elif where == 'frag':
            s.frag = s.frag + add
        elif where == 'outside':
            s.outside = s.outside + add
        elif where == 'act':
            s.act = s.act + add
        elif where == 'both':                               # held tensors and work on them
            s.alloc = s.alloc + .6 * add
            s.act = s.act + .4 * add
        ser = s._series(family, variant, 1, on, False, True)
        s.meta['onset_step'] = on
        m = len(ser.t)
        s.meta['eaten'] = float(add[:m].max() / hr)
        assert ser.meta['oom_in_series'] or s.meta['eaten'] >= .2, (family, variant, s.meta['eaten'])
        assert ser.onset < ser.t[-1]
        return ser

    def harmless(s, family, variant, L, onset=0, where='alloc', share10=None):
        """L.max() after the series = share10 / 10 of the head-room"""
        share10 = s.rng.uniform(.005, .12) if share10 is None else share10
        add = L / L.max() * share10 / 10 * (s.cap - s.need().max())
        setattr(s, where, getattr(s, where) + add)
        ser = s._series(family, variant, -1, onset, False, False)
        s.meta['share_at_10x'] = share10
        return ser


def share(rng, straight):
    """share of the head-room that a growth takes; straight ones mostly stay below a half"""
    if not straight:
        return float(rng.uniform(.15, .88))
    return float(rng.uniform(.1, .48) if rng.random() < .75 else rng.uniform(.52, .85))


def U(rng, a, b):
    return float(rng.uniform(a, b))


def LU(rng, a, b):
    return float(np.exp(rng.uniform(np.log(a), np.log(b))))


# ================================================================================================ HEALTHY
@fam('h_llm_pretrain', 0, 'pretraining with fixed shapes, bit-exact, card 80-95 % full')
def _(rng, v, F):
    return Job(rng, act='fixed', p0=U(rng, .8, .95)).healthy(F, v)


@fam('h_sft_varlen', 0, 'fine-tuning with unpacked variable lengths; peak has heavy tails, boundary flat')
def _(rng, v, F):
    j = Job(rng, act='varlen', p0=U(rng, .7, .95), actshare=U(rng, .4, .85))
    return j.healthy(F, v)


@fam('h_frag_records', 0, 'cached (returnable) reserve creeps up with ever new shapes like log(records), then is given back at the limit')
def _(rng, v, F):
    j = Job(rng, act=str(rng.choice(['varlen', 'gnn'])), p0=U(rng, .55, .8), actshare=U(rng, .4, .8))
    n = j.n
    # fragments behind live blocks: logarithmic, bounded
    j.frag = j.frag + U(rng, .1, .6) * j.H * logg(n, 0, LU(rng, 5, n / 20), n)
    j.slack = .1
    return j.healthy(F, v)


@fam('h_cnn_epochs', 0, 'ImageNet-like epochs: evaluation and checkpoint each epoch, evaluation peak above training')
def _(rng, v, F):
    j = Job(rng, nmin=800, act=str(rng.choice(['fixed', 'multiscale'])), p0=U(rng, .6, .85), eval_=False, ckpt=True)
    per = int(j.n / U(rng, 4, 15))
    m = max(2, int(per * U(rng, .05, .2)))
    g = U(rng, .1, .7) * j.H
    for k in range(per, j.n, per):
        j.act[k:k + m] = j.a0 + g * (1 - .05 * rng.random(len(j.act[k:k + m])))
    return j.healthy(F, v)


@fam('h_rlhf_phases', 0, 'PPO: generation (KV cache climbs), scoring, training; every phase returns')
def _(rng, v, F):
    j = Job(rng, nmin=400, dtmin=.2, p0=U(rng, .4, .65), eval_=False)
    per = int(rng.integers(6, 60))
    gen = max(2, int(per * U(rng, .2, .5)))
    sc = max(1, int(per * .15))
    s_ = share(rng, True) if gen > 12 else U(rng, .3, .85)
    i = np.arange(j.n) % per
    g = np.where(i < gen, (i + 1) / gen, np.where(i < gen + sc, U(rng, .1, .4), 0))
    lens = U(rng, .8, 1) + 0 * i if rng.random() < .3 else np.repeat(rng.uniform(.8, 1, j.n // per + 1), per)[:j.n]
    j.alloc += s_ * j.H * g * lens
    j.act = np.where(i < gen, .2 * j.act, j.act)
    return j.healthy(F, v, amb=gen > 12 and s_ > .5)


@fam('h_replay_fill', 0, 'GPU replay buffer filled straight to its bound, then flat')
def _(rng, v, F):
    j = Job(rng, nmin=500, p0=U(rng, .2, .7))
    s_ = share(rng, True)
    a = int(j.n * U(rng, 0, .1)); b = a + int(j.n * U(rng, .1, .7))
    j.alloc += s_ * j.H * ramp(j.n, a, b)
    return j.healthy(F, v, amb=s_ > .5)


@fam('h_seqlen_curriculum', 0, 'sequence length raised in 3-8 stairs that end')
def _(rng, v, F):
    j = Job(rng, nmin=500, act=str(rng.choice(['fixed', 'packed'])), p0=U(rng, .35, .65), actshare=U(rng, .2, .6))
    m = int(rng.integers(2, 8))
    x = np.sort(rng.uniform(.05, .75, m)) if rng.random() < .4 else np.linspace(U(rng, .05, .2), U(rng, .4, .75), m)
    kind = rng.choice(['equal', 'doubling', 'slowing'])
    h = {'equal': np.ones(m), 'doubling': 2. ** np.arange(m), 'slowing': .6 ** np.arange(m)}[kind]
    lookalike = kind != 'slowing' and m >= 3
    s_ = share(rng, lookalike)
    g = stairs(j.n, x * j.n, h / h.sum())
    j.act += s_ * j.H * g
    j.dt *= 1 + g
    return j.healthy(F, v, amb=lookalike and s_ > .5)


@fam('h_batch_ramp', 0, 'batch-size ramp in many small stairs that ends')
def _(rng, v, F):
    j = Job(rng, nmin=600, act=str(rng.choice(['fixed', 'packed'])), p0=U(rng, .3, .65))
    m = int(rng.integers(10, 60))
    end = U(rng, .15, .7)
    s_ = share(rng, True)
    j.act += s_ * j.H * stairs(j.n, np.linspace(.01, end, m) * j.n, np.ones(m) / m)
    return j.healthy(F, v, amb=s_ > .5)


@fam('h_progressive_gan', 0, 'resolution doubled with fade-in: jump, then transition memory freed')
def _(rng, v, F):
    j = Job(rng, nmin=800, act='fixed', p0=U(rng, .2, .4))
    m = int(rng.integers(3, 6))
    s_ = U(rng, .3, .48) if rng.random() < .6 else U(rng, .5, .88)
    h = 2. ** np.arange(m); h /= h.sum() * 1.1
    x = np.linspace(.12, U(rng, .55, .8), m) * j.n
    g = stairs(j.n, x, h)
    for k, hh in zip(x, h):
        j.act[int(k):int(k + .06 * j.n)] += .1 * s_ * j.H * hh
    j.act += s_ * j.H * g * .8
    j.alloc += s_ * j.H * g * .2
    return j.healthy(F, v, amb=m >= 4 and s_ > .5)


@fam('h_unfreeze', 0, 'layer groups unfrozen one by one: gradients and optimizer state, 2-5 stairs')
def _(rng, v, F):
    j = Job(rng, nmin=400, p0=U(rng, .3, .7))
    m = int(rng.integers(2, 6))
    s_ = share(rng, m >= 3)
    x = np.linspace(.1, U(rng, .4, .7), m) * j.n
    h = rng.uniform(.5, 1.5, m)
    g = stairs(j.n, x, h / h.sum())
    j.alloc += s_ * j.H * .6 * g
    j.act += s_ * j.H * .4 * g
    return j.healthy(F, v, amb=m >= 3 and s_ > .5)


@fam('h_epoch_metrics', 0, 'predictions gathered over an epoch and dropped at its end: 8-60 teeth')
def _(rng, v, F):
    j = Job(rng, nmin=800, p0=U(rng, .35, .75))
    per = j.n / U(rng, 8, 60)
    pos, _n = saw(j.n, lambda k: per, U(rng, 0, 1))
    s_ = share(rng, True)
    j.alloc += s_ * j.H * pos
    return j.healthy(F, v, amb=s_ > .5 and per > 12)


@fam('h_slow_teeth', 0, 'slow saw-tooth, 2-5 teeth in the whole series')
def _(rng, v, F):
    j = Job(rng, nmin=500, p0=U(rng, .35, .75))
    per = j.n / U(rng, 1.8, 5)
    pos, _n = saw(j.n, lambda k: per, U(rng, 0, 1))
    s_ = share(rng, True)
    j.alloc += s_ * j.H * pos
    return j.healthy(F, v, amb=s_ > .5)


@fam('h_teeth_rising_tops', 0, 'teeth whose tops rise and level off (active learning, growing pool with a bound)')
def _(rng, v, F):
    j = Job(rng, nmin=800, p0=U(rng, .3, .7))
    m = U(rng, 8, 40)
    pos, num = saw(j.n, lambda k: j.n / m * U(rng, .9, 1.1))
    s_ = U(rng, .2, .8)
    tau = m / U(rng, 5, 12)
    j.alloc += s_ * j.H * pos * (1 - U(rng, .5, .8) * np.exp(-num / tau))
    return j.healthy(F, v)


@fam('h_teeth_falling_tops', 0, 'teeth whose tops fall (hard examples get fewer)')
def _(rng, v, F):
    j = Job(rng, nmin=600, p0=U(rng, .35, .75))
    m = U(rng, 3, 25)
    pos, num = saw(j.n, lambda k: j.n / m)
    s_ = share(rng, True)
    j.alloc += s_ * j.H * pos * U(rng, .75, .97) ** num
    return j.healthy(F, v, amb=s_ > .5 and j.n / m > 12)


@fam('h_lru_cache', 0, 'LRU cache of embeddings fills with saturating misses to its bound')
def _(rng, v, F):
    j = Job(rng, nmin=600, p0=U(rng, .3, .75))
    s_ = U(rng, .15, .78)
    a = int(j.n * U(rng, 0, .2))
    j.alloc += s_ * j.H * satexp(j.n, a, (j.n - a) / U(rng, 4, 25))
    return j.healthy(F, v)


@fam('h_zipf_log', 0, 'cache of distinct keys under Zipf access: logarithmic growth, bounded')
def _(rng, v, F):
    j = Job(rng, nmin=1000, p0=U(rng, .3, .75))
    s_ = share(rng, False)
    stop = int(j.n * U(rng, .5, 1))
    j.alloc += s_ * j.H * logg(j.n, int(.02 * j.n), j.n / LU(rng, 30, 1000), stop)
    return j.healthy(F, v)


@fam('h_sqrt_ends', 0, 'square-root growth that ends (history of a slowing scheduler)')
def _(rng, v, F):
    j = Job(rng, nmin=600, p0=U(rng, .3, .75))
    s_ = U(rng, .15, .75)
    a = int(j.n * U(rng, 0, .2))
    j.alloc += s_ * j.H * power(j.n, a, a + int(j.n * U(rng, .3, .75)), U(rng, .35, .55))
    return j.healthy(F, v)


@fam('h_recompiles', 0, 'torch.compile recompiles per new shape up to the limit: irregular stairs, ever rarer')
def _(rng, v, F):
    j = Job(rng, nmin=500, act='bucket', p0=U(rng, .5, .85))
    m = int(rng.integers(3, 9))
    x = np.unique((np.cumsum(1.6 ** np.arange(m) * rng.uniform(.5, 1.5, m))).astype(float))
    x = x / x[-1] * U(rng, .3, .8) * j.n
    h = rng.uniform(.3, 1.5, m)
    g = stairs(j.n, x, h / h.sum())
    s_ = U(rng, .1, .6)
    j.alloc += s_ * j.H * .5 * g
    j.outside += s_ * j.H * .5 * g
    for k in x:
        j.dt[min(int(k), j.n - 1)] += LU(rng, 5, 90)
    return j.healthy(F, v)


@fam('h_cudagraphs', 0, 'CUDA graph pools captured for 5-35 sizes in the first steps, then flat')
def _(rng, v, F):
    j = Job(rng, nmin=400, p0=U(rng, .5, .85), warm=False)
    m = int(rng.integers(5, 36))
    x = 2 + np.arange(m) * int(rng.integers(1, 4))
    s_ = share(rng, m > 15)
    h = np.linspace(1.5, .3, m) if m <= 15 else np.ones(m)
    j.frag += s_ * j.H * stairs(j.n, x, h / h.sum())
    return j.healthy(F, v, amb=m > 15 and s_ > .5)


@fam('h_nccl_lazy', 0, 'communicators and workspaces made lazily outside the allocator: start, first evaluation, first checkpoint')
def _(rng, v, F):
    j = Job(rng, p0=U(rng, .6, .85))
    m = int(rng.integers(2, 5))
    x = np.concatenate([[1], np.sort(rng.uniform(.02, .6, m - 1)) * j.n])
    h = rng.uniform(.5, 1.5, m)
    add = min(U(rng, .3, 3) * GiB, .7 * j.H)
    j.outside += add * stairs(j.n, x, h / h.sum())
    return j.healthy(F, v)


@fam('h_neighbour', 0, 'a helper (renderer, decoder, data workers with own context) comes and goes outside the allocator')
def _(rng, v, F):
    j = Job(rng, nmin=400, p0=U(rng, .5, .8))
    i = 0
    h = U(rng, .2, .85) * j.H
    while i < j.n:
        off = int(LU(rng, j.n / 30, j.n / 3)); on = int(LU(rng, j.n / 60, j.n / 4))
        j.outside[i + off:i + off + on] += h * U(rng, .6, 1)
        i += off + on
    return j.healthy(F, v)


@fam('h_gc_cycles', 0, 'reference cycles freed by the collector: irregular teeth of random length and height')
def _(rng, v, F):
    j = Job(rng, nmin=500, p0=U(rng, .45, .8))
    mean = LU(rng, 6, j.n / 8)
    pos, num = saw(j.n, lambda k: max(3, rng.gamma(3, mean / 3)))
    ln = np.bincount(num)
    top = np.minimum(ln / mean, 2.2) / 2.2
    s_ = share(rng, True) if mean > 8 else U(rng, .2, .8)
    j.alloc += s_ * j.H * pos * top[num]
    return j.healthy(F, v, amb=mean > 8 and s_ > .5)


@fam('h_moe', 0, 'MoE expert imbalance: activations wander and revert, rare hot experts')
def _(rng, v, F):
    j = Job(rng, act='moe', nmin=500, p0=U(rng, .6, .85), actshare=U(rng, .4, .7))
    s_ = U(rng, .1, .8)
    hot = rng.random(j.n) < LU(rng, .0005, .02)
    j.act += s_ * j.H * hot * rng.beta(2, 3, j.n)
    j.act += .15 * j.H * np.clip(ar1(rng, j.n, .99) / 3, 0, 1)
    return j.healthy(F, v)


@fam('h_wander', 0, 'mean-reverting slow drift of the boundary under noise (sampled graphs, GPU dataframes)')
def _(rng, v, F):
    j = Job(rng, nmin=800, p0=U(rng, .45, .75))
    tau = LU(rng, 20, j.n / 12)
    y = ar1(rng, j.n, np.exp(-1 / tau))
    j.alloc += U(rng, .1, .5) * j.H * np.clip(y / 6 + .5, 0, 1)
    j.alloc += U(rng, .0, .1) * j.H * rng.random(j.n)
    return j.healthy(F, v)


@fam('h_ema_late', 0, 'EMA / SWA copy begins late: one jump')
def _(rng, v, F):
    j = Job(rng, p0=U(rng, .4, .8))
    j.alloc += U(rng, .1, .85) * j.H * stairs(j.n, [j.n * U(rng, .05, .9)], [1])
    return j.healthy(F, v)


@fam('h_shampoo', 0, 'second-order preconditioners made layer by layer at their first update, and big periodic inversions')
def _(rng, v, F):
    j = Job(rng, nmin=500, p0=U(rng, .4, .7))
    a = int(j.n * U(rng, .01, .15)); m = int(rng.integers(3, 9))
    s_ = U(rng, .2, .7)
    h = rng.pareto(1.5, m) + .2
    j.alloc += s_ * j.H * stairs(j.n, a + np.arange(m), h / h.sum())
    per = int(rng.integers(10, 100))
    k = np.arange(j.n)
    j.act += (k % per == 0) * (k > a) * U(rng, .05, .95 - s_) * j.H
    return j.healthy(F, v)


@fam('h_prefetch', 0, 'device prefetch queue fills to its depth and swings with loader speed')
def _(rng, v, F):
    j = Job(rng, nmin=500, p0=U(rng, .5, .8))
    d = int(rng.integers(2, 40))
    q = 0; y = np.zeros(j.n)
    drift = ar1(rng, j.n, np.exp(-1 / LU(rng, 10, j.n / 10)))
    for i in range(j.n):
        q = min(d, max(0, q + int(np.floor(drift[i] + rng.random()))))
        y[i] = q / d
    j.alloc += U(rng, .05, .49) * j.H * y
    return j.healthy(F, v)


@fam('h_pauses', 0, 'pauses of hours (suspend, preemption on the spot), flat; sometimes the cache is dropped and refilled')
def _(rng, v, F):
    j = Job(rng, p0=U(rng, .5, .93))
    for k in rng.integers(20, j.n, int(rng.integers(1, 5))):
        j.dt[k] += LU(rng, 600, 30000)
        if rng.random() < .5:
            j.empty[k] = True
    j.meta['suspended'] = bool(rng.random() < .5)
    return j.healthy(F, v)


@fam('h_empty_cache', 0, 'empty_cache every epoch or every N steps: reserved teeth')
def _(rng, v, F):
    j = Job(rng, act=str(rng.choice(['varlen', 'gnn', 'bucket'])), p0=U(rng, .7, .95), actshare=U(rng, .4, .8))
    per = int(LU(rng, 10, j.n / 3))
    j.empty[per::per] = True
    j.slack = U(rng, .05, .2)
    return j.healthy(F, v)


@fam('h_brim', 0, 'need at 93-97 %, reserved at the limit, cached blocks given back again and again')
def _(rng, v, F):
    j = Job(rng, act=str(rng.choice(['varlen', 'bucket', 'packed', 'moe'])), p0=U(rng, .93, .97), actshare=U(rng, .3, .8))
    j.slack = U(rng, .1, .4)
    return j.healthy(F, v)


@fam('h_lbfgs', 0, 'L-BFGS history fills over 10-100 iterations, then flat')
def _(rng, v, F):
    j = Job(rng, nmax=3000, dtmin=.3, act='fixed', p0=U(rng, .25, .6))
    m = int(rng.choice([10, 20, 50, 100]))
    s_ = share(rng, True)
    j.alloc += s_ * j.H * ramp(j.n, 1, 1 + m)
    return j.healthy(F, v, amb=s_ > .5)


@fam('h_gaussian_splat', 0, '3D Gaussian splatting: densification every 100 steps with pruning and opacity resets, slowing, ends half way')
def _(rng, v, F):
    j = Job(rng, n=int(rng.integers(4000, 12000)), dtmin=.03, dtmax=.3, act='gnn', p0=U(rng, .12, .35), eval_=False)
    n = j.n
    every = n // 300
    g = power(n, int(.017 * n), n // 2, U(rng, .4, .6))
    g = g[(np.arange(n) // every) * every]
    rs = n // 10
    for k in range(rs, n // 2, rs):                         # opacity reset prunes, regrowth follows
        d = int(.03 * n)
        g[k:k + d] -= .1 * g[k] * np.linspace(1, 0, d)
    s_ = U(rng, .25, .85)
    j.alloc += s_ * j.H * .6 * g
    j.act += s_ * j.H * .4 * g * (.8 + .2 * rng.random(n))
    j.dt *= 1 + g
    return j.healthy(F, v)


@fam('h_prune_regrow', 0, 'pruning shrinks memory in stairs; dense phase brings it back to where it was')
def _(rng, v, F):
    j = Job(rng, nmin=600, p0=U(rng, .65, .93), actshare=U(rng, .15, .4))
    d = U(rng, .2, .6) * j.A0
    m = int(rng.integers(2, 9))
    j.alloc -= d * stairs(j.n, np.linspace(.05, .4, m) * j.n, np.ones(m) / m)
    a = U(rng, .45, .6)
    if rng.random() < .5:
        j.alloc += d * ramp(j.n, a * j.n, (a + U(rng, .02, .3)) * j.n)
    else:
        j.alloc += d * stairs(j.n, np.linspace(a, .9, m) * j.n, np.ones(m) / m)
    return j.healthy(F, v)


@fam('h_loss_lists', 0, 'small scalar tensors and logs kept for an epoch: tiny teeth on a flat line')
def _(rng, v, F):
    j = Job(rng, jit='none', p0=U(rng, .6, .95))
    per = max(20, j.n / U(rng, 1.5, 20))
    pos, _n = saw(j.n, lambda k: per)
    j.alloc += pos * per * Q * int(rng.integers(1, 200))
    return j.healthy(F, v)


@fam('h_snapshots', 0, 'last K snapshots kept on the device: K stairs, then a full queue')
def _(rng, v, F):
    j = Job(rng, nmin=400, p0=U(rng, .35, .7))
    K = int(rng.integers(2, 6))
    s_ = share(rng, K >= 3)
    per = j.n / U(rng, K + 2, 25)
    j.alloc += s_ * j.H * stairs(j.n, per * (1 + np.arange(K)), np.ones(K) / K)
    k = (np.arange(j.n) % max(2, int(per))) == 0             # copy before the oldest is dropped
    j.act += .5 * (1 - s_) * j.H * k * (np.arange(j.n) > per)
    return j.healthy(F, v, amb=K >= 3 and s_ > .5)


@fam('h_continual', 0, 'continual learning: exemplars and head per task, equal stairs that end')
def _(rng, v, F):
    j = Job(rng, nmin=500, p0=U(rng, .3, .7))
    m = int(rng.integers(3, 11))
    s_ = share(rng, True)
    j.alloc += s_ * j.H * stairs(j.n, np.linspace(.08, U(rng, .5, .8), m) * j.n, np.ones(m) / m)
    return j.healthy(F, v, amb=s_ > .5)


@fam('h_episode_length', 0, 'RL rollouts lengthen as the policy learns (S-curve to the episode limit)')
def _(rng, v, F):
    j = Job(rng, nmin=800, act='packed', p0=U(rng, .3, .65))
    n = j.n
    s_ = U(rng, .15, .58)
    c, w = U(rng, .2, .45) * n, U(rng, .03, .09) * n
    g = 1 / (1 + np.exp(-(np.arange(n) - c) / w))
    j.act += s_ * j.H * g * (1 - .1 * rng.random(n))
    j.dt *= 1 + 2 * g
    return j.healthy(F, v)


@fam('h_memory_bank', 0, 'memory bank of features filled in the first epoch, overwritten afterwards')
def _(rng, v, F):
    j = Job(rng, nmin=800, p0=U(rng, .4, .8))
    ep = int(j.n / U(rng, 3, 30))
    s_ = share(rng, True)
    j.alloc += s_ * j.H * ramp(j.n, 0, ep)
    return j.healthy(F, v, amb=s_ > .5)


@fam('h_generation_eval', 0, 'rare long generations in evaluation: KV cache climbs within 4-12 steps and is dropped')
def _(rng, v, F):
    j = Job(rng, nmin=500, p0=U(rng, .45, .8), eval_=False)
    per = int(j.n / U(rng, 2.5, 12)); m = int(rng.integers(3, 13))
    s_ = U(rng, .3, .9)
    for k in range(int(per * U(rng, .4, 1)), j.n - m, per):
        j.alloc[k:k + m] += s_ * j.H * (np.arange(1, m + 1) / m) ** U(rng, .4, 1) * U(rng, .85, 1)
        j.act[k:k + m] *= .3
    return j.healthy(F, v)


@fam('h_rare_big', 0, 'one to four very big events (huge sample, full-graph evaluation), each one or a few steps')
def _(rng, v, F):
    j = Job(rng, p0=U(rng, .35, .7))
    for k in rng.integers(int(.05 * j.n), j.n - 4, int(rng.integers(1, 5))):
        m = int(rng.integers(1, 4))
        j.act[k:k + m] += U(rng, .3, .93) * j.H
    return j.healthy(F, v)


@fam('h_grad_accum', 0, 'samples at micro-steps: gradients present or not, optimizer step every k')
def _(rng, v, F):
    j = Job(rng, p0=U(rng, .65, .93), actshare=U(rng, .2, .5))
    k = int(rng.choice([2, 4, 8, 16, 64]))
    i = np.arange(j.n) % k
    g = U(rng, .1, .3) * j.A0
    j.alloc -= g * (i == k - 1)
    j.act = j.act * np.where(i == k - 1, 1, U(rng, .7, 1))
    return j.healthy(F, v)


@fam('h_detection', 0, 'detector: proposals grow in the first epoch (log), then heavy-tailed box counts')
def _(rng, v, F):
    j = Job(rng, nmin=800, act='gnn', p0=U(rng, .4, .7), actshare=U(rng, .3, .7))
    s_ = U(rng, .2, .8)
    j.act += s_ * j.H * logg(j.n, 0, j.n / LU(rng, 50, 500), int(.5 * j.n)) * rng.beta(3, 3, j.n)
    return j.healthy(F, v)


@fam('h_aspect_buckets', 0, 'diffusion with aspect-ratio buckets: new shapes leave workspaces, ever rarer')
def _(rng, v, F):
    j = Job(rng, act='bucket', nmin=600, p0=U(rng, .5, .85), actshare=U(rng, .4, .8))
    m = int(rng.integers(8, 30))
    x = rng.exponential(j.n / U(rng, 10, 20), m)
    w = rng.uniform(.5, 1.5, m)
    s_ = U(rng, .1, .8)
    g = stairs(j.n, np.clip(np.sort(x), 1, None), w / w.sum())
    j.frag += s_ * j.H * .6 * g
    j.outside += s_ * j.H * .4 * g
    return j.healthy(F, v)


@fam('h_offload_comeback', 0, 'states offloaded for a while, memory comes straight back to its old height')
def _(rng, v, F):
    j = Job(rng, nmin=500, p0=U(rng, .65, .93), actshare=U(rng, .15, .4))
    d = U(rng, .2, .7) * j.A0
    a = U(rng, .1, .5); b = a + U(rng, .05, .25); c = b + U(rng, .01, .2)
    j.alloc -= d * (ramp(j.n, a * j.n, (a + U(rng, 0, .03)) * j.n) - ramp(j.n, b * j.n, c * j.n))
    return j.healthy(F, v)


@fam('h_two_stage', 0, 'frozen backbone, then full training, then lower-memory distillation')
def _(rng, v, F):
    j = Job(rng, nmin=500, p0=U(rng, .3, .6))
    a, b = U(rng, .15, .45), U(rng, .55, .9)
    s_ = U(rng, .3, .85)
    j.alloc += .5 * s_ * j.H * stairs(j.n, [a * j.n, b * j.n], [1, -U(rng, .3, 1)])
    j.act += .5 * s_ * j.H * stairs(j.n, [a * j.n, b * j.n], [1, -U(rng, .3, 1)])
    return j.healthy(F, v)


@fam('h_profiler', 0, 'profiler window of 10-60 steps: buffers outside and kept tensors climb, then go')
def _(rng, v, F):
    j = Job(rng, p0=U(rng, .5, .85))
    m = int(rng.integers(10, 61)); a = int(rng.integers(15, j.n - m - 20))
    s_ = U(rng, .05, .45)
    j.outside[a:a + m] += .7 * s_ * j.H * np.arange(1, m + 1) / m
    j.alloc[a:a + m] += .3 * s_ * j.H * np.arange(1, m + 1) / m
    return j.healthy(F, v)


@fam('h_async_ckpt', 0, 'asynchronous checkpoint: device snapshot at once, released piece by piece')
def _(rng, v, F):
    j = Job(rng, nmin=400, p0=U(rng, .45, .8), ckpt=False)
    per = int(j.n / U(rng, 3, 25)); m = int(max(2, min(per * .6, LU(rng, 3, 200))))
    s_ = U(rng, .2, .88)
    y = s_ * j.H * np.linspace(1, 0, m)
    for k in range(per, j.n, per):
        j.alloc[k:k + m] += y[:len(j.alloc[k:k + m])]
    return j.healthy(F, v)


@fam('h_sortagrad', 0, 'speech: first epoch sorted by length (peak climbs), then shuffled at the same height')
def _(rng, v, F):
    j = Job(rng, nmin=800, act='varlen', p0=U(rng, .35, .6), actshare=U(rng, .1, .3), eval_=False, ckpt=False)
    ep = int(j.n / U(rng, 2.5, 15))
    s_ = share(rng, True)
    top = s_ * j.H
    y = top * (.9 + .1 * rng.random(j.n)) * rng.beta(6, 2, j.n) ** .3
    y[:ep] = top * ramp(ep, 0, ep) ** U(rng, .8, 1.3) * (1 - .03 * rng.random(ep))
    j.act += y
    return j.healthy(F, v, amb=s_ > .5)


@fam('h_sorted_epochs', 0, 'length-sorted batches in every epoch: peak climbs and falls back each epoch')
def _(rng, v, F):
    j = Job(rng, nmin=800, act='fixed', p0=U(rng, .35, .7), actshare=U(rng, .1, .4))
    per = j.n / U(rng, 2, 20)
    pos, num = saw(j.n, lambda k: per, U(rng, 0, 1))
    s_ = share(rng, True)
    j.act += s_ * j.H * pos ** U(rng, .7, 1.6) * (1 - .05 * rng.random(j.n))
    j.dt *= .6 + pos
    return j.healthy(F, v, amb=s_ > .5)


@fam('h_mixed', 0, 'several at once: teeth, late EMA, evaluation, recompiles, noise')
def _(rng, v, F):
    j = Job(rng, nmin=1000, p0=U(rng, .4, .65), eval_=True, ckpt=True)
    per = j.n / U(rng, 5, 40)
    pos, _n = saw(j.n, lambda k: per * U(rng, .8, 1.2))
    j.alloc += U(rng, .05, .3) * j.H * pos
    j.alloc += U(rng, .05, .2) * j.H * stairs(j.n, [U(rng, .2, .8) * j.n], [1])
    j.alloc += U(rng, .05, .2) * j.H * satexp(j.n, 0, j.n / U(rng, 6, 30))
    j.outside += U(rng, .02, .08) * j.H * stairs(j.n, np.sort(rng.uniform(.01, .5, 4)) * j.n, np.ones(4) / 4)
    return j.healthy(F, v)


@fam('h_dataset_cache', 0, 'dataset moved to the device during the first epoch, with pauses between shards')
def _(rng, v, F):
    j = Job(rng, nmin=600, p0=U(rng, .25, .6))
    m = int(rng.integers(4, 20))
    ep = U(rng, .05, .4)
    x = np.linspace(.01, ep, m) * j.n
    g = sum(ramp(j.n, a, a + U(rng, .1, .9) * ep * j.n / m) for a in x) / m
    s_ = share(rng, True)
    j.alloc += s_ * j.H * g
    return j.healthy(F, v, amb=s_ > .5)


@fam('h_ngp_rays', 0, 'instant-NGP: rays per batch adapt as empty space is found; high start, slow settling up and down')
def _(rng, v, F):
    j = Job(rng, nmin=1000, dtmax=.5, act='packed', p0=U(rng, .4, .65))
    n = j.n
    k = np.arange(n)
    y = .5 * np.exp(-k / (n / U(rng, 20, 80))) + satexp(n, 0, n / U(rng, 6, 20)) * .5
    y = y + .02 * ar1(rng, n, .95)
    j.act += U(rng, .3, .8) * j.H * np.clip(y, 0, 1)
    return j.healthy(F, v)


@fam('h_growing_net', 0, 'network growth (stacking layers) in 2-3 big jumps, later ones bigger or smaller, ends')
def _(rng, v, F):
    j = Job(rng, nmin=500, p0=U(rng, .25, .6))
    m = int(rng.integers(2, 4))
    x = np.sort(rng.uniform(.1, .8, m)) * j.n
    h = rng.uniform(.4, 1.6, m)
    g = stairs(j.n, x, h / h.sum())
    s_ = U(rng, .3, .88)
    j.alloc += .7 * s_ * j.H * g
    j.act += .3 * s_ * j.H * g
    for k in x:
        j.empty[int(k)] = True
    return j.healthy(F, v)


@fam('h_pbt_swap', 0, 'population-based tuning: hyper-parameters change every interval, memory hops up and down')
def _(rng, v, F):
    j = Job(rng, nmin=600, p0=U(rng, .35, .6))
    m = int(rng.integers(4, 25))
    lv = np.repeat(rng.random(m), j.n // m + 1)[:j.n]
    s_ = U(rng, .2, .85)
    j.act += s_ * j.H * .7 * lv
    j.alloc += s_ * j.H * .3 * lv
    return j.healthy(F, v)


@fam('h_swap_cycle', 0, 'slow sine-like load (curriculum goes back and forth, data mix by source)')
def _(rng, v, F):
    j = Job(rng, nmin=600, p0=U(rng, .35, .7))
    c = U(rng, 1.2, 12)
    y = .5 - .5 * np.cos(2 * np.pi * c * np.arange(j.n) / j.n + U(rng, 0, 6))
    s_ = U(rng, .1, .48)
    (j.alloc.__iadd__ if rng.random() < .5 else j.act.__iadd__)(s_ * j.H * y)
    return j.healthy(F, v)


@fam('h_warm_allocator', 0, 'allocator settles: reserved and peak creep in the first 5-10 % of the steps, then flat for ever')
def _(rng, v, F):
    j = Job(rng, nmin=400, p0=U(rng, .5, .8), warm=False)
    tau = LU(rng, 3, j.n / 25)
    s_ = U(rng, .2, .85)
    j.act += s_ * j.H * satexp(j.n, 1, tau) * (.85 + .15 * act_profile(rng, j.n, 'packed'))
    return j.healthy(F, v)


# ================================================================================================ LEAKS
def _koom(rng, n, lo=.45, hi=.99):
    return int(n * U(rng, lo, hi))


def _goal(rng, j, p_part=.22, lo=.45):
    """runs out within the series, or has eaten a good part at its end"""
    if rng.random() < p_part:
        return dict(part=U(rng, .25, .9))
    return dict(k=_koom(rng, j.n, lo))


def lin(n, a):
    return np.maximum(np.arange(n) - a + 1, 0.) * (np.arange(n) >= a)


@fam('l_loss_graph', 1, 'running loss keeps graphs: straight line from the start')
def _(rng, v, F):
    j = Job(rng, p0=U(rng, .3, .85))
    return j.leak(F, v, lin(j.n, int(rng.integers(1, 10))), **_goal(rng, j))


@fam('l_outputs_varlen', 1, 'outputs appended each step, sizes vary with the batch')
def _(rng, v, F):
    j = Job(rng, act='varlen', p0=U(rng, .4, .85), actshare=U(rng, .3, .7))
    a = int(j.n * U(rng, 0, .3))
    inc = rng.gamma(U(rng, .7, 4), 1, j.n); inc[:a] = 0
    return j.leak(F, v, np.cumsum(inc), **_goal(rng, j, lo=.6))


@fam('l_slow', 1, 'slow straight leak that has not run out at the end')
def _(rng, v, F):
    j = Job(rng, nmin=1500, p0=U(rng, .4, .85))
    return j.leak(F, v, lin(j.n, int(j.n * U(rng, 0, .2))), part=U(rng, .25, .75))


@fam('l_long_exact', 1, 'slow leak over thousands of steps that runs out near the end')
def _(rng, v, F):
    j = Job(rng, nmin=5000, p0=U(rng, .4, .9))
    return j.leak(F, v, lin(j.n, int(j.n * U(rng, 0, .15))), k=_koom(rng, j.n, .85))


@fam('l_fast_start', 1, 'over within 12-30 steps of the start')
def _(rng, v, F):
    j = Job(rng, n=300, dtmin=1, act=str(rng.choice(['fixed', 'packed'])), p0=U(rng, .2, .6), eval_=False, ckpt=False)
    a = int(rng.integers(1, 4))
    return j.leak(F, v, lin(j.n, a), k=a + int(rng.integers(14, 30)), onset=a)


@fam('l_fast_late', 1, 'long flat, then over within 15-60 steps')
def _(rng, v, F):
    j = Job(rng, nmin=400, dtmin=.8, p0=U(rng, .35, .85))
    a = int(j.n * U(rng, .4, .85))
    return j.leak(F, v, lin(j.n, a), k=a + int(rng.integers(15, 60)))


@fam('l_late', 1, 'straight leak that begins at 50-80 % of the series')
def _(rng, v, F):
    j = Job(rng, nmin=600, p0=U(rng, .4, .88))
    a = int(j.n * U(rng, .5, .8))
    k = a + int((j.n - a) * U(rng, .4, .98))
    return j.leak(F, v, lin(j.n, a), k=k)


@fam('l_epoch_stairs', 1, 'every epoch leaves its evaluation results: 6-20 equal stairs')
def _(rng, v, F):
    j = Job(rng, nmin=500, p0=U(rng, .4, .8))
    m = int(rng.integers(6, 21)); per = j.n / (m + .7)
    L = stairs(j.n, per * (1 + np.arange(m)), np.ones(m))
    if rng.random() < .25:
        return j.leak(F, v, L, part=U(rng, .35, .9))
    return j.leak(F, v, L, k=int(per * (m - int(rng.integers(0, max(1, m // 3)))) + 2))


@fam('l_few_stairs', 1, 'a full copy kept at every checkpoint: memory gone after 4-6 stairs')
def _(rng, v, F):
    j = Job(rng, nmin=400, p0=U(rng, .3, .6), ckpt=False)
    m = int(rng.integers(4, 7)); per = j.n / (m + .5)
    L = stairs(j.n, per * (1 + np.arange(m)), np.ones(m) * rng.uniform(.98, 1.02, m))
    return j.leak(F, v, L, k=int(per * m) + 2)


@fam('l_exponential', 1, 'growth that feeds itself: exponential')
def _(rng, v, F):
    j = Job(rng, nmin=400, p0=U(rng, .3, .8))
    a = int(j.n * U(rng, 0, .4)); k = int(a + (j.n - a) * U(rng, .5, .98))
    i = np.maximum(np.arange(j.n) - a, 0)
    tau = (k - a) / U(rng, 2.5, 6)
    return j.leak(F, v, np.expm1(np.minimum(i / tau, 50)), k=k, onset=a + 1)


@fam('l_concat_history', 1, 'history concatenated and processed each step: quadratic, peak first')
def _(rng, v, F):
    j = Job(rng, nmin=400, p0=U(rng, .3, .75))
    a = int(j.n * U(rng, 0, .3))
    L = lin(j.n, a)
    L = L / L.max()
    j.dt *= 1 + 2 * L
    return j.leak(F, v, .3 * L + .7 * L ** 2, where='both', **_goal(rng, j, lo=.6))


@fam('l_bursts', 1, 'leaks only in bursts (a code path that is hot now and then), flat between')
def _(rng, v, F):
    j = Job(rng, nmin=800, p0=U(rng, .4, .8))
    inc = np.zeros(j.n); i = int(j.n * U(rng, .03, .2))
    while i < j.n:
        b = int(j.n * U(rng, .01, .05)); inc[i:i + b] = U(rng, .5, 1.5)
        i += b + int(j.n * U(rng, .02, .08))
    return j.leak(F, v, np.cumsum(inc), **_goal(rng, j, lo=.65))


@fam('l_random_events', 1, 'rare random events each keep something (exceptions, skipped batches), sizes vary')
def _(rng, v, F):
    j = Job(rng, nmin=800, p0=U(rng, .4, .8))
    inc = (rng.random(j.n) < U(rng, 15, 80) / j.n) * rng.gamma(3, 1, j.n)
    inc[:int(.02 * j.n)] = 0
    inc[int(.05 * j.n)] = 2
    return j.leak(F, v, np.cumsum(inc), **_goal(rng, j, lo=.7))


@fam('l_heavy_noise', 1, 'straight leak under heavy noise of boundary and peak')
def _(rng, v, F):
    j = Job(rng, nmin=800, act=str(rng.choice(['varlen', 'gnn', 'moe'])), p0=U(rng, .4, .7), actshare=U(rng, .4, .7))
    j.alloc += U(rng, .1, .35) * j.H * rng.random(j.n)
    return j.leak(F, v, lin(j.n, int(j.n * U(rng, 0, .3))), **_goal(rng, j, lo=.6))


@fam('l_correlated_noise', 1, 'straight leak under slow wandering')
def _(rng, v, F):
    j = Job(rng, nmin=1500, p0=U(rng, .4, .7))
    y = ar1(rng, j.n, np.exp(-1 / LU(rng, 10, j.n / 40)))
    j.alloc += U(rng, .05, .2) * j.H * np.clip(y / 6 + .5, 0, 1)
    return j.leak(F, v, lin(j.n, int(j.n * U(rng, 0, .3))), **_goal(rng, j, lo=.65))


@fam('l_after_ramp', 1, 'a curriculum or cache fill ends, flat for a while, then a leak')
def _(rng, v, F):
    j = Job(rng, nmin=800, p0=U(rng, .25, .55))
    b = U(rng, .1, .3)
    j.act += U(rng, .1, .45) * j.H * (ramp(j.n, .02 * j.n, b * j.n) if rng.random() < .5 else
                                     stairs(j.n, np.linspace(.03, b, 5) * j.n, np.ones(5) / 5))
    a = int((b + U(rng, .1, .3)) * j.n)
    return j.leak(F, v, lin(j.n, a), k=int(a + (j.n - a) * U(rng, .5, .98)))


@fam('l_slowing_steps', 1, 'BPTT without detach: graph and step time grow together')
def _(rng, v, F):
    j = Job(rng, nmin=400, dtmax=5, p0=U(rng, .3, .75), act=str(rng.choice(['fixed', 'packed', 'varlen'])))
    L = lin(j.n, int(rng.integers(1, max(3, j.n // 5))))
    j.dt *= 1 + U(rng, 2, 10) * L / L.max()
    return j.leak(F, v, L, where=str(rng.choice(['alloc', 'both'])), **_goal(rng, j))


@fam('l_pauses', 1, 'leak per step with pauses of hours in between')
def _(rng, v, F):
    j = Job(rng, nmin=500, p0=U(rng, .4, .85))
    for k in rng.integers(10, j.n, int(rng.integers(2, 7))):
        j.dt[k] += LU(rng, 900, 30000)
    j.meta['suspended'] = bool(rng.random() < .5)
    return j.leak(F, v, lin(j.n, int(j.n * U(rng, 0, .3))), **_goal(rng, j, lo=.6))


@fam('l_fragmentation', 1, 'pieces that cannot be given back: reserved climbs, allocated flat')
def _(rng, v, F):
    j = Job(rng, nmin=800, act=str(rng.choice(['varlen', 'bucket', 'gnn'])), p0=U(rng, .45, .85))
    j.slack = 0.02
    inc = rng.random(j.n) < U(rng, .05, .6)
    L = np.cumsum(inc * rng.uniform(.5, 1.5, j.n)); L[:3] = 0
    return j.leak(F, v, L, where='frag', **_goal(rng, j, lo=.6))


@fam('l_outside', 1, 'leak outside the allocator (extension, codec, library handles): nvml only')
def _(rng, v, F):
    j = Job(rng, nmin=500, p0=U(rng, .4, .85))
    return j.leak(F, v, lin(j.n, int(j.n * U(rng, 0, .4))), where='outside', **_goal(rng, j, lo=.6))


@fam('l_nccl_groups', 1, 'new communicators at every evaluation never destroyed: stairs outside the allocator')
def _(rng, v, F):
    j = Job(rng, nmin=600, p0=U(rng, .6, .88))
    m = int(rng.integers(7, 40)); per = j.n / (m + .6)
    L = stairs(j.n, per * (1 + np.arange(m)), np.ones(m))
    k = int(per * (m - int(rng.integers(0, 3)))) + 2
    return j.leak(F, v, L, where='outside', k=k)


@fam('l_rising_floor', 1, 'teeth freed by the collector but the floor rises')
def _(rng, v, F):
    j = Job(rng, nmin=800, p0=U(rng, .35, .65))
    mean = LU(rng, 10, j.n / 15)
    pos, num = saw(j.n, lambda k: max(3, rng.gamma(6, mean / 6)))
    j.alloc += U(rng, .08, .3) * j.H * pos
    return j.leak(F, v, lin(j.n, int(j.n * U(rng, 0, .25))), **_goal(rng, j, lo=.6))


@fam('l_rising_tops', 1, 'epoch buffers that grow by the same amount every epoch: tops rise without end, floor flat')
def _(rng, v, F):
    j = Job(rng, nmin=1000, p0=U(rng, .3, .65), eval_=False)
    m = int(rng.integers(8, 30)); per = j.n / m
    pos, num = saw(j.n, lambda k: per)
    k = int(per * (m - int(rng.integers(0, 3)))) - 2
    return j.leak(F, v, pos * (num + 1.), k=k)


@fam('l_hooks', 1, 'a hook more every epoch: slope grows from epoch to epoch')
def _(rng, v, F):
    j = Job(rng, nmin=700, p0=U(rng, .35, .8))
    per = j.n / U(rng, 5, 20)
    inc = 1. + np.arange(j.n) // per
    if rng.random() < .4:
        inc[:int(per)] = 0
    return j.leak(F, v, np.cumsum(inc) * (np.arange(j.n) > 0), **_goal(rng, j, lo=.6))


@fam('l_rlhf', 1, 'PPO phases with experience kept from every round')
def _(rng, v, F):
    j = Job(rng, nmin=600, dtmin=.2, p0=U(rng, .3, .55), eval_=False)
    per = int(rng.integers(8, 50)); gen = max(2, int(per * U(rng, .2, .5)))
    i = np.arange(j.n) % per
    j.alloc += U(rng, .1, .35) * j.H * np.where(i < gen, (i + 1) / gen, 0)
    L = np.floor((np.arange(j.n)) / per)
    return j.leak(F, v, L, **_goal(rng, j, lo=.6))


@fam('l_splat_runaway', 1, 'densification without pruning or end: many stairs, straight or bending up')
def _(rng, v, F):
    j = Job(rng, nmin=3000, dtmin=.05, dtmax=.4, act='gnn', p0=U(rng, .15, .45), eval_=False)
    n = j.n; every = max(5, n // 250)
    L = (lin(n, int(.02 * n)) / n) ** U(rng, .95, 1.6)
    L = L[(np.arange(n) // every) * every]
    j.dt *= 1 + L / L.max()
    return j.leak(F, v, L, where='both', **_goal(rng, j, lo=.6))


@fam('l_recompiles', 1, 'every new shape leaves a graph pool, shapes never run out: random stairs')
def _(rng, v, F):
    j = Job(rng, nmin=600, act='varlen', p0=U(rng, .45, .8))
    inc = (rng.random(j.n) < U(rng, 20, 120) / j.n) * rng.uniform(.6, 1.4, j.n)
    inc[:3] = 0; inc[int(rng.integers(4, 20))] = 1
    return j.leak(F, v, np.cumsum(inc), where=str(rng.choice(['alloc', 'frag', 'outside'])), **_goal(rng, j, lo=.65))


@fam('l_replay_unbounded', 1, 'replay buffer without a bound, episode by episode')
def _(rng, v, F):
    j = Job(rng, nmin=600, p0=U(rng, .2, .7))
    inc = np.zeros(j.n); i = 1
    mean = LU(rng, 3, 40)
    while i < j.n:
        ln = max(1, int(rng.exponential(mean))); inc[min(i + ln, j.n - 1)] += ln; i += ln
    return j.leak(F, v, np.cumsum(inc), **_goal(rng, j, lo=.55))


@fam('l_train_only', 1, 'leaks while training, stands still in long evaluations')
def _(rng, v, F):
    j = Job(rng, nmin=800, p0=U(rng, .4, .8), eval_=False)
    per = j.n / U(rng, 4, 15); f = U(rng, .15, .5)
    pos, _n = saw(j.n, lambda k: per)
    ev = pos > 1 - f
    j.act[ev] *= U(rng, .2, .8)
    L = np.cumsum(~ev * 1.); L -= L[0]
    return j.leak(F, v, L, **_goal(rng, j, lo=.6))


@fam('l_eval_spikes', 1, 'slow leak below big evaluation peaks; the evaluation fails first')
def _(rng, v, F):
    j = Job(rng, nmin=800, p0=U(rng, .35, .65), eval_=False)
    per = int(j.n / U(rng, 8, 30)); m = max(1, per // 12)
    spike = U(rng, .25, .6) * j.H
    ks = list(range(per, j.n, per))
    for k in ks:
        j.act[k:k + m] = j.a0 + spike
    L = lin(j.n, int(j.n * U(rng, 0, .2)))
    return j.leak(F, v, L, k=ks[-1 - int(rng.integers(0, 3))])


@fam('l_mixed', 1, 'leak with teeth, evaluation, late EMA and a saturating cache at once')
def _(rng, v, F):
    j = Job(rng, nmin=1500, p0=U(rng, .3, .55), eval_=True, ckpt=True)
    per = j.n / U(rng, 8, 40)
    pos, _n = saw(j.n, lambda k: per * U(rng, .8, 1.2))
    j.alloc += U(rng, .05, .2) * j.H * pos
    j.alloc += U(rng, .05, .15) * j.H * stairs(j.n, [U(rng, .1, .5) * j.n], [1])
    j.alloc += U(rng, .05, .15) * j.H * satexp(j.n, 0, j.n / U(rng, 10, 30))
    return j.leak(F, v, lin(j.n, int(j.n * U(rng, .05, .35))), **_goal(rng, j, lo=.65))


@fam('l_stop_and_go', 1, 'leak stops for a long time and starts again with another slope')
def _(rng, v, F):
    j = Job(rng, nmin=1000, p0=U(rng, .4, .8))
    x = np.arange(j.n) / j.n
    a, b, c = U(rng, .02, .15), U(rng, .25, .4), U(rng, .55, .7)
    inc = ((x > a) & (x < b)) * 1. + (x > c) * LU(rng, .6, 4)
    k = int(j.n * U(rng, c + .12, .99))
    return j.leak(F, v, np.cumsum(inc), k=k)


@fam('l_heaps', 1, 'cache of distinct keys without a bound: n^0.75..0.92, never levels')
def _(rng, v, F):
    j = Job(rng, nmin=800, p0=U(rng, .3, .75))
    L = lin(j.n, int(j.n * U(rng, 0, .1))) ** U(rng, .75, .92)
    return j.leak(F, v, L, k=_koom(rng, j.n, .5))


@fam('l_after_eval', 1, 'after the first evaluation gradients stay enabled for a metric: jump, then leak')
def _(rng, v, F):
    j = Job(rng, nmin=500, p0=U(rng, .35, .8))
    a = int(j.n * U(rng, .2, .6)); 
    L = lin(j.n, a); L = L / L.max()
    L += U(rng, .01, .1) * (np.arange(j.n) >= a)
    return j.leak(F, v, L, k=int(a + (j.n - a) * U(rng, .5, .98)))


@fam('l_near_full', 1, 'card already 88-95 % full, small leak')
def _(rng, v, F):
    j = Job(rng, nmin=500, p0=U(rng, .88, .95))
    return j.leak(F, v, lin(j.n, int(j.n * U(rng, 0, .5))), **_goal(rng, j, lo=.65))


@fam('l_reserved_limit', 1, 'reserved already at the limit by cached blocks; allocated climbs below it')
def _(rng, v, F):
    j = Job(rng, nmin=600, act=str(rng.choice(['varlen', 'bucket'])), p0=U(rng, .5, .75), actshare=U(rng, .4, .7))
    j.act[int(rng.integers(3, 20))] += .97 * j.H            # one huge early batch filled the cache
    j.alloc -= 0
    a = int(j.n * U(rng, .05, .4))
    return j.leak(F, v, lin(j.n, a), k=int(a + (j.n - a) * U(rng, .5, .98)))


@fam('l_every_k', 1, 'something kept every k-th step (logging interval): fine regular stairs')
def _(rng, v, F):
    j = Job(rng, nmin=600, p0=U(rng, .4, .85))
    k = int(rng.choice([5, 10, 20, 25])) if j.n < 2500 else int(rng.choice([10, 50, 100]))
    L = np.floor(np.arange(j.n) / k)
    return j.leak(F, v, L, **_goal(rng, j, lo=.5))


@fam('l_peak_only', 1, 'work per step grows without end (growing prompt, growing graph), nothing stays: peak only')
def _(rng, v, F):
    j = Job(rng, nmin=500, p0=U(rng, .35, .8), actshare=U(rng, .2, .5))
    L = lin(j.n, int(j.n * U(rng, 0, .3)))
    j.dt *= 1 + L / L.max()
    return j.leak(F, v, L, where='act', **_goal(rng, j, lo=.6))


@fam('l_dataset_cache', 1, 'every sample cached on the device in the first epoch, which does not fit')
def _(rng, v, F):
    j = Job(rng, nmin=600, p0=U(rng, .25, .7))
    inc = rng.gamma(4, 1, j.n); inc[0] = 0
    return j.leak(F, v, np.cumsum(inc), k=_koom(rng, j.n, .5))


# ================================================================================================ HARMLESS LEAKS
@fam('n_loss_list', -1, 'a scalar tensor kept each step: 512 B')
def _(rng, v, F):
    j = Job(rng, p0=U(rng, .4, .93))
    L = lin(j.n, 1)
    s10 = min(.1, 10 * j.n * Q / (j.cap - j.need().max()))
    return j.harmless(F, v, L, 1, share10=s10)


@fam('n_small_linear', -1, 'visible straight line that would take under an eighth of the head-room in ten times the time')
def _(rng, v, F):
    j = Job(rng, nmin=800, p0=U(rng, .3, .8), jit='none')
    a = int(j.n * U(rng, 0, .4))
    return j.harmless(F, v, lin(j.n, a), a)


@fam('n_small_stairs', -1, '2-8 MiB left every epoch')
def _(rng, v, F):
    j = Job(rng, nmin=500, p0=U(rng, .3, .85))
    m = int(rng.integers(4, 30)); per = j.n / (m + .5)
    L = stairs(j.n, per * (1 + np.arange(m)), np.ones(m))
    s10 = min(.12, 10 * m * S2 * int(rng.integers(1, 5)) / (j.cap - j.need().max()))
    return j.harmless(F, v, L, int(per), share10=s10)


@fam('n_outside_trickle', -1, 'trickle outside the allocator')
def _(rng, v, F):
    j = Job(rng, nmin=600, p0=U(rng, .3, .8))
    return j.harmless(F, v, lin(j.n, 1), 1, where='outside')


@fam('n_under_noise', -1, 'tiny leak under heavy varying lengths')
def _(rng, v, F):
    j = Job(rng, nmin=800, act='varlen', p0=U(rng, .4, .8), actshare=U(rng, .4, .8))
    return j.harmless(F, v, lin(j.n, 1), 1)


# ================================================================================================ API
def corpus(seed, variants=2, set_=None):
    out = []
    for name, (label, _d, f) in FAMILIES.items():
        for v in range(variants):
            rng = np.random.default_rng([int(seed), crc32(name.encode()), v])
            s = f(rng, v, name)
            s.name = f'{name}-{seed}-{v}'
            assert s.label == label
            out.append(s)
    return out


def to_1hz(s):
    """what a poller sees that reads once a second; series with steps of a second or longer are returned as they are"""
    dt = np.diff(s.t, prepend=0.0)
    med = float(np.median(dt))
    if med >= 1.0:
        return replace(s, meta=dict(s.meta, hz=False))
    rng = np.random.default_rng([crc32(s.name.encode()), 1])
    up = rng.uniform(.4, .65)                               # where in the step the peak is
    T = np.arange(rng.uniform(0, 1), s.t[-1], 1.0)
    T = T + rng.normal(0, .01, len(T))
    T = np.sort(T[(T > 0) & (T < s.t[-1])])
    if len(T) < 2:
        T = np.array([s.t[0] * .9, s.t[-1] * .999]) if len(s.t) > 1 else np.array([s.t[-1] * .5, s.t[-1] * .9])
    k = np.searchsorted(s.t, T, side='left')
    start = np.where(k > 0, s.t[k - 1], 0.)
    # long steps: the extra time is waiting at the boundary, the work is at the end
    work = np.where(dt[k] > 20 * med, 2 * med, dt[k])
    u = np.clip((T - (s.t[k] - work)) / work, 0, 1)
    if s.meta.get('suspended'):
        keep = ~((dt[k] > 120 + 20 * med) & (u <= 0) & (T - start > 1.0))   # the poller slept too
        T, k, u, start = T[keep], k[keep], u[keep], start[keep]
    pk = s.peak[k]
    a0 = np.minimum(s.alloc[np.maximum(k - 1, 0)], pk)
    a0 = np.where(k > 0, a0, np.minimum(s.alloc[0], pk))
    a1 = s.alloc[k]
    al = np.where(u < up, a0 + (pk - a0) * u / up, a1 + (pk - a1) * (1 - u) / (1 - up))
    al = np.minimum(np.floor(al / Q) * Q, pk)
    resv = s.resv[k].copy()
    nv = s.nvml[k].copy()
    peak = al.copy()
    for i in range(len(T)):
        lo = k[i - 1] if i else 0
        if k[i] > lo:
            peak[i] = max(peak[i], s.peak[lo:k[i]].max())
        if u[i] >= up:
            peak[i] = max(peak[i], pk[i])
    peak = np.minimum(peak, resv)
    return replace(s, t=T, alloc=al, peak=peak, resv=resv, nvml=nv, meta=dict(s.meta, hz=True, step_s=med))


def check(seeds=(1, 2, 3, 4, 5), variants=2):
    import time
    from collections import Counter
    for seed in seeds:
        t0 = time.time()
        c = corpus(seed, variants)
        el = time.time() - t0
        tot = Counter()
        for s in c:
            for x in (s, to_1hz(s)):
                m = len(x.t)
                assert m >= 2 and all(len(a) == m for a in (x.alloc, x.peak, x.resv, x.nvml)), s.name
                assert np.all(np.diff(x.t) > 0) and x.t[0] > 0, s.name
                for a in (x.alloc, x.peak, x.resv, x.nvml):
                    assert np.all(np.isfinite(a)), s.name
                assert np.all(x.alloc > 0) and np.all(x.alloc <= x.peak) and np.all(x.peak <= x.resv), s.name
                assert np.all(x.resv <= x.nvml) and np.all(x.nvml <= x.capacity), s.name
            assert np.all(s.alloc % Q == 0) and np.all(s.peak % Q == 0) and np.all(s.resv % S2 == 0), s.name
            assert 15 * GiB < s.capacity < 142 * GiB
            if s.label == 1:
                assert np.isfinite(s.onset) and s.onset < s.t[-1]
                assert s.meta['oom_in_series'] == bool(np.isfinite(s.oom)), s.name
                if np.isfinite(s.oom):
                    assert s.oom > s.t[-1] and s.onset < s.oom
                else:
                    assert s.meta['eaten'] >= .2
                assert not s.ambiguous
            else:
                assert np.isnan(s.oom) and not s.meta['oom_in_series']
                assert len(s.t) >= 300 and (s.label == -1) == bool(np.isfinite(s.onset))
                if s.label == -1:
                    assert s.meta['share_at_10x'] <= .13
            tot[(s.label, s.ambiguous, s.meta['oom_in_series'])] += 1
        print(seed, f'{el:.1f}s', len(c), dict(tot), 'steps', sum(len(s.t) for s in c))
    L = Counter(l for l, _d, _f in FAMILIES.values())
    print('families', dict(L))


if __name__ == '__main__':
    check()
