"""The formulas of the laboratory:

    T(B, n) = S(B) * t_step(B, n)
    S(B) = S_min (1 + B_crit/B)    E(B) = S*B = E_min (1 + B/B_crit)

B tokens an update, S updates and E tokens to a target loss, n workers, B_crit the critical batch
size (McCandlish et al. 2018, arXiv 1812.06162, section 2.3). Plain Python, no library.
"""
import functools
import math
import random
from collections import namedtuple

# One batch of a sweep. updates: of every seed at the best learning rate; None: target not reached.
# edge: that learning rate is the lowest or the highest that was tried.
Point = namedtuple("Point", "batch lr updates median edge")

# low, high: the 90% range of B_crit. reason: why there is no fit, or None.
Knee = namedtuple("Knee", "s_min b_crit rms low high reason")

NO_FIT = (math.nan,) * 5


def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


# ---------------------------------------------------------------- updates against batch

def best_rate(batch, tried):
    """The point of one batch. tried: {learning rate: [updates to the target of each seed, None if
    it was not reached]}. The best rate has the smallest median; a run that misses the target
    counts as infinity. None if no rate reaches the target with most of its seeds."""
    middle = {lr: median([math.inf if n is None else n for n in updates])
              for lr, updates in tried.items()}
    lr = min(sorted(middle), key=lambda rate: middle[rate])
    if math.isinf(middle[lr]):
        return None
    return Point(batch, lr, tried[lr], middle[lr], lr in (min(tried), max(tried)))


def predicted_updates(batch, s_min, b_crit):
    return s_min * (1.0 + b_crit / batch)


def least_squares(batches, updates, weights=None, power=1.0):
    """(S_min, B_crit, rms) with the smallest squares of log S - log S_min - log(1 +
    (B_crit/B)^power), weighted alike unless weights are given. Given B_crit, the best S_min has a
    closed form, so only B_crit is searched: on a grid, then by golden section between the
    neighbours of the grid's best point."""
    logs = [math.log(s) for s in updates]
    weights = weights or [1.0] * len(logs)

    def residuals(log_crit):
        crit = math.exp(log_crit)
        rest = [y - math.log1p((crit / b) ** power) for b, y in zip(batches, logs)]
        offset = sum(w * r for w, r in zip(weights, rest)) / sum(weights)
        return offset, [r - offset for r in rest]

    def squares(log_crit):
        return sum(w * r * r for w, r in zip(weights, residuals(log_crit)[1]))

    low, high = math.log(min(batches) / 1e3), math.log(max(batches) * 1e3)
    grid = [low + (high - low) * i / 100 for i in range(101)]
    best = min(range(101), key=lambda i: squares(grid[i]))
    at = golden(squares, grid[max(best - 1, 0)], grid[min(best + 1, 100)])
    offset, rest = residuals(at)
    return math.exp(offset), math.exp(at), math.sqrt(sum(r * r for r in rest) / len(rest))


def knee_power(batches, updates):
    """(power, rms) of the fit with one more parameter: below 1 the bend is wider than McCandlish's,
    above 1 it is sharper."""
    def rms(log_power):
        return least_squares(batches, updates, power=math.exp(log_power))[2]
    best = golden(rms, math.log(0.3), math.log(3.0), rounds=25)
    return math.exp(best), rms(best)


def golden(function, low, high, rounds=40):
    """Golden-section search for a minimum in [low, high], to (high - low) * 0.618^rounds."""
    ratio = (math.sqrt(5.0) - 1.0) / 2.0
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = function(left), function(right)
    for _ in range(rounds):
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = function(right)
    return (low + high) / 2.0


def knee(points, draws=200):
    """Fits S_min and B_crit to the points of a sweep, or gives the reason not to."""
    reason = objection(points)
    if reason:
        return Knee(*NO_FIT, reason)
    points = sorted(points)
    batches = [p.batch for p in points]
    s_min, b_crit, rms = least_squares(batches, [p.median for p in points])
    if not batches[0] <= b_crit <= batches[-1]:
        return Knee(*NO_FIT, f"B_crit would be {b_crit:,.0f} tokens, outside of the batches "
                             f"measured, {batches[0]:,} to {batches[-1]:,}")
    error = max(seed_error(points, draws), leave_one_out_error(points))
    return Knee(s_min, b_crit, rms, b_crit * math.exp(-1.645 * error),
                b_crit * math.exp(1.645 * error), None)


def objection(points):
    """A reason to fit nothing to these points, or None."""
    edges = [p for p in points if p.edge]
    if edges:
        return ("the best learning rate lies on the edge of its grid at " + ", ".join(
            f"batch {p.batch:,} ({p.lr:.3g})" for p in sorted(edges)))
    batches = {p.batch for p in points}
    if len(batches) < len(points):
        return "a batch size appears twice"
    if len(batches) < 4:
        return f"{len(batches)} batch sizes reached the target; a fit needs 4"
    return None


def seed_error(points, draws):
    """Standard deviation of log B_crit when the seeds of each batch are resampled (bootstrap). A
    seed that missed the target counts as infinity, as in best_rate; a batch whose resampled median
    is infinite drops out of that draw."""
    rng, found = random.Random(1), []
    updates = {p.batch: [math.inf if n is None else n for n in p.updates] for p in points}
    for _ in range(draws):
        drawn = {b: median([rng.choice(of) for _ in of]) for b, of in updates.items()}
        there = [b for b in drawn if math.isfinite(drawn[b])]
        if len(there) >= 4:
            found.append(math.log(least_squares(there, [drawn[b] for b in there])[1]))
    return deviation(found) if found else math.inf


def leave_one_out_error(points):
    """Standard error of log B_crit from fits that each leave out one batch (jackknife). It also
    grows when the curve does not have the shape of the formula."""
    return jackknife(points, lambda rest: math.log(
        least_squares([p.batch for p in rest], [p.median for p in rest])[1]))


def jackknife(items, estimate):
    """Standard error of estimate(items) by leaving out one item at a time; None from `estimate` is
    left out. Infinite with fewer than two estimates."""
    found = [estimate([item for item in items if item is not left_out]) for left_out in items]
    found = [value for value in found if value is not None]
    n = len(found)
    if n < 2:
        return math.inf
    mean = sum(found) / n
    return math.sqrt((n - 1) / n * sum((x - mean) ** 2 for x in found))


def deviation(values):
    mean = sum(values) / len(values)
    return math.sqrt(sum((x - mean) ** 2 for x in values) / max(1, len(values) - 1))


@functools.lru_cache(maxsize=None)
def student_t(probability, degrees):
    """Quantile of Student's t distribution, for a probability from 0.5 to 1, to six digits: its
    density, integrated by Simpson's rule, is inverted by bisection."""
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(
        degrees * math.pi)

    def above_half(t, steps=2000):
        h = t / steps
        return scale * h / 3.0 * sum(
            (1 if i in (0, steps) else 4 if i % 2 else 2)
            * (1.0 + (i * h) ** 2 / degrees) ** (-(degrees + 1) / 2) for i in range(steps + 1))
    low, high = 0.0, 200.0
    for _ in range(40):
        middle = (low + high) / 2.0
        low, high = (low, middle) if above_half(middle) > probability - 0.5 else (middle, high)
    return (low + high) / 2.0


def mean_interval(values, confidence=0.9, together=1):
    """(mean, low, high) by Student's t, from these values' own scatter. `together` such intervals
    hold at once with this confidence (Bonferroni). NaN ends with one value, or one not finite."""
    mean, n = sum(values) / len(values), len(values)
    if n < 2 or not math.isfinite(mean):
        return mean, math.nan, math.nan
    times = student_t(1.0 - (1.0 - confidence) / (2 * together), n - 1)
    reach = times * deviation(values) / math.sqrt(n)
    return mean, mean - reach, mean + reach


def ratio_interval(logs):
    """mean_interval of logarithms, as ratios: (geometric mean, low, high)."""
    return tuple(map(math.exp, mean_interval(logs)))


# ---------------------------------------------------------------- lines and crossings

def line(x, y, weights=None):
    """(slope, offset) of a straight line by least squares."""
    weights = weights or [1.0] * len(x)
    total = sum(weights)
    at = sum(w * a for w, a in zip(weights, x)) / total
    level = sum(w * b for w, b in zip(weights, y)) / total
    slope = (sum(w * (a - at) * (b - level) for w, a, b in zip(weights, x, y))
             / sum(w * (a - at) ** 2 for w, a in zip(weights, x)))
    return slope, level - slope * at


def power_law(x, y):
    """(exponent, low, high) of y ~ x^exponent: a line through logarithms, its 90% interval from the
    residuals by Student's t; needs 3 points."""
    x, y = [math.log(a) for a in x], [math.log(b) for b in y]
    slope, offset = line(x, y)
    mean = sum(x) / len(x)
    squares = sum((b - slope * a - offset) ** 2 for a, b in zip(x, y))
    error = math.sqrt(squares / (len(x) - 2) / sum((a - mean) ** 2 for a in x))
    reach = student_t(0.95, len(x) - 2) * error
    return slope, slope - reach, slope + reach


def crossing(updates, losses, target):
    """The updates at which the loss falls to `target`, between two neighbouring runs of different
    length: linear in log updates. None if no two neighbours lie on either side."""
    pairs = sorted(zip(updates, losses))
    for (n, above), (m, below) in zip(pairs, pairs[1:]):
        if above > target >= below:
            return n * (m / n) ** ((above - target) / (above - below))
    return None


def vertex(x, y):
    """Where the parabola through three points has its extremum."""
    (p, q, r), (a, b, c) = x, y
    first, second = (b - a) / (q - p), (c - b) / (r - q)
    return (p + q) / 2.0 - first * (r - p) / (2.0 * (second - first))


# ---------------------------------------------------------------- seconds

def ring_seconds(size, workers, bandwidth, latency=0.0):
    """Ring all-reduce of `size` bytes (Patarasuk and Yuan 2009): each worker sends 2(n-1)/n of
    them in 2(n-1) messages, at `bandwidth` bytes a second and `latency` seconds a message."""
    if workers <= 1:
        return 0.0
    return 2.0 * (workers - 1) / workers * size / bandwidth + 2.0 * (workers - 1) * latency


# A worker's compute time for b tokens: fixed + b * per_token seconds.
Device = namedtuple("Device", "fixed per_token")

def fit_device(tokens, seconds):
    """A straight line through measured (tokens, seconds) of an update, least squares of the
    relative errors. The fixed part is not negative; where noise hides what a token costs, all
    tokens together cost a thousandth of it."""
    weight = [1.0 / s ** 2 for s in seconds]
    total = sum(weight)
    x = sum(w * t for w, t in zip(weight, tokens)) / total
    y = sum(w * s for w, s in zip(weight, seconds)) / total
    spread = sum(w * (t - x) ** 2 for w, t in zip(weight, tokens))
    slope = sum(w * (t - x) * (s - y) for w, t, s in zip(weight, tokens, seconds)) / spread
    slope = max(slope, 1e-3 * y / max(tokens))
    fixed = y - slope * x
    if fixed < 0.0:
        fixed = 0.0
        slope = sum(w * t * s for w, t, s in zip(weight, tokens, seconds)) / sum(
            w * t * t for w, t in zip(weight, tokens))
    return Device(fixed, slope)


def median_interval(values, confidence=0.9):
    """The narrowest pair of order statistics, as far from the lowest as from the highest, that
    encloses the median of what the values were drawn from with at least this probability, whatever
    their distribution. NaN, NaN if there are too few: 90% needs five."""
    ordered, n = sorted(values), len(values)
    outside, found = 0.0, (math.nan, math.nan)
    for i in range((n + 1) // 2):
        outside += 2.0 * math.comb(n, i) / 2.0 ** n
        if outside > 1.0 - confidence:
            break
        found = ordered[i], ordered[n - 1 - i]
    return found


def slowest(seconds, n):
    """The mean of the largest of n values drawn from these: what n workers wait for."""
    ordered, m = sorted(seconds), len(seconds)
    return sum(x * (((i + 1) / m) ** n - (i / m) ** n) for i, x in enumerate(ordered))
