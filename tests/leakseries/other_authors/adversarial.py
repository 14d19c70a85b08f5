"""leakgen -- adversarial GPU-memory series of one training rank (numpy only).

corpus(seed, variants, set_) -> list[Series];  to_1hz(series) -> Series as a once-a-second poller sees it.

Physics.  Per step i:  live (boundary), act (what the step needs above it), pin (reserved pieces that cannot be given back),
slack (cached, reclaimable), out (context + everything torch does not see).
  peak = max(live[i-1], live[i]) + act ; hard = ceil2MiB(peak + pin) ; out of memory at the first step with hard + out > capacity.
  reserved is the running maximum of ceil2MiB(peak + pin + slack); it falls at empty_cache and when reserved + out would exceed the card
  (the allocator's flush-and-retry).  So a healthy `resv`/`nvml` may touch the card while `peak` is far below.

Truth for leaks.  Every leak is simulated until it fails.  About one in six is cut earlier (never below 28 % of the head-room eaten); then
`oom` is the simulated future instant and meta['oom_in_series'] is False.  Harmless leaks (-1) and healthy ones have oom = nan.

`ambiguous`.  Only on healthy series that climb straight / convex / in equal stairs over more than half of the head-room before anything
(an end, a fall, a bend) is visible.  Families that can do so draw the eaten share from [.15,.45] or [.55,.8] -- never near a half.
The first tooth of a slow saw counts likewise (before it falls nobody can know); later teeth "were as high before".
meta['eaten'] is the nominal share of head-room taken by the growth; meta['indistinct'] the share taken before the shape is readable.
"""
from dataclasses import dataclass, field, replace
from zlib import crc32
import numpy as np

GiB = float(1 << 30)
MiB = float(1 << 20)
Q = 2 * MiB
nan = float("nan")


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


# ------------------------------------------------------------------------------------------------ allocator
def _q(x, s):
    return np.ceil(np.asarray(x, float) / s) * s


def _sim(cap, live, act, pin, out, slack, flush):
    """-> (n_ok, alloc, peak, resv, nvml, need); n_ok = index of the failing step (or len)."""
    live = _q(np.maximum(live, 16 * MiB), 512)
    prev = np.concatenate([live[:1], live[:-1]])
    peak = np.maximum(prev, live) + _q(np.maximum(act, 0), 512)
    pin = np.maximum(pin, 0)
    out = _q(out, 64 * 1024)
    hard = _q(peak + pin, Q)
    need = hard + out
    bad = np.flatnonzero(need > cap)
    m = int(bad[0]) if len(bad) else len(live)
    room = np.floor((cap - out) / Q) * Q
    w = np.maximum(hard, np.minimum(_q(peak + pin + np.maximum(slack, 0), Q), room))[:m]
    wl, ol, fl = w.tolist(), out[:m].tolist(), flush[:m].tolist()
    r, res = 0.0, []
    for x, o, f in zip(wl, ol, fl):
        if x > r or f or r + o > cap:
            r = x
        res.append(r)
    res = np.array(res)
    return m, live[:m], peak[:m], res, res + out[:m], need


# ------------------------------------------------------------------------------------------------ a job
CARDS = [(16, 15.77), (24, 23.64), (32, 31.73), (40, 39.39), (48, 47.53), (80, 79.11), (80, 79.25), (96, 94.97), (141, 139.8)]


class Job:
    def __init__(s, rng, n=None, dt=None, lo=300, hi=12000, dtlo=0.02, dthi=30.0, jitter=None, mindur=150.0):
        s.r = rng
        s.cap = float(np.floor(CARDS[rng.integers(len(CARDS))][1] * GiB / MiB) * MiB)
        for _ in range(200):
            nn = n or int(np.exp(rng.uniform(np.log(lo), np.log(hi))))
            d = dt or float(np.exp(rng.uniform(np.log(dtlo), np.log(dthi))))
            if nn * d >= mindur and nn * d <= 2.6e5:
                break
        else:
            d = dt or max(dtlo, mindur / nn)
        s.n, s.dt0 = nn, d
        j = jitter if jitter is not None else rng.choice([0.005, 0.03, 0.1])
        s.dt = d * np.exp(j * rng.standard_normal(nn))
        if jitter is None and rng.random() < 0.5:                       # loader stalls, checkpoints
            k = rng.random(nn) < rng.uniform(0.001, 0.01)
            s.dt[k] *= rng.uniform(2, 12, k.sum())
        s.i = np.arange(nn, dtype=float)
        s.u = s.i / nn
        z = np.zeros(nn)
        s.live, s.act, s.pin, s.slack = z.copy(), z.copy(), z.copy(), z.copy()
        s.out = z.copy()
        s.flush = np.zeros(nn, bool)
        s.e = s.F = s.b = nan
        s.meta = {}

    # -- levels
    def healthy(s, e=(0.15, 0.45), F=(0.80, 0.95), **kw):
        """growth of A bytes takes the share e of the head-room and ends at F of the card."""
        r = s.r
        e = float(r.uniform(*e))
        for _ in range(50):
            F_ = float(r.uniform(*F))
            b = (F_ - e) / (1 - e)
            if b > 0.15:
                break
        else:
            F_ = F[1]; e = min(e, (F_ - 0.15) / 0.85); b = (F_ - e) / (1 - e)
        s.e, s.F, s.b = e, F_, b
        s._base(b, **kw)
        s.A = (F_ - b) * s.cap
        return s.A

    def split_e(s, p=0.28):
        """share of head-room for shapes nobody can tell from a leak: below .45 or (ambiguous) above .55"""
        return (0.55, 0.8) if s.r.random() < p else (0.15, 0.45)

    def leaky(s, b=(0.3, 0.88), **kw):
        s.b = float(s.r.uniform(*b))
        s._base(s.b, **kw)

    def _base(s, b, actsh=None, noise=None, amp=None, start=True, spikes=True):
        r, n = s.r, s.n
        ctx = float(_q(min(r.uniform(0.35, 1.4) * GiB, 0.06 * s.cap), Q))
        s.out += ctx
        rest = b * s.cap - ctx - 2 * Q
        a = rest * (r.uniform(0.15, 0.65) if actsh is None else actsh)
        s.live += rest - a
        s.actmax = a
        noise = noise or r.choice(["tiny", "len", "bi", "ar", "spiky", "tiny"])
        amp = amp if amp is not None else r.uniform(0.02, 0.25)
        x = s.noise(noise)
        s.act += a * (1 - amp * x)
        if spikes and r.random() < 0.35 and n > 100:                    # rare evals / checkpoints reach the base's top
            p = int(r.integers(40, max(41, n // 4)))
            s.act *= 1 - 0.5 * amp
            s.act[p - 1::p] = a * (1 - 0.02 * r.random(len(s.act[p - 1::p])))
        s.live -= r.uniform(0, 2e-3) * (rest - a) * r.random(n)
        if start and r.random() < 0.7:                                  # optimizer state arrives with the first update
            k = int(r.choice([1, 1, 1, 2, 4, 8]))
            s.live[:k] *= r.uniform(0.3, 0.7)
        s.slack += r.choice([0.0, 0.01, 0.03, 0.06]) * rest * np.minimum(1, np.log1p(s.i) / np.log1p(min(n, 200)))

    def noise(s, kind):
        """in [0,1]; 0 = the top"""
        r, n = s.r, s.n
        if kind == "tiny":
            return np.abs(r.standard_normal(n)).clip(0, 3) / 30
        if kind == "len":
            return r.beta(2, r.uniform(1.5, 4), n)
        if kind == "bi":
            return np.where(r.random(n) < r.uniform(0.1, 0.9), r.random(n) * 0.1, 0.9 + 0.1 * r.random(n))
        if kind == "ar":
            x = ar1(r, n, np.exp(r.uniform(np.log(3), np.log(50))))
            return 1 / (1 + np.exp(-1.5 * x))
        x = 0.9 + 0.1 * r.random(n)                                     # spiky
        k = r.random(n) < 0.03
        x[k] = r.random(k.sum()) * 0.3
        return x

    def add(s, g, where="live"):
        if where == "mix":
            w = s.r.uniform(0.25, 0.75)
            s.live += w * g
            s.act += (1 - w) * g
        else:
            setattr(s, where, getattr(s, where) + g)

    def clock(s):
        s.t = np.cumsum(s.dt)

    def pause(s, k, hours=(0.3, 8)):
        for i in s.r.integers(max(2, s.n // 20), s.n - 2, k):
            s.dt[i] += s.r.uniform(*hours) * 3600
        s.meta["pauses"] = True

    # -- ends
    def ok(s, ambiguous=False, label=0, onset=nan, indistinct=None, top=0.985):
        s.clock()
        m, al, pk, rs, nv, need = _sim(s.cap, s.live, s.act, s.pin, s.out, s.slack, s.flush)
        mx = need.max()
        if mx > top * s.cap:                                            # trim: scale nothing but the card's use
            over = mx - top * s.cap
            take = min(over, 0.9 * s.live.min())
            s.live = s.live - take
            s.act = s.act * min(1.0, max(0.05, 1 - max(0, over - take) / max(1.0, s.act.max())))
            m, al, pk, rs, nv, need = _sim(s.cap, s.live, s.act, s.pin, s.out, s.slack, s.flush)
        assert m == s.n, "healthy series ran out"
        s.meta.update(oom_in_series=False, eaten=s.e, indistinct=s.e if indistinct is None else indistinct)
        return dict(label=label, t=s.t, alloc=al, peak=pk, resv=rs, nvml=nv, capacity=s.cap, onset=onset, oom=nan,
                    ambiguous=bool(ambiguous), meta=s.meta)

    def straight(s, **kw):
        """healthy growth that cannot be read while it lasts"""
        return s.ok(ambiguous=s.e > 0.5, **kw)

    def fails(s, g, i_oom, i0, where="live", cut_p=0.17, window=None, H=None):
        """g: leak shape, g[i_oom] ~ 1 (of the head-room that is left there), 0 before i0, not falling for good."""
        r, n = s.r, s.n
        s.clock()
        i_oom = int(min(i_oom, n - 1))
        z = _sim(s.cap * 4, s.live, s.act, s.pin, s.out, s.slack, s.flush)[5]
        a = int(0.75 * i_oom) if window is None else max(0, i_oom - window)
        H = s.cap - z[a:i_oom + 1].max() if H is None else H
        assert H > 0
        parts = where if isinstance(where, dict) else {where: 1.0}
        ref = g[i_oom] if g[i_oom] > 0 else g.max()
        for k in range(40):
            G = g / ref * H * 1.004 * 1.06 ** k
            c = {f: getattr(s, f) + (G * parts[f] if f in parts else 0) for f in ("live", "act", "pin", "out", "slack")}
            m, al, pk, rs, nv, need = _sim(s.cap, c["live"], c["act"], c["pin"], c["out"], c["slack"], s.flush)
            if m < n:
                break
        assert m < n, "leak does not fail"
        assert m > i0 + 3, ("fails at once", m, i0, n)
        oom = float(s.t[m - 1] + r.uniform(0.1, 0.9) * min(s.dt[m], 5 * s.dt0))
        onset = float(s.t[i0 - 1]) if i0 > 0 else 0.0
        share = np.maximum.accumulate(G) / H
        e = m
        inser = True
        if r.random() < cut_p and m - i0 > 80:
            x = int(np.searchsorted(share[:m], r.uniform(0.32, 0.9)))
            if x < m and x > i0 + 60 and share[x - 1] >= 0.28:
                e, inser = x, False
        eaten = float(min(1.0, share[e - 1]))
        s.meta.update(oom_in_series=inser, eaten=eaten, leak_steps=int(m - i0), leak_seconds=oom - onset, where=str(where))
        return dict(label=1, t=s.t[:e], alloc=al[:e], peak=pk[:e], resv=rs[:e], nvml=nv[:e], capacity=s.cap,
                    onset=onset, oom=oom, ambiguous=False, meta=s.meta)

    def harmless(s, g, i0, where="live"):
        """g in [0,1]; scaled so that even ten times the series' length does not run out"""
        s.clock()
        z = _sim(s.cap * 4, s.live, s.act, s.pin, s.out, s.slack, s.flush)[5]
        H = s.cap - z.max()
        sh = float(s.r.uniform(0.003, 0.05))
        parts = where if isinstance(where, dict) else {where: 1.0}
        for f in parts:
            setattr(s, f, getattr(s, f) + g / max(g.max(), 1e-9) * sh * H * parts[f])
        s.e = sh
        return s.ok(label=-1, onset=float(s.t[i0 - 1]) if i0 > 0 else 0.0, top=0.999)


# ------------------------------------------------------------------------------------------------ shapes
def ar1(r, n, tau):
    a = np.exp(-1.0 / tau)
    w = (r.standard_normal(n) * np.sqrt(1 - a * a)).tolist()
    x, y = r.standard_normal(), []
    for v in w:
        x = a * x + v
        y.append(x)
    return np.array(y)


def ramp(i, a, b):
    return np.clip((i - a) / max(b - a, 1e-9), 0, 1)


def stairs(n, at, size):
    g = np.zeros(n)
    for k, z in zip(np.asarray(at, int), np.broadcast_to(size, np.shape(at))):
        if k < n:
            g[max(k, 0):] += z
    return g


def smooth(i, a, b):
    x = ramp(i, a, b)
    return x * x * (3 - 2 * x)


def saw(n, marks):
    """0..1 within each interval between marks"""
    g = np.zeros(n)
    marks = [int(m) for m in marks]
    for a, b in zip(marks[:-1], marks[1:]):
        if a < n and b > a:
            g[a:min(b, n)] = (np.arange(a, min(b, n)) - a) / max(1, b - a - 1)
    return g


def marks_every(n, p, r=None, jit=0.0):
    m = [0]
    while m[-1] < n:
        m.append(m[-1] + max(3, int(round(p * (1 + (jit * r.standard_normal() if jit else 0))))))
    return m


HEALTHY, LEAK, HARMLESS = {}, {}, {}


def fam(book):
    def deco(f):
        book[f.__name__] = f
        return f
    return deco


H, L, X = fam(HEALTHY), fam(LEAK), fam(HARMLESS)


def U(r, a, b):
    return float(r.uniform(a, b))


def LU(r, a, b):
    return float(np.exp(r.uniform(np.log(a), np.log(b))))


# ================================================================================================ HEALTHY
@H
def flat_any_noise(r):
    """flat, every kind of step noise, card full to 80-97 %"""
    J = Job(r); J.healthy((0.0, 0.001), (0.8, 0.97), amp=U(r, 0.05, 0.7)); return J.ok()


@H
def log_forever(r):
    """logarithm: grows at every look, never matters (10x the length stays below the card)"""
    J = Job(r); tau = J.n / LU(r, 20, 2000)
    f = np.log1p(J.i / tau) / np.log1p(J.n / tau)
    k = np.log1p(10 * J.n / tau) / np.log1p(J.n / tau)
    J.healthy((0.15, min(0.7, 0.93 / k)), (0.8, 0.95)); J.add(J.A * f, r.choice(["live", "mix"])); return J.ok()


@H
def saturating_exp(r):
    """saturating exponential, tau .05-.3 of the series"""
    J = Job(r); J.healthy((0.2, 0.8)); tau = U(r, 0.05, 0.3)
    J.add(J.A * (1 - np.exp(-J.u / tau)) / (1 - np.exp(-1 / tau)), r.choice(["live", "mix", "act"])); return J.ok()


@H
def saturating_two_scales(r):
    """fast saturation plus a slow one behind it (single-exponential plateaus come out too low)"""
    J = Job(r); J.healthy((0.2, 0.75)); w = U(r, 0.4, 0.7)
    g = w * (1 - np.exp(-J.u / U(r, .005, .03))) + (1 - w) * (1 - np.exp(-J.u / U(r, .2, .35)))
    J.add(J.A * g, "live"); return J.ok()


@H
def hyperbola_plateau(r):
    """t/(t+tau): levels off far slower than an exponential"""
    J = Job(r); J.healthy((0.2, 0.65)); tau = U(r, 0.05, 0.25)
    J.add(J.A * J.u / (J.u + tau), r.choice(["live", "mix"])); return J.ok()


@H
def stretched_exponential(r):
    """1-exp(-(t/tau)^.5): steep start, endless tail below the plateau"""
    J = Job(r); J.healthy((0.2, 0.7)); J.add(J.A * (1 - np.exp(-(J.u / U(r, 0.03, 0.2)) ** U(r, 0.4, 0.7))), "live"); return J.ok()


@H
def sqrt_that_ends(r):
    """square root until a bound, then flat"""
    J = Job(r); J.healthy((0.15, 0.48)); J.add(J.A * np.sqrt(ramp(J.i, 0, J.n * U(r, 0.3, 0.8))), r.choice(["live", "mix"])); return J.ok()


@H
def heaps_cache_bounded(r):
    """cache of distinct keys (Heaps' law t^.55-.75, noisy increments), cut off at its bound"""
    J = Job(r); J.healthy((0.12, 0.42)); p = U(r, 0.55, 0.75); T = J.n * U(r, 0.3, 0.8)
    inc = np.diff(np.minimum(1, (J.i / T)) ** p, prepend=0) * r.gamma(0.3, 1 / 0.3, J.n)
    g = np.cumsum(inc); J.add(J.A * np.minimum(1, g / g[-1] * U(r, 1.0, 1.15)), "live"); return J.ok()


@H
def linear_fill_to_bound(r):
    """replay buffer / LRU filled straight, then at its bound with slight breathing"""
    J = Job(r); J.healthy(J.split_e()); T = J.n * U(r, 0.15, 0.75)
    g = np.cumsum(r.gamma(1.0, 1.0, J.n)); g = np.minimum(1, g / T)
    J.add(J.A * (g - 0.004 * (g >= 1) * r.random(J.n)), "live"); return J.straight()


@H
def late_ramp_that_ends(r):
    """long flat, late straight ramp that ends before the end"""
    J = Job(r, lo=600); J.healthy(J.split_e()); a = U(r, 0.35, 0.75); b = a + U(r, 0.03, 0.2)
    J.add(J.A * ramp(J.u, a, b), r.choice(["live", "act", "mix"])); return J.straight()


@H
def ramps_and_plateaus(r):
    """2-5 short ramps with plateaus between (curriculum), the last one ends"""
    J = Job(r, lo=600); J.healthy((0.15, 0.45)); k = int(r.integers(2, 6)); ed = np.sort(r.uniform(0.03, 0.85, k))
    w = r.dirichlet(np.full(k, 3.0)); g = sum(wi * ramp(J.u, x, x + U(r, 0.01, 0.12)) for wi, x in zip(w, ed))
    J.add(J.A * g, r.choice(["act", "mix"])); return J.ok()


@H
def few_equal_stairs_end(r):
    """2-5 equal stairs at equal distances, then none (progressive unfreezing, growing)"""
    J = Job(r, lo=500); J.healthy(J.split_e(0.22)); k = int(r.integers(2, 6)); p = U(r, 0.06, 0.8 / k)
    J.add(J.A * stairs(J.n, (np.arange(1, k + 1) * p) * J.n, 1 / k), r.choice(["live", "mix", "act"])); return J.straight()


@H
def many_equal_stairs_end(r):
    """10-40 stairs that end"""
    J = Job(r, lo=800); J.healthy(J.split_e(0.22)); k = int(r.integers(10, 41)); T = U(r, 0.3, 0.8)
    at = np.sort(np.linspace(0.03, T, k) + r.normal(0, 0.1 * T / k, k)) * J.n
    J.add(J.A * stairs(J.n, at, 1 / k), r.choice(["live", "mix"])); return J.straight()


@H
def shrinking_stairs(r):
    """stairs each .5-.75 of the one before, equal distances"""
    J = Job(r, lo=500); J.healthy((0.2, 0.75)); q = U(r, 0.5, 0.75); k = int(r.integers(6, 14)); z = q ** np.arange(k); z /= z.sum()
    J.add(J.A * stairs(J.n, np.linspace(0.02, 0.95, k) * J.n, z), "live"); return J.ok()


@H
def doubling_buffer(r):
    """vector doubling: stairs at doubling times with a copy spike, bound reached"""
    J = Job(r, lo=800); J.healthy((0.12, 0.42)); k = int(r.integers(5, 9)); at = (U(r, 0.5, 0.8) * J.n / 2.0 ** np.arange(k))[::-1].astype(int)
    s = 2.0 ** np.arange(k); z = np.diff(np.concatenate([[0], s])) / s[-1] / 1.5
    J.add(J.A * stairs(J.n, at, z), "live")
    for x, v in zip(at, s / s[-1] / 3): J.act[x] += J.A * v
    return J.ok()


@H
def fast_saw(r):
    """saw-tooth of 5-40 steps (gc of cycles)"""
    J = Job(r); J.healthy((0.15, 0.8)); J.add(J.A * saw(J.n, marks_every(J.n, U(r, 5, 40), r, U(r, 0, .3))), "live"); return J.ok()


@H
def slow_saw_few_teeth(r):
    """2-4 straight teeth in the whole series"""
    J = Job(r, lo=500); J.healthy(J.split_e()); p = J.n / U(r, 1.6, 4.5); J.add(J.A * saw(J.n, marks_every(J.n, p, r, 0.08)), "live"); return J.straight()


@H
def concave_teeth(r):
    """few slow teeth, each levelling off before it falls (cache warmed anew each epoch)"""
    J = Job(r, lo=500); J.healthy((0.2, 0.75)); s = saw(J.n, marks_every(J.n, J.n / U(r, 2, 7), r, 0.1)); k = U(r, 4, 8)
    J.add(J.A * (1 - np.exp(-k * s)) / (1 - np.exp(-k)), "live"); return J.ok()


@H
def rising_tops_that_level(r):
    """saw with tops that rise and level off, floor fixed"""
    J = Job(r, lo=600); J.healthy((0.2, 0.7)); T = U(r, 0.08, 0.25)
    J.add(J.A * saw(J.n, marks_every(J.n, J.n / U(r, 12, 60), r, .05)) * (0.25 + 0.75 * (1 - np.exp(-J.u / T))), "live"); return J.ok()


@H
def falling_tops(r):
    """slow saw with falling tops; every tooth climbs"""
    J = Job(r, lo=600); J.healthy((0.2, 0.45)); J.add(J.A * saw(J.n, marks_every(J.n, J.n / U(r, 3, 12))) * (1 - U(r, .3, .7) * J.u), "live"); return J.ok()


@H
def nested_saw(r):
    """small teeth on a big tooth (gen-2 under a slower flush), two scales repeated"""
    J = Job(r, lo=900); J.healthy((0.15, 0.45)); w = U(r, 0.3, 0.6); p = J.n / U(r, 2.5, 9)
    J.add(J.A * (w * saw(J.n, marks_every(J.n, p)) + (1 - w) * saw(J.n, marks_every(J.n, p / U(r, 6, 20)))), "live"); return J.ok()


@H
def irregular_saw(r):
    """teeth of exponential length: now and then a tooth twice as high as ever before (bounded)"""
    J = Job(r, lo=600); J.healthy((0.15, 0.45)); m = [0]; p = J.n / U(r, 15, 40)
    while m[-1] < J.n: m.append(m[-1] + max(4, int(min(r.exponential(p), 4 * p))))
    g = np.zeros(J.n)
    for a, b in zip(m[:-1], m[1:]): g[a:b] = (np.arange(a, min(b, J.n)) - a) / (4 * p)
    J.add(J.A * g, "live"); return J.ok()


@H
def gc_geometric_periods(r):
    """CPython's gen-2 rule: each tooth a factor longer and higher than the last, then bounded"""
    J = Job(r, lo=900); J.healthy((0.15, 0.44)); q = U(r, 1.25, 1.6); p0 = J.n * U(r, 0.005, 0.02); m = [0.0]; p = p0; pm = J.n * U(r, 0.12, 0.25)
    while m[-1] < J.n: m.append(m[-1] + p); p = min(pm, p * q)
    g = np.zeros(J.n)
    for a, b in zip(m[:-1], m[1:]): a, b = int(a), int(b); g[a:b] = (np.arange(a, min(b, J.n)) - a) / pm
    J.add(J.A * g, "live"); return J.ok()


@H
def vee_return(r):
    """starts high, drops (offload, released buffers), climbs straight back to the old level and stops"""
    J = Job(r, lo=500); J.healthy((0.4, 0.85)); a = U(r, 0.08, 0.4); b = a + U(r, 0.2, 0.5)
    J.add(J.A * np.where(J.u < a, 1 - 0.01 * r.random(J.n), 0.97 * ramp(J.u, a, b)), r.choice(["live", "mix"])); J.meta["was_as_high"] = True; return J.ok(indistinct=0.0)


@H
def early_high_water(r):
    """autotuning needs almost everything in steps 1-4; then low, then a straight climb that stays under that mark"""
    J = Job(r, lo=400); J.healthy((0.3, 0.8), start=False); k = int(r.integers(1, 5)); J.add(J.A * 0.94 * ramp(J.u, U(r, .02, .3), U(r, .4, .85)), "live")
    J.act[1:1 + k] = J.actmax + J.A; J.meta["was_as_high"] = True
    if r.random() < 0.6: J.flush[1 + k] = True
    return J.ok(indistinct=0.0)


@H
def triangle(r):
    """straight up to < half of the head-room, straight down again"""
    J = Job(r, lo=400); J.healthy((0.15, 0.44)); c = U(r, 0.3, 0.7); J.add(J.A * np.minimum(ramp(J.u, 0.05, c), 1 - ramp(J.u, c, 0.97)), r.choice(["live", "act", "mix"])); return J.ok()


@H
def slow_sine(r):
    """sine of period .7-1.6 series lengths from any phase (traffic, day and night)"""
    J = Job(r, lo=400); J.healthy((0.15, 0.6)); J.add(J.A * (0.5 + 0.5 * np.sin(2 * np.pi * (J.u / U(r, 0.7, 1.6) + r.random()))), r.choice(["act", "mix"])); return J.ok()


@H
def trough_to_crest(r):
    """exactly the rising half of a sine: accelerates, straight, bends, flat at the very end"""
    J = Job(r, lo=400); J.healthy((0.2, 0.62)); J.add(J.A * (0.5 - 0.5 * np.cos(np.pi * np.minimum(1, J.u / U(r, 0.8, 1.0)))), "act"); return J.ok(indistinct=J.e * .7)


@H
def sigmoid_curriculum(r):
    """S-curve of sequence length; ambiguous when its unreadable 70 % takes over half"""
    J = Job(r, lo=400); J.healthy((0.2, 0.62) if r.random() < .75 else (.76, .84)); J.add(J.A * smooth(J.u, U(r, 0.0, 0.4), U(r, 0.55, 0.9)), r.choice(["act", "mix"]))
    return J.ok(ambiguous=0.7 * J.e > 0.5, indistinct=.7 * J.e)


@H
def damped_oscillation(r):
    """a controller (prefetch, dynamic batch) swings up, down, up, settles"""
    J = Job(r, lo=400); J.healthy((0.2, 0.6)); x = J.u / U(r, 0.1, 0.4); g = 1 - np.exp(-x * U(r, .4, .9)) * np.cos(2 * np.pi * x); J.add(J.A * g / g.max(), r.choice(["live", "act"])); return J.ok()


@H
def overshoot_and_settle(r):
    """fast rise, overshoot, slow decay to a plateau"""
    J = Job(r); J.healthy((0.2, 0.7)); x = J.u / U(r, 0.02, 0.12); g = 1 - np.exp(-x) + U(r, .5, 2) * x * np.exp(-x); J.add(J.A * g / g.max(), "live"); return J.ok()


@H
def duty_drift(r):
    """two levels; the share of steps on the high one drifts from 3 to 97 %: mean rises, top never"""
    J = Job(r, lo=500); J.healthy((0.4, 0.9), (0.85, 0.95), noise="tiny"); hi = r.random(J.n) < 0.03 + 0.94 * J.u ** U(r, .6, 2); hi[:3] = [0, 1, 0]
    J.add(J.A * hi * (1 - 0.01 * r.random(J.n)), r.choice(["act", "live"])); J.meta["top_flat"] = True; return J.ok(indistinct=0.0)


@H
def floor_rises_top_flat(r):
    """short samples are filtered out step by step: floor climbs to a top that was there from the start"""
    J = Job(r, lo=500); J.healthy((0.4, 0.9), (0.85, 0.96), noise="tiny"); lo = U(r, .7, .95) * ramp(J.u, 0.02, U(r, .7, .98)); J.add(J.A * (lo + (1 - lo) * r.beta(.8, .8, J.n)), "act"); J.meta["top_flat"] = True; return J.ok(indistinct=0.0)


@H
def spikes_denser(r):
    """once-an-epoch spike of constant height, epochs shrink: spike density explodes"""
    J = Job(r, lo=800); J.healthy((0.3, 0.85), noise="tiny"); x, p = J.n * 0.01, J.n * 0.12
    while x < J.n: J.act[int(x)] += J.A * U(r, .97, 1); x += p; p = max(2, p * U(r, .8, .95))
    return J.ok(indistinct=0.0)


@H
def noise_widens_bounded(r):
    """noise of growing width around a fixed mean, width bounded by the longest sample"""
    J = Job(r, lo=500); J.healthy((0.15, 0.5), noise="tiny"); w = 0.1 + 0.9 * (1 - np.exp(-J.u / U(r, .1, .3))); J.add(J.A * (0.5 + 0.5 * w * np.clip(r.standard_normal(J.n) / 2.2, -1, 1)), "act"); return J.ok()


@H
def length_records(r):
    """heavy-tailed batch lengths, truncated: reserved is a record process, log-like with rare jumps"""
    J = Job(r); J.healthy((0.2, 0.8), noise="tiny"); x = np.minimum(r.pareto(U(r, 1.2, 3), J.n), 1e9); q = np.sort(x)[-max(2, J.n // 300)]
    J.add(J.A * np.minimum(1, x / q), "act"); return J.ok(indistinct=0.0)


@H
def eval_records(r):
    """rare evaluations, each with a random longest sample: every second one is a record at first"""
    J = Job(r, lo=900); J.healthy((0.2, 0.6)); p = int(J.n / U(r, 6, 30)); k = np.arange(p, J.n, p); J.act[k] += J.A * r.beta(2, 2, len(k)); return J.ok(indistinct=0.0)


@H
def slow_ou_walk(r):
    """mean-reverting walk with a correlation time of a tenth to a third of the series (bounded)"""
    J = Job(r, lo=500); J.healthy((0.15, 0.55)); J.add(J.A * (0.5 + 0.5 * np.tanh(ar1(r, J.n, J.n * U(r, .08, .3)))), r.choice(["live", "act"])); return J.ok()


@H
def pink_noise(r):
    """1/f noise: every window has its own trend"""
    J = Job(r, lo=500); J.healthy((0.15, 0.55)); f = np.fft.rfftfreq(J.n); f[0] = 1
    x = np.fft.irfft((r.standard_normal(len(f)) + 1j * r.standard_normal(len(f))) / f ** U(r, .4, .7), J.n); x = (x - x.min()) / np.ptp(x); J.add(J.A * x, "act"); return J.ok()


@H
def reflected_queue(r):
    """prefetch queue: a random walk between empty and full"""
    J = Job(r, lo=500); J.healthy((0.15, 0.5)); cap = max(4, np.sqrt(J.n) * U(r, .15, .7)); x, y = 0.0, []
    for v in (r.standard_normal(J.n) + U(r, -.02, .05)).tolist(): x = min(max(x + v, 0), cap); y.append(x)
    J.add(J.A * np.round(np.array(y)) / cap, "live"); return J.ok()


@H
def brownian_bridge(r):
    """wanders up and comes back"""
    J = Job(r, lo=500); J.healthy((0.15, 0.45)); w = np.cumsum(r.standard_normal(J.n)); w -= J.u * w[-1]; J.add(J.A * (w - w.min()) / np.ptp(w), "live"); return J.ok()


@H
def coupon_cuda_graphs(r):
    """a CUDA graph pool per new shape: coupon collector, stairs ever rarer"""
    J = Job(r, lo=500); J.healthy((0.2, 0.7)); K = int(r.integers(8, 60)); m = J.n * U(r, .03, .2); at = np.sort(r.exponential(m, K)); at = np.minimum(at, .97 * J.n); J.add(J.A * stairs(J.n, at, 1 / K), r.choice(["live", "out"])); return J.ok()


@H
def zipf_experts(r):
    """optimizer state made when an expert / row block is first touched, Zipf frequencies: log-like to the last expert"""
    J = Job(r, lo=500); J.healthy((0.2, 0.6)); K = int(r.integers(20, 300)); p = 1.0 / np.arange(1, K + 1) ** U(r, .9, 1.3); p /= p.sum(); at = r.exponential(1 / p) * J.n * p[-1] * U(r, .05, .25)
    J.add(J.A * stairs(J.n, np.minimum(at, J.n * .98), 1 / K), "live"); return J.ok()


@H
def lazy_nccl_outside(r):
    """outside torch: NCCL groups, lazily loaded modules: 3-7 unequal stairs early, then none"""
    J = Job(r, lo=400); J.healthy((0.08, 0.45)); k = int(r.integers(3, 8)); J.add(J.A * stairs(J.n, np.sort(r.beta(1, 3, k)) * .8 * J.n, r.dirichlet(np.ones(k))), "out"); return J.ok()


@H
def recompiles_to_limit(r):
    """random-time equal stairs up to the recompile limit (8)"""
    J = Job(r, lo=600); J.healthy(J.split_e(.15)); k = 8; J.add(J.A * stairs(J.n, np.sort(r.uniform(.03, U(r, .5, .85), k)) * J.n, 1 / k), "mix"); return J.straight()


@H
def one_late_jump(r):
    """flat, one jump of up to 85 % of the head-room (long-context stage), flat"""
    J = Job(r, lo=400); J.healthy((0.3, 0.85)); J.add(J.A * stairs(J.n, [J.n * U(r, .3, .93)], 1), r.choice(["live", "act", "mix"])); return J.ok(indistinct=0.0)


@H
def jump_up_down_up(r):
    """square waves of random length (phases, offload, teacher in and out)"""
    J = Job(r, lo=400); J.healthy((0.3, 0.85)); k = int(r.integers(3, 12)); ed = np.sort(r.random(k)); lev = r.random(k + 1); lev[1] = 1; J.add(J.A * lev[np.searchsorted(ed, J.u)], "mix"); return J.ok(indistinct=0.0)


@H
def rlhf_phases(r):
    """generation fills a KV cache concavely, scoring, update; answers lengthen and level off at the limit"""
    J = Job(r, lo=700); J.healthy((0.2, 0.7)); P = int(r.integers(20, max(21, min(200, J.n // 8)))); ph = (J.i % P) / P; ln = .3 + .7 * (1 - np.exp(-J.u / U(r, .08, .25)))
    J.add(J.A * np.where(ph < .5, ln * np.sqrt(ph / .5), np.where(ph < .7, .2, .4)), "live"); return J.ok()


@H
def longer_answers_to_limit(r):
    """RL: top of each phase rises straight with answer length until max_new_tokens"""
    J = Job(r, lo=700); J.healthy((0.15, 0.44)); P = int(r.integers(8, 60)); ln = .15 + .85 * ramp(J.u, U(r, 0, .2), U(r, .5, .85)); J.add(J.A * ln * ((J.i % P) / P) * r.uniform(.85, 1, J.n), "act"); return J.ok()


@H
def eval_accumulator(r):
    """inside each long evaluation predictions pile up straight, and go at its end"""
    J = Job(r, lo=800); J.healthy((0.15, 0.45)); P = int(J.n / U(r, 4, 12)); w = int(P * U(r, .15, .5)); ph = J.i % P; J.add(J.A * np.where(ph >= P - w, (ph - P + w) / w, 0), "live"); return J.ok()


@H
def quadratic_resolution_ramp(r):
    """convex ramp (resolution squared) that ends"""
    J = Job(r, lo=400); J.healthy(J.split_e(.2)); g = ramp(J.u, U(r, 0, .2), U(r, .4, .85)); J.add(J.A * ((1 + 2 * g) ** 2 - 1) / 8, "act"); return J.straight()


@H
def exponential_ramp_ends(r):
    """batch doubled smoothly (convex, e-folding several times), ends under half"""
    J = Job(r, lo=400); J.healthy((0.12, 0.44)); g = ramp(J.u, U(r, 0, .2), U(r, .5, .9)); k = U(r, 2, 5); J.add(J.A * np.expm1(k * g) / np.expm1(k), "act"); return J.ok()


@H
def batch_size_finder(r):
    """doubles the batch every 2-5 steps until almost the card, falls back, flat for good"""
    J = Job(r, lo=300); J.healthy((.5, .85), (.88, .96), actsh=.15); p = int(r.integers(2, 6)); k = int(r.integers(5, 8)); st = np.minimum(J.i // p, k); g = 2.0 ** (st - k); e = p * (k + 1); g[e:] = U(r, .4, .75)
    J.add(J.A * g, "act"); J.flush[e] = True; return J.ok(ambiguous=True)


@H
def aimd_batch(r):
    """additive increase, multiplicative decrease of the micro-batch; quick slow-start to the top first"""
    J = Job(r, lo=500); J.healthy((.4, .8), (.85, .95), noise="tiny", start=False); k = int(r.integers(3, 7)); x, y = .1, []; inc = 1 / U(r, 40, max(60, J.n / 5)); 
    for i in range(J.n):
        x = min(1.0, x * 1.9) if i < k else x + inc
        if i == k: x = 1.0
        if x > 1 or (i > k and r.random() < inc * .3): x = U(r, .4, .6)
        y.append(min(x, 1))
    y[k] = 1.0
    J.add(J.A * np.array(y), "act"); J.meta["was_as_high"] = True; return J.ok(indistinct=0.0)


@H
def elastic_restarts(r):
    """falls to almost nothing and warms up the same saturating way 2-4 times"""
    J = Job(r, lo=500); J.healthy((.3, .8)); m = np.concatenate([[0], np.sort(r.uniform(.1, .9, int(r.integers(1, 4)))) * J.n, [J.n]]).astype(int); tau = J.n * U(r, .01, .05)
    g = np.zeros(J.n)
    for a, b in zip(m[:-1], m[1:]):
        g[a:b] = 1 - np.exp(-np.arange(b - a) / tau); J.flush[a] = True
        if a: J.dt[a] += U(r, 20, 300); J.live[a:a + 2] *= .3; J.act[a:a + 2] *= .3
    J.add(J.A * g, "live"); return J.ok()


@H
def pauses_and_refill(r):
    """suspended for hours, caches emptied, refilled concavely to the old level"""
    J = Job(r, lo=400); J.healthy((.25, .75)); k = int(r.integers(1, 4)); m = np.sort(r.uniform(.15, .85, k) * J.n).astype(int); last = np.zeros(J.n)
    for a in m: last[a:] = a; J.dt[a] += U(r, .3, 8) * 3600; J.flush[a] = True
    J.add(J.A * (1 - np.exp(-(J.i - last) / (J.n * U(r, .01, .04)))), "live"); J.meta["pauses"] = True; return J.ok()


@H
def ramp_across_pauses(r):
    """straight ramp cut by pauses of hours, ends under half"""
    J = Job(r, lo=500); J.healthy((.15, .44)); J.add(J.A * ramp(J.u, .05, U(r, .5, .85)), "live"); J.pause(int(r.integers(2, 5))); return J.ok()


@H
def quickening_clock(r):
    """steps get shorter just so that a saturating growth per step looks straight in time, then ends"""
    J = Job(r, lo=600, dtlo=.3); J.healthy((.15, .45)); tau = J.n * U(r, .12, .22); J.add(J.A * (1 - np.exp(-J.i / tau)), "live"); J.dt = J.dt * np.maximum(.02, np.exp(-J.i / tau)) * 2; return J.ok()


@H
def slowing_clock_bounded(r):
    """growth straight per step, steps slow down tenfold: looks like a square root in time; ends"""
    J = Job(r, lo=600, dthi=5); J.healthy((.15, .44)); J.add(J.A * ramp(J.u, 0, U(r, .5, .85)), "live"); J.dt *= 1 + 9 * J.u; return J.ok()


@H
def cached_climb_reclaimable(r):
    """reserved climbs while peak is flat, all of it cache; falls at empty_cache"""
    J = Job(r, lo=500); J.healthy(J.split_e(.25)); a = U(r, .5, .85); g = np.where(J.u < a, J.u / a, .05); J.add(J.A * g, "slack"); J.flush[int(a * J.n) + 1] = True; J.meta["cache_only"] = True; return J.straight()


@H
def cached_log_to_the_card(r):
    """reserved grows like a logarithm until it touches the card, is flushed there, again; peak flat"""
    J = Job(r, lo=500); J.healthy((.0, .01), (.45, .8)); x = 1 - J.b; m = marks_every(J.n, J.n / U(r, 1.3, 4), r, .1); s = saw(J.n, m); k = U(r, 30, 500)
    J.slack += x * U(r, .85, 1.0) * J.cap * np.log1p(k * s) / np.log1p(k)
    for b in m[1:-1]: J.flush[b] = b < J.n if b < J.n else False
    J.meta["cache_only"] = True; return J.ok()


@H
def cached_teeth_to_the_card(r):
    """reserved was at 97 % in step 2 (autotune), emptied, climbs straight and is flushed, again and again; peak flat"""
    J = Job(r, lo=500); J.healthy((.0, .01), (.45, .8), start=False); m = marks_every(J.n, J.n / U(r, 1.5, 10), r, .1); J.slack += (1 - J.b) * .93 * J.cap * saw(J.n, m); J.slack[2] = (1 - J.b) * .96 * J.cap; J.flush[4] = True
    for b in m[1:-1]:
        if b < J.n: J.flush[b] = True
    J.meta.update(cache_only=True, was_as_high=True); return J.ok(indistinct=0.0)


@H
def outside_pool_records(r):
    """outside torch: a decoder's pool grows to the largest picture so far"""
    J = Job(r, lo=400); J.healthy((.1, .5)); x = np.minimum(1, r.gumbel(0, 1, J.n) / U(r, 7, 10)); J.add(J.A * np.maximum.accumulate(np.maximum(x, 0)), "out"); return J.ok()


@H
def poller_beat(r):
    """step time within a per mille of 1/k s: flat per step, but a 1 Hz poller sees a slow wave through the whole step"""
    k = int(r.integers(1, 8)); J = Job(r, dt=1.0 / k * (1 + r.choice([-1, 1]) * LU(r, 2e-4, 3e-3)), n=int(r.integers(900, 3000)) * k if k < 4 else 12000, jitter=2e-6); J.healthy((0, .001), (.85, .96), actsh=U(r, .5, .8), noise="tiny", amp=.05); J.meta["beat"] = True; return J.ok()


@H
def boundary_beat(r):
    """something freed every 1.00x steps: boundary values drift up slowly and fall, peak is flat"""
    J = Job(r, lo=500); J.healthy((.3, .85), noise="tiny"); f = (J.i / (1 + 1 / (J.n / U(r, 1.2, 8))) + r.random()) % 1; f = f if r.random() < .5 else 1 - f; f = (np.floor(f * 400) / 400)
    J.live += J.A * f; prev = np.concatenate([f[:1], f[:-1]]); J.act += J.A * (1 - np.maximum(prev, f)); J.meta["top_flat"] = True; return J.ok(indistinct=0.0)


@H
def mixed_bag(r):
    """saturation + saw + records + one jump at once"""
    J = Job(r, lo=600); J.healthy((.25, .6)); w = r.dirichlet([2, 2, 2, 2]); J.add(J.A * w[0] * (1 - np.exp(-J.u / U(r, .03, .2))), "live"); J.add(J.A * w[1] * saw(J.n, marks_every(J.n, J.n / U(r, 6, 60), r, .2)), "live")
    J.add(J.A * w[2] * np.minimum(1, r.exponential(.16, J.n)), "act"); J.add(J.A * w[3] * stairs(J.n, [U(r, .2, .8) * J.n], 1), "mix"); return J.ok()


@H
def topk_snapshots(r):
    """best-k weights kept on the card: k stairs with a copy spike, then replaced in place"""
    J = Job(r, lo=600); J.healthy(J.split_e(.15)); k = int(r.integers(3, 8)); P = J.n / (k + U(r, 3, 10)); at = (np.arange(1, 60) * P).astype(int); at = at[at < J.n]; J.add(J.A * stairs(J.n, at[:k], 1 / (k + 1)), "live"); J.act[at] += J.A / (k + 1); return J.straight()


@H
def moe_imbalance_episode(r):
    """routing collapses: activations swell in noisy lognormal bursts, balancing loss brings them back"""
    J = Job(r, lo=500); J.healthy((.2, .6), noise="tiny"); c, w = U(r, .25, .7), U(r, .06, .18); x = np.exp(-((J.u - c) / w) ** 2) * np.exp(.25 * ar1(r, J.n, 15)).clip(.4, 1.6) / 1.6; J.add(J.A * x, "act"); return J.ok()


@H
def first_steps_fill(r):
    """job start: 5-40 steps of concave filling to 85 % of what was free, then flat"""
    J = Job(r); J.healthy((.4, .88), (.85, .96)); J.add(J.A * (1 - np.exp(-J.i / U(r, 1.5, 9))), r.choice(["live", "mix"])); return J.ok()


@H
def straight_start_fill(r):
    """job start: 10-40 steps straight to the working level, then flat (lazy shards)"""
    J = Job(r); J.healthy(J.split_e()); J.add(J.A * ramp(J.i, 0, int(r.integers(10, 41))), "live"); return J.straight()


@H
def plateau_at_the_brim(r):
    """saturates at 94-98 % of the card, noise on top"""
    J = Job(r); J.healthy((.6, .93), (.94, .975), spikes=False); J.add(J.A * (1 - np.exp(-J.u / U(r, .02, .12))), r.choice(["live", "mix"])); return J.ok()


@H
def climb_then_full_release(r):
    """straight climb under half, everything freed at once late, flat"""
    J = Job(r, lo=400); J.healthy((.15, .44)); c = U(r, .4, .9); J.add(J.A * np.where(J.u < c, J.u / c, 0), "live"); J.flush[int(c * J.n) + 1] = r.random() < .5; return J.ok()


@H
def swelling_envelope(r):
    """saw whose tops swell and ebb over a slow envelope"""
    J = Job(r, lo=700); J.healthy((.15, .5)); J.add(J.A * saw(J.n, marks_every(J.n, J.n / U(r, 30, 120))) * (.55 - .45 * np.cos(2 * np.pi * J.u * U(r, .9, 3))), "live"); return J.ok()


@H
def level_by_level_wander(r):
    """bucketed shapes: a random ladder walk between 6-12 levels, long stays"""
    J = Job(r, lo=500); J.healthy((.2, .55)); K = int(r.integers(6, 13)); x, y = 0, []
    p = U(r, 20, 80) / J.n
    for v, d in zip(r.random(J.n).tolist(), r.random(J.n).tolist()):
        if v < p: x = min(K, max(0, x + (1 if d < .5 else -1)))
        y.append(x)
    J.add(J.A * np.array(y) / K, "mix"); return J.ok()


@H
def after_each_plateau_another(r):
    """three saturating rises one after another, each half of the one before (stage after stage)"""
    J = Job(r, lo=600); J.healthy((.25, .7)); st = [0, U(r, .25, .35), U(r, .55, .68)]; z = np.array([4, 2, 1]) / 7; tau = U(r, .02, .06); J.add(J.A * sum(w * (1 - np.exp(-np.maximum(0, J.u - a) / tau)) for w, a in zip(z, st)), "live"); return J.ok()


@H
def staircase_swapped_for_cache(r):
    """stairs up in alloc while activations shrink by as much (checkpointing switched on layer by layer): peak flat"""
    J = Job(r, lo=500); J.healthy((.3, .8)); k = int(r.integers(5, 15)); g = J.A * stairs(J.n, np.linspace(.08, .9, k) * J.n, 1 / k); J.live += g; prev = np.concatenate([g[:1], g[:-1]]); J.act += J.A - np.maximum(g, prev); J.meta["top_flat"] = True; return J.ok(indistinct=0.0)


@H
def rank_drains_and_returns(r):
    """memory shrinks straight over half the series (pruning of a list), then back up with the next data shard"""
    J = Job(r, lo=500); J.healthy((.4, .85)); c = U(r, .3, .6); d = U(r, .8, .95); J.add(J.A * np.where(J.u < c, 1 - .9 * J.u / c, np.minimum(.98, .1 + .88 * (J.u - c) / (d - c))), "mix"); J.meta["was_as_high"] = True; return J.ok(indistinct=0.0)


def _sorted_lengths(r, n, P):
    g = np.zeros(n)
    for a in range(0, n, P):
        x = np.sort(r.lognormal(0, .7, P)); x = np.minimum(x / np.exp(.7 * 2.2), 1); g[a:a + P] = x[:min(P, n - a)]
    return g


@H
def ascending_lengths(r):
    """each epoch sorted short to long: convex teeth, steepest at their end"""
    J = Job(r, lo=600); J.healthy(J.split_e(.2), noise="tiny"); P = int(J.n / U(r, 1.3, 8)); J.add(J.A * _sorted_lengths(r, J.n, P), "act"); return J.straight()


@H
def longest_first_then_ascending(r):
    """the longest batch is tried at step 1, then every epoch is sorted ascending: convex climbs that stay under the first mark"""
    J = Job(r, lo=600); J.healthy((.4, .85), noise="tiny", start=False); P = int(J.n / U(r, 1.3, 6)); J.add(J.A * .98 * _sorted_lengths(r, J.n, P), "act"); J.act[1] += J.A; J.meta["was_as_high"] = True; return J.ok(indistinct=0.0)


@H
def coinciding_cycles(r):
    """three periodic extras of incommensurate periods: records only where they happen to meet, late ones highest"""
    J = Job(r, lo=900); J.healthy((.2, .6), noise="tiny"); ps = np.exp(r.uniform(np.log(7), np.log(J.n / 12), 3)).astype(int)
    for p, w in zip(ps, r.dirichlet([4, 4, 4])): J.act += J.A * w * ((J.i + int(r.integers(p))) % p < max(1, p // 12))
    return J.ok(indistinct=0.0)


@H
def two_saws_beat(r):
    """two saws of nearly equal period: tops and mean-square swell over a slow beat, then fall"""
    J = Job(r, lo=900); J.healthy((.2, .6)); p = LU(r, 10, J.n / 30); q = p * (1 + p / J.n * U(r, .7, 3)); w = U(r, .35, .65)
    J.add(J.A * (w * ((J.i / p) % 1) + (1 - w) * ((J.i / q + r.random()) % 1)), r.choice(["live", "act"])); return J.ok()


@H
def ratchet_that_ends(r):
    """two up, one down, from floor to floor, then level"""
    J = Job(r, lo=700); J.healthy((.15, .44)); k = int(r.integers(4, 15)); T = U(r, .4, .8); p = max(4, int(T * J.n / k)); s = np.minimum(np.floor(J.i / p), k); ph = np.where(s < k, (J.i % p) / p, 0)
    J.add(J.A * (s + 2 * ph) / (k + 1), "live"); return J.ok()


@H
def generations_hand_over(r):
    """old and new copy of a model overlap: old one leaves in slices while the new one arrives; sum humps up and falls, repeatedly higher by less each time"""
    J = Job(r, lo=600); J.healthy((.2, .65)); P = max(20, int(J.n / U(r, 4, 14))); ph = (J.i % P) / P; h = np.minimum(ramp(ph, .1, .5), 1 - ramp(ph, .6, .9)); k = np.floor(J.i / P); J.add(J.A * h * (1 - .5 * .5 ** k), "live"); return J.ok()


# ================================================================================================ LEAKS
def _late(J, lo=.1, hi=.6):
    i0 = int(J.n * U(J.r, lo, hi)); io = int(i0 + (J.n * .96 - i0) * U(J.r, .4, 1)); return i0, max(io, i0 + 40)


def _lin(J, i0, io, p=1.0):
    return (np.maximum(0, J.i - i0 + 1) / (io - i0 + 1)) ** p


@L
def leak_linear(r):
    """straight from the first step"""
    J = Job(r); J.leaky(); io = int(J.n * U(r, .5, .95)); return J.fails(_lin(J, 0, io), io, 0)


@L
def leak_over_in_30(r):
    """flat for long, then everything gone within 14-30 steps"""
    J = Job(r, dtlo=.5); J.leaky(); i0 = int(J.n * U(r, .1, .85)); io = i0 + int(r.integers(14, 31)); return J.fails(_lin(J, i0, io), io, i0, cut_p=0, window=60)


@L
def leak_from_start_fast(r):
    """runs out 20-80 steps after the start of the job"""
    J = Job(r, dtlo=1.0); J.leaky((.3, .7)); io = int(r.integers(20, 81)); return J.fails(_lin(J, 3, io), io, 3, cut_p=0)


@L
def leak_late(r):
    """long flat, then slow straight"""
    J = Job(r, lo=600); J.leaky(); i0, io = _late(J, .4, .75); return J.fails(_lin(J, i0, io), io, i0, r.choice(["live", "act"]))


@L
def leak_few_stairs(r):
    """one stair an epoch, 4-8 until the end"""
    J = Job(r, lo=500); J.leaky(); k = int(r.integers(4, 9)); P = J.n * .93 / k; at = (np.arange(1, k + 1) * P).astype(int); g = stairs(J.n, at, 1 / (k - .4)); return J.fails(g, at[-1], at[0])


@L
def leak_many_stairs(r):
    """15-60 stairs with jitter in time and size"""
    J = Job(r, lo=600); J.leaky(); k = int(r.integers(15, 61)); i0 = int(J.n * U(r, .02, .3)); at = np.linspace(i0, J.n * .93, k) + r.normal(0, .2 * J.n / k, k); at = np.maximum(at, i0); at[0] = i0; g = stairs(J.n, at, r.gamma(3, 1 / 3, k)); return J.fails(g, int(J.n * .93), i0)


@L
def leak_exponential(r):
    """exponential, 3-7 e-foldings"""
    J = Job(r, lo=500); J.leaky(); i0 = int(J.n * U(r, 0, .4)); io = int(J.n * U(r, .75, .95)); k = U(r, 3, 7); g = np.expm1(k * np.maximum(0, J.i - i0) / (io - i0)) / np.expm1(k); return J.fails(g, io, i0)


@L
def leak_quadratic(r):
    """a list whose items grow too"""
    J = Job(r, lo=500); J.leaky(); i0 = int(J.n * U(r, 0, .4)); io = int(J.n * U(r, .75, .95)); return J.fails(_lin(J, i0, io, U(r, 1.6, 2.5)), io, i0)


@L
def leak_concave(r):
    """t^.6-.8, does not stop"""
    J = Job(r, lo=500); J.leaky((.4, .85)); io = int(J.n * U(r, .6, .95)); i0 = int(io * U(r, 0, .2)); return J.fails(_lin(J, i0, io, U(r, .6, .8)), io, i0)


@L
def leak_bursts(r):
    """leaks only in bursts (a tenth of the time), 6-20 of them"""
    J = Job(r, lo=700); J.leaky(); k = int(r.integers(6, 21)); P = J.n * .95 / k; on = ((J.i % P) >= P * .9); g = np.cumsum(on); io = int(J.n * .94); return J.fails(g / g[io], io, int(P * .9) + 1)


@L
def leak_random_events(r):
    """Poisson events of equal size, 12-60"""
    J = Job(r, lo=600); J.leaky(); lam = U(r, 12, 60) / (J.n * .9); i0 = int(J.n * .03); ev = (r.random(J.n) < lam) & (J.i >= i0); ev[i0] = True; g = np.cumsum(ev); io = int(J.n * .92); return J.fails(g / max(1, g[io]), io, i0)


@L
def leak_heavy_tailed_events(r):
    """random events with lognormal sizes (capped at a twelfth of the head-room): many small, few big"""
    J = Job(r, lo=700); J.leaky(); ev = np.where(r.random(J.n) < U(r, 80, 250) / J.n, np.exp(1.2 * r.standard_normal(J.n)), 0); ev[int(J.n * .02)] = 1; ev[:int(J.n * .02)] = 0; ev = np.minimum(ev, ev.sum() / 14); g = np.cumsum(ev); io = int(J.n * .93); return J.fails(g / g[io], io, int(J.n * .02))


@L
def leak_under_heavy_noise(r):
    """step noise as wide as the head-room or wider"""
    J = Job(r, lo=700); J.leaky((.6, .85), actsh=U(r, .4, .7), noise=r.choice(["len", "bi", "ar"]), amp=U(r, .5, .9), spikes=False); i0, io = _late(J, .05, .4); return J.fails(_lin(J, i0, io), io, i0)


@L
def leak_after_straight_ramp(r):
    """a healthy ramp ends, plateau, then the leak"""
    J = Job(r, lo=700); J.healthy((.2, .5), (.5, .8)); J.add(J.A * ramp(J.u, .03, U(r, .15, .3)), "act"); i0, io = _late(J, .4, .6); return J.fails(_lin(J, i0, io), io, i0)


@L
def leak_behind_saturation(r):
    """saturates visibly, but a slow straight tail stays and kills (plateau fits say 'bounded')"""
    J = Job(r, lo=700); J.healthy((.3, .6), (.5, .8)); J.add(J.A * (1 - np.exp(-J.u / U(r, .03, .1))), "live"); io = int(J.n * U(r, .75, .95)); return J.fails(_lin(J, 0, io), io, 0)


@L
def leak_slowing_steps(r):
    """constant per step, steps slow down tenfold: concave in time"""
    J = Job(r, lo=500, dthi=5); J.leaky(); J.dt *= 1 + 9 * J.u ** U(r, .7, 1.5); io = int(J.n * U(r, .6, .95)); return J.fails(_lin(J, 0, io), io, 0)


@L
def leak_through_pauses(r):
    """straight per step with pauses of hours"""
    J = Job(r, lo=400); J.leaky(); J.pause(int(r.integers(1, 5))); i0, io = _late(J, .02, .4); return J.fails(_lin(J, i0, io), io, i0)


@L
def leak_under_saw(r):
    """big regular teeth on a rising floor"""
    J = Job(r, lo=700); J.healthy((.4, .8), (.6, .85)); J.add(J.A * saw(J.n, marks_every(J.n, LU(r, 8, J.n / 14), r, .1)), "live"); i0, io = _late(J, .02, .3); return J.fails(_lin(J, i0, io), io, i0)


@L
def leak_taller_teeth(r):
    """the floor never rises: each epoch's accumulator is longer than the last; dies at a top"""
    J = Job(r, lo=900); J.leaky(); m = marks_every(J.n, J.n / U(r, 10, 30)); s = saw(J.n, m); k = np.searchsorted(m, J.i, side="right"); g = s * k / k.max(); io = min(m[-3], J.n) - 1; i0 = 0; return J.fails(g, io, i0, cut_p=0)


@L
def leak_eval_peaks_only(r):
    """training flat; every evaluation needs a little more than the one before, 10-30 of them"""
    J = Job(r, lo=900); J.leaky(spikes=False); K = int(r.integers(10, 31)); P = int(J.n * .95 / K); k = np.floor((J.i + 1) / P); g = np.where((J.i + 1) % P == 0, k / K, 0); w = int(r.integers(1, 4)); 
    for _ in range(w - 1): g = np.maximum(g, np.concatenate([[0], g[:-1]]))
    return J.fails(g, K * P - 1, P - 1, "act", cut_p=0)


@L
def leak_meets_rare_peak(r):
    """slow leak in training; a rare, known tall evaluation peak is where it dies (training itself looks far from the card)"""
    J = Job(r, lo=900); J.leaky((.3, .55), spikes=False); P = int(J.n / U(r, 9, 25)); k = np.arange(P // 2, J.n, P); top = U(r, .72, .88) * J.cap - J.b * J.cap; J.act[k] = J.actmax + top; io = int(J.n * U(r, .75, .93)); return J.fails(_lin(J, 0, io), io, 0)


@L
def leak_masked_by_shrinking(r):
    """something healthy shrinks as fast as the leak grows; flat sum for half the time, then it shows"""
    J = Job(r, lo=700); J.healthy((.2, .45), (.6, .85)); c = U(r, .4, .6); J.add(J.A * (1 - ramp(J.u, 0, c)), r.choice(["act", "live"])); io = int(J.n * U(r, .85, .95)); return J.fails(_lin(J, 0, io), io, 0, window=int(.1 * J.n))


@L
def leak_two_up_one_down(r):
    """random walk with drift: partial frees all the way"""
    J = Job(r, lo=900); J.leaky(); i0 = int(J.n * .02); d = np.where(J.i >= i0, 1 + U(r, 2, 6) * r.standard_normal(J.n), 0); g = np.maximum(0, np.cumsum(d)); io = int(J.n * .93); mu = .93 * J.n; g = np.maximum(g, .3 * np.maximum(0, J.i - i0)); return J.fails(g / mu, io, i0)


@L
def leak_outside(r):
    """outside the allocator, straight: nvml only"""
    J = Job(r); J.leaky(); i0, io = _late(J, .02, .5); return J.fails(_q(_lin(J, i0, io), 1e-4), io, i0, "out")


@L
def leak_communicators(r):
    """a new communicator / workspace per epoch outside, 6-25 stairs"""
    J = Job(r, lo=600); J.leaky(); k = int(r.integers(6, 26)); at = (np.arange(1, k + 1) * J.n * .94 / k).astype(int); return J.fails(stairs(J.n, at, 1 / (k - .3)), at[-1], at[0], "out")


@L
def leak_fragmentation(r):
    """alloc and peak flat; reserved pieces that cannot be given back pile up"""
    J = Job(r, lo=500); J.leaky(noise="len"); i0, io = _late(J, .02, .4); return J.fails(_lin(J, i0, io, U(r, .8, 1.2)), io, i0, "pin")


@L
def leak_fragmentation_with_flushes(r):
    """reserved is a saw (cache flushed often) on a floor of stuck pieces that rises"""
    J = Job(r, lo=700); J.leaky((.3, .7)); m = marks_every(J.n, J.n / U(r, 15, 60), r, .1); J.slack += .3 * (1 - J.b) * J.cap * saw(J.n, m)
    for b in m[1:-1]:
        if b < J.n: J.flush[b] = True
    i0, io = _late(J, .02, .3); return J.fails(_lin(J, i0, io), io, i0, "pin")


@L
def leak_peak_only(r):
    """boundary flat, the step's own graph grows (loss history kept): peak only"""
    J = Job(r, lo=500); J.leaky(); i0, io = _late(J, .02, .5); return J.fails(_lin(J, i0, io, U(r, .8, 1.3)), io, i0, "act")


@L
def leak_rate_switches(r):
    """slow leak that turns 5-15 times faster"""
    J = Job(r, lo=600); J.leaky(); c = U(r, .5, .8); k = U(r, 5, 15); rate = np.where(J.u < c, 1, k); g = np.cumsum(rate); io = int(J.n * U(r, c + .1, .95)); return J.fails(g / g[io], io, 0)


@L
def leak_resumes_after_plateau(r):
    """leaks, stops for a third of the run (looks bounded), goes on"""
    J = Job(r, lo=700); J.leaky(); a, b = U(r, .15, .3), U(r, .5, .65); rate = np.where((J.u > a) & (J.u < b), 0, 1.0); g = np.cumsum(rate); io = int(J.n * U(r, .85, .95)); return J.fails(g / g[io], io, 0)


@L
def leak_stairs_resume(r):
    """three stairs, long nothing, then stairs again to the end"""
    J = Job(r, lo=700); J.leaky(); at = np.concatenate([np.linspace(.06, .16, 3), np.linspace(.55, .94, int(r.integers(5, 10)))]) * J.n; at = at.astype(int); return J.fails(stairs(J.n, at, 1 / (len(at) - .4)), at[-1], at[0])


@L
def leak_accelerating_stairs(r):
    """equal stairs, ever closer together"""
    J = Job(r, lo=600); J.leaky(); k = int(r.integers(7, 13)); q = U(r, .72, .88); gap = q ** np.arange(k); at = (np.cumsum(gap) / gap.sum() * J.n * .94).astype(int); return J.fails(stairs(J.n, at, 1 / (k - .4)), at[-1], at[0])


@L
def leak_with_restarts(r):
    """frees itself by an in-job restart once, then leaks on, steeper, to the end"""
    J = Job(r, lo=700); J.leaky(); a = U(r, .3, .5); g = np.where(J.u < a, .5 * J.u / a * U(r, .4, 1), (J.u - a) / (.93 - a)); J.flush[int(a * J.n) + 1] = True; return J.fails(g, int(.93 * J.n), 0, cut_p=0)


@L
def leak_on_daily_wave(r):
    """straight leak under a slow sine of comparable size"""
    J = Job(r, lo=700); J.healthy((.3, .6), (.55, .8)); J.add(J.A * (.5 + .5 * np.sin(2 * np.pi * (J.u * U(r, 2, 6) + r.random()))), "act"); io = int(J.n * U(r, .8, .95)); return J.fails(_lin(J, 0, io), io, 0)


@L
def leak_in_and_outside(r):
    """half of it in live, half outside"""
    J = Job(r, lo=500); J.leaky(); i0, io = _late(J, .02, .5); w = U(r, .3, .7); return J.fails(_lin(J, i0, io), io, i0, {"live": w, "out": 1 - w})


@L
def leak_below_high_water(r):
    """autotune reserved almost everything at step 2: reserved and nvml stay flat while alloc climbs under them to the end"""
    J = Job(r, lo=600); J.leaky((.3, .65), spikes=False, start=False); J.act[2] += (U(r, .9, .97) - J.b) * J.cap; i0, io = _late(J, .05, .4); return J.fails(_lin(J, i0, io), io, i0, r.choice(["live", "act"]))


@L
def leak_checkpoint_copies(r):
    """every checkpoint leaves a copy, and needs a spike twice as tall while it saves; 8-15 of them"""
    J = Job(r, lo=800); J.leaky(spikes=False); k = int(r.integers(8, 16)); P = int(J.n * .95 / k); at = np.arange(1, k + 1) * P; at = at[at < J.n]; g = stairs(J.n, at, 1 / k); g[at] += 1 / k; return J.fails(g, at[-1], at[0])


@L
def leak_nearly_full_card(r):
    """card at 93-97 %, a few hundred MiB to go, leak in small pieces"""
    J = Job(r, lo=400); J.leaky((.93, .97), noise="tiny", amp=.03, spikes=False); i0, io = _late(J, .05, .5); return J.fails(_lin(J, i0, io), io, i0)


@L
def leak_low_state_only(r):
    """two-level job; only the low level grows (and is seldom seen) until it overtakes the high one"""
    J = Job(r, lo=900); J.leaky((.2, .4), spikes=False); hi = r.random(J.n) < U(r, .5, .95); hi[-1] = False; free = (1 - J.b) * J.cap; io = int(J.n * .93)
    J.act = np.where(hi, J.act + U(r, .3, .6) * free, J.act); J.meta["two_level"] = True; lv = np.where(hi, 0, _lin(J, 0, io))
    io = int(np.flatnonzero(~hi & (J.i <= io))[-1]); return J.fails(lv, io, 0, "act", cut_p=0, H=free)


@L
def leak_every_other_epoch(r):
    """leaks in one epoch, is silent in the next"""
    J = Job(r, lo=700); J.leaky(); k = int(r.integers(4, 9)); P = J.n * .95 / (2 * k); on = (np.floor(J.i / P) % 2) == 0; g = np.cumsum(on) * 1.0; io = int((2 * k - 1.3) * P); return J.fails(g / g[io], io, 0)


@L
def leak_after_long_decline(r):
    """memory falls slowly for half the run, then a fast straight leak past everything"""
    J = Job(r, lo=700); J.healthy((.2, .4), (.6, .85)); J.add(J.A * (1 - .9 * ramp(J.u, 0, .5)), "mix"); i0 = int(J.n * U(r, .5, .7)); io = i0 + max(40, int(J.n * U(r, .05, .25))); return J.fails(_lin(J, i0, io), io, i0, window=int(.1 * J.n))


@L
def leak_narrow_after_wide(r):
    """wide noise at first, narrow later; the leak is drowned at first"""
    J = Job(r, lo=700); J.leaky((.4, .7), noise="tiny", spikes=False); w = np.exp(-J.u / .25); J.act += (1 - J.b) * .4 * J.cap * w * r.random(J.n); io = int(J.n * U(r, .8, .95)); return J.fails(_lin(J, 0, io), io, 0)


@L
def leak_capped_rate_jitter(r):
    """leak per step is gamma with shape .02 (a few steps carry all)"""
    J = Job(r, lo=900); J.leaky(); g = np.cumsum(r.gamma(.04, 25, J.n)); io = int(J.n * .93); return J.fails(g / g[io], io, 0)


@L
def leak_ratchet(r):
    """each stair gives two thirds back slowly, the rest stays; 8-20 stairs"""
    J = Job(r, lo=800); J.leaky(); k = int(r.integers(8, 21)); P = J.n * .94 / k; s = np.floor(J.i / P); ph = (J.i / P) % 1; i0 = int(P) + 1; g = np.where(s >= 1, s + 2 * (1 - ph), 0) / (k + 1); return J.fails(g, int((k - 1) * P) + 2, i0)


@L
def leak_at_constant_brim(r):
    """the allocator has cached the whole card from the start: reserved and nvml flat at the brim, alloc and peak climb inside"""
    J = Job(r, lo=500); J.leaky((.3, .75), start=False); J.slack += np.where(J.i > 5, J.cap, 0); i0, io = _late(J, .03, .5); return J.fails(_lin(J, i0, io), io, i0, r.choice(["live", "act"]))


@L
def leak_outside_squeezes_cache(r):
    """nvml sits at the brim all along; what leaks outside pushes the cache out: reserved falls, alloc and peak flat"""
    J = Job(r, lo=500); J.leaky((.3, .75), start=False); J.slack += np.where(J.i > 5, J.cap, 0); i0, io = _late(J, .03, .5); return J.fails(_lin(J, i0, io), io, i0, "out")


@L
def leak_meets_long_sample(r):
    """slow leak; heavy-tailed batch lengths; dies on a long batch of a kind seen before"""
    J = Job(r, lo=900); J.healthy((.25, .5), (.6, .8), noise="tiny"); x = np.minimum(1, r.pareto(2.0, J.n) / 8); J.add(J.A * x, "act"); io = int(J.n * U(r, .75, .95)); return J.fails(_lin(J, 0, io), io, 0, window=J.n)


@L
def leak_under_ascending_lengths(r):
    """epochs sorted short to long (convex teeth) on a leaking floor"""
    J = Job(r, lo=900); J.healthy((.3, .6), (.55, .8), noise="tiny"); P = int(J.n / U(r, 6, 20)); J.add(J.A * _sorted_lengths(r, J.n, P), "act"); io = int(J.n * U(r, .8, .95)); return J.fails(_lin(J, 0, io), io, 0, window=P)


@L
def leak_quickening_clock(r):
    """a step gets ten times shorter: straight per step, explosive in time"""
    J = Job(r, lo=600, dtlo=.3); J.leaky(); J.dt /= 1 + 9 * J.u; io = int(J.n * U(r, .7, .95)); return J.fails(_lin(J, 0, io), io, 0)


# ================================================================================================ HARMLESS (-1)
@X
def tiny_linear(r):
    """straight, .3-5 % of the head-room in the whole series"""
    J = Job(r, lo=500); J.leaky((.3, .8)); i0 = int(J.n * U(r, 0, .4)); J_ = (np.maximum(0, J.i - i0) / (J.n - i0)); return J.harmless(J_ * (1 - i0 / J.n), i0)


@X
def tiny_stairs(r):
    """a few MiB every epoch"""
    J = Job(r, lo=500); J.leaky((.3, .8)); k = int(r.integers(5, 30)); at = (np.arange(1, k + 1) * J.n / (k + 1)).astype(int); return J.harmless(stairs(J.n, at, 1 / k), at[0])


@X
def tiny_under_noise(r):
    """drowned in noise"""
    J = Job(r, lo=500); J.leaky((.4, .75), amp=U(r, .3, .8), noise="len"); return J.harmless(J.u.copy(), 0)


@X
def tiny_outside(r):
    """driver / log buffers outside torch"""
    J = Job(r, lo=500); J.leaky((.3, .85)); return J.harmless(np.floor(J.u * 12) / 12, 0, "out")


@X
def tiny_tail_of_saturation(r):
    """saturating growth with a straight tail that would take years"""
    J = Job(r, lo=600); J.healthy((.3, .6), (.6, .8)); J.add(J.A * (1 - np.exp(-J.u / U(r, .02, .08))), "live"); return J.harmless(J.u.copy(), 0)


@X
def tiny_under_saw(r):
    """large healthy saw, floor rises by nothing that matters"""
    J = Job(r, lo=600); J.healthy((.15, .45), (.6, .85)); J.add(J.A * saw(J.n, marks_every(J.n, J.n / U(r, 10, 80))), "live"); return J.harmless(J.u.copy(), 0)


@X
def tiny_fragmentation(r):
    """reserved creeps"""
    J = Job(r, lo=500); J.leaky((.3, .8)); return J.harmless(np.log1p(5 * J.u) + J.u, 0, "pin")


@X
def tiny_on_full_card(r):
    """card at 94-97 %, creep of a few MiB"""
    J = Job(r, lo=500); J.leaky((.94, .97), noise="tiny", amp=.03, spikes=False); return J.harmless(J.u.copy(), 0)


# healthy families whose growth cannot be told from a leak while it lasts: the *measured* share decides (redrawn near a half)
UNREADABLE = set("""linear_fill_to_bound late_ramp_that_ends ramps_and_plateaus few_equal_stairs_end many_equal_stairs_end doubling_buffer
slow_saw_few_teeth falling_tops nested_saw irregular_saw gc_geometric_periods triangle quadratic_resolution_ramp exponential_ramp_ends
ramp_across_pauses quickening_clock slowing_clock_bounded recompiles_to_limit topk_snapshots climb_then_full_release ratchet_that_ends
longer_answers_to_limit ascending_lengths heaps_cache_bounded sqrt_that_ends eval_accumulator brownian_bridge reflected_queue
cached_climb_reclaimable""".split())
assert UNREADABLE <= set(HEALTHY)


def measured(d):
    """share of the head-room taken between the early level (highest of the first 4 %, start-up left out) and the highest"""
    x = d["nvml"] if d["meta"].get("cache_only") else d["peak"] + d["nvml"] - d["resv"]
    n = len(x)
    a = x[min(8, n // 50):max(12, n // 25)].max()
    return float((x.max() - a) / (d["capacity"] - a))


FAMILIES = {**HEALTHY, **LEAK, **HARMLESS}


# ================================================================================================ corpus
def corpus(seed, variants=2, set_=None):
    out = []
    for name, f in FAMILIES.items():
        for v in range(variants):
            rng = np.random.default_rng([seed, crc32(name.encode()), v])
            for _ in range(60):
                d = f(rng)
                if name not in UNREADABLE:
                    break
                m = measured(d)                                     # noise may move a nominal share: keep clear of a half, redraw
                if (m > 0.55) if d["ambiguous"] else (m < 0.48):
                    break
            else:
                d["ambiguous"] = m > 0.5
            d["meta"]["doc"] = f.__doc__
            out.append(Series(name=f"{name}/{seed}/{v}", family=name, **d))
    return out


def to_1hz(s):
    """What a poller sees that reads once a second (free-running clock, random start phase, ~1 ms jitter).
    alloc: the instantaneous value; peak: maximum since the last reading (allocator peak, reset at each reading; never above resv);
    resv, nvml: as they stand.  Series whose median step is a second or longer come back unchanged.
    In a long pause (> 60 s and > 20 median steps) half of the pollers (by name) are suspended too and leave a gap."""
    dt = np.diff(s.t, prepend=0.0)
    med = float(np.median(dt))
    if med >= 1.0 or len(s.t) < 2:
        return replace(s, name=s.name + "@1hz", meta=dict(s.meta, hz=False))
    r = np.random.default_rng([crc32(s.name.encode()), 7])
    k = np.arange(0, int(s.t[-1]) + 1, dtype=float)
    tt = np.sort(k + r.random() + 1e-3 * r.standard_normal(len(k)))
    tt = tt[(tt > 0) & (tt < s.t[-1])]
    if len(tt) == 0:
        tt = np.array([s.t[-1] * 0.5])
    j = np.minimum(np.searchsorted(s.t, tt, side="right"), len(s.t) - 1)        # step that is running
    start = s.t[j] - dt[j]
    ph = np.clip((tt - start) / np.maximum(dt[j], 1e-9), 0, 1)
    longstep = dt[j] > 4 * med
    pause = (dt[j] > 60) & (dt[j] > 20 * med)
    ph = np.where(longstep, r.random(len(tt)), ph)                              # a long step is many short cycles (eval)
    ph = np.where(pause, 0.0, ph)                                               # suspended at the boundary
    prev = s.alloc[np.maximum(j - 1, 0)]
    top = s.peak[j]
    c = 0.55
    a = np.where(ph < c, prev + (top - prev) * ph / c, top + (s.alloc[j] - top) * (ph - c) / (1 - c))
    a = np.minimum(np.maximum(np.floor(a / 512) * 512, np.minimum(prev, s.alloc[j])), top)
    if r.random() < 0.5:
        keep = ~(pause & (tt - start > 2))
        tt, j, a = tt[keep], j[keep], a[keep]
    resv = s.resv[j]
    jp = np.concatenate([[0], j[:-1]])
    idx = np.stack([jp, j + 1], 1).ravel()
    pp = np.append(s.peak, 0.0)
    wm = np.maximum.reduceat(pp, idx)[::2] if len(j) else np.zeros(0)
    peak = np.maximum(np.minimum(wm, resv), a)
    m = dict(s.meta, hz=True, samples_after_onset=int((tt > s.onset).sum()) if s.onset == s.onset else 0)
    amb = s.ambiguous
    if amb:                                                                     # the climb may fall between the readings
        x = s.nvml[j] if s.meta.get("cache_only") else peak + s.nvml[j] - resv
        lo = x[:max(3, len(x) // 10)].min()
        amb = bool(len(x) > 10 and (x.max() - lo) / (s.capacity - lo) > 0.5)
    return replace(s, name=s.name + "@1hz", ambiguous=amb, t=tt, alloc=a, peak=peak, resv=resv, nvml=s.nvml[j], meta=m)


# ================================================================================================ self-check
def check(s):
    n = len(s.t)
    assert n == len(s.alloc) == len(s.peak) == len(s.resv) == len(s.nvml) and n >= 1, s.name
    assert np.all(np.diff(s.t) > 0) and s.t[0] > 0, (s.name, "time")
    for x in (s.t, s.alloc, s.peak, s.resv, s.nvml):
        assert np.all(np.isfinite(x)), s.name
    assert np.all(s.alloc > 0) and np.all(s.alloc <= s.peak) and np.all(s.peak <= s.resv), (s.name, "alloc<=peak<=resv")
    assert np.all(s.resv <= s.nvml) and np.all(s.nvml <= s.capacity), (s.name, "resv<=nvml<=cap")
    assert np.all(s.alloc % 512 == 0) and np.all(s.peak % 512 == 0) and np.all(s.resv % Q == 0), (s.name, "quantised")
    if s.label == 1:
        assert s.oom > s.t[-1] and s.oom > s.onset and not s.ambiguous, s.name
        assert s.meta["oom_in_series"] or s.meta["eaten"] >= 0.2, (s.name, s.meta["eaten"])
        assert s.t[-1] > s.onset
    else:
        assert np.isnan(s.oom) and not s.meta["oom_in_series"], s.name
        outside = s.nvml - s.resv
        need = s.peak + outside
        if s.label == -1:
            assert s.onset >= 0 and s.meta["eaten"] * 10 < 0.95, s.name
        else:
            assert np.isnan(s.onset)
            assert need.max() <= 0.99 * s.capacity, (s.name, need.max() / s.capacity)
        if s.ambiguous:
            assert s.label == 0
            x = s.nvml if s.meta.get("cache_only") else need
            a = np.min(x[:max(3, n // 10)])
            assert (x.max() - a) / (s.capacity - a) > 0.5, (s.name, (x.max() - a) / (s.capacity - a))
    # cards
    assert 15 * GiB < s.capacity < 142 * GiB


if __name__ == "__main__":
    import sys, time
    seeds = range(1, 6) if len(sys.argv) < 2 else [int(x) for x in sys.argv[1:]]
    assert len(HEALTHY) >= 30 and len(LEAK) >= 20
    for sd in seeds:
        t0 = time.time(); c = corpus(sd, 2); t1 = time.time()
        for s in c:
            if "@" not in s.name:
                check(s)
            h = to_1hz(s); check(h)
            assert (h.onset, h.label, h.capacity) == (s.onset, s.label, s.capacity) or s.onset != s.onset
        lab = np.array([s.label for s in c])
        print(sd, "series", len(c), "healthy", (lab == 0).sum(), "ambiguous", sum(s.ambiguous for s in c), "leaks", (lab == 1).sum(),
              "cut", sum(s.label == 1 and not s.meta["oom_in_series"] for s in c), "harmless", (lab == -1).sum(),
              "gen %.1fs hz %.1fs" % (t1 - t0, time.time() - t1))
