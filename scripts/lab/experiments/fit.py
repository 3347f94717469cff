"""The estimators of the laboratory:

    T(B, n) = S(B) * t_step(B, n)
    S(B) = S_min (1 + B_crit/B)    E(B) = S*B = E_min (1 + B/B_crit)

B tokens per update, S updates and E tokens to a target loss, n workers, B_crit the critical batch
size (McCandlish et al. 2018, arXiv 1812.06162, section 2.3). tests/test_lab_planted.py plants
truths, and holds the intervals to their 90%.
"""
import math
import random
from collections import namedtuple
from statistics import median

import numpy as np

# One batch of a sweep. updates: of every seed at the best learning rate; None: target not reached.
# edge: that learning rate is the lowest or the highest that was tried.
Point = namedtuple("Point", "batch lr updates median edge")

# low, high: the 90% range of B_crit. reason: why there is no fit, or None.
Knee = namedtuple("Knee", "s_min b_crit rms low high reason")

NO_FIT = (math.nan,) * 5


# ---------------------------------------------------------------- updates against batch

def endless(updates):
    """A run that misses the target counts as infinity."""
    return [math.inf if n is None else n for n in updates]


def best_rate(batch, tried):
    """The point of one batch. tried: {learning rate: [updates to the target of each seed, None if
    it was not reached]}. The best rate has the smallest median. None if no rate reaches the target
    with most of its seeds."""
    middle = {lr: median(endless(updates)) for lr, updates in tried.items()}
    lr = min(sorted(middle), key=middle.get)
    if math.isinf(middle[lr]):
        return None
    return Point(batch, lr, tried[lr], middle[lr], lr in (min(tried), max(tried)))


def predicted_updates(batch, s_min, b_crit):
    return s_min * (1.0 + b_crit / batch)


def minimum(function, low, high, points=201, rounds=5):
    """Where a function of an array is least: a grid, then a finer one between the neighbours of its
    best point, and so on."""
    for _ in range(rounds):
        at = np.linspace(low, high, points)
        best = int(np.argmin(function(at)))
        low, high = at[max(best - 1, 0)], at[min(best + 1, points - 1)]
    return (low + high) / 2.0


def least_squares(batches, updates, weights=None):
    """(S_min, B_crit, rms) with the smallest squares of log S - log S_min - log(1 + B_crit/B),
    weighted alike unless weights are given. Given B_crit, the best S_min has a closed form, so only
    B_crit is searched."""
    batches, logs = np.asarray(batches, float), np.log(updates)
    weights = np.ones(len(logs)) if weights is None else np.asarray(weights)
    weights = weights / weights.sum()

    def residuals(log_crit):
        rest = logs - np.log1p(np.exp(np.atleast_1d(log_crit)[:, None] - np.log(batches)))
        offset = rest @ weights
        return offset, rest - offset[:, None]
    at = minimum(lambda log_crit: residuals(log_crit)[1] ** 2 @ weights,
                 math.log(batches.min() / 1e3), math.log(batches.max() * 1e3))
    offset, rest = residuals(at)
    return math.exp(offset[0]), math.exp(at), math.sqrt(np.mean(rest ** 2))


def smallest_batch(batches, updates):
    """B_min of (S - S_min) (B - B_min) = A, by least squares of log S: no number of updates of
    fewer tokens reaches the loss. 0: the form of McCandlish et al."""
    def rms(tried):
        return np.array([least_squares(np.subtract(batches, b), updates)[2] for b in tried])
    return minimum(rms, -2.0 * min(batches), 0.99 * min(batches))


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
    error = max(seed_error(points, draws), jackknife(points, log_crit))
    return Knee(s_min, b_crit, rms, b_crit * math.exp(-1.645 * error),
                b_crit * math.exp(1.645 * error), None)


def objection(points):
    """A reason to fit nothing to these points, or None."""
    edges = [p for p in points if p.edge]
    if edges:
        return ("the best learning rate lies on the edge of its grid at " + ", ".join(
            f"batch {p.batch:,} ({p.lr:.3g})" for p in sorted(edges)))
    if len(points) < 4:
        return f"{len(points)} batch sizes reached the target; a fit needs 4"
    return None


def seed_error(points, draws):
    """Standard deviation of log B_crit when the seeds of each batch are resampled (bootstrap). A
    batch whose resampled median is infinite drops out of that draw."""
    rng, found = random.Random(1), []
    updates = {p.batch: endless(p.updates) for p in points}
    for _ in range(draws):
        drawn = {b: median([rng.choice(of) for _ in of]) for b, of in updates.items()}
        there = [b for b in drawn if math.isfinite(drawn[b])]
        if len(there) >= 4:
            found.append(math.log(least_squares(there, [drawn[b] for b in there])[1]))
    return deviation(found) if found else math.inf


def log_crit(points):
    """Of the least squares through the medians. Left out one batch at a time, it also scatters when
    the curve does not have the shape of the formula."""
    return math.log(least_squares([p.batch for p in points], [p.median for p in points])[1])


# ---------------------------------------------------------------- intervals

def jackknife(items, estimate):
    """Standard error of estimate(items) by leaving out one item at a time; None from `estimate` is
    left out. Infinite with fewer than two estimates."""
    found = [estimate([item for item in items if item is not left_out]) for left_out in items]
    found = [value for value in found if value is not None]
    return math.sqrt((len(found) - 1) * np.var(found)) if len(found) > 1 else math.inf


def deviation(values):
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


# The 95% quantiles of Student's t distribution for 1, 2, ... 30 degrees of freedom.
T_95 = [6.313752, 2.919986, 2.353363, 2.131847, 2.015048, 1.943180, 1.894579, 1.859548, 1.833113,
        1.812461, 1.795885, 1.782288, 1.770933, 1.761310, 1.753050, 1.745884, 1.739607, 1.734064,
        1.729133, 1.724718, 1.720743, 1.717144, 1.713872, 1.710882, 1.708141, 1.705618, 1.703288,
        1.701131, 1.699127, 1.697261]


def mean_interval(values):
    """(mean, low, high) by Student's t, from these values' own scatter. NaN ends with one value, or
    one not finite."""
    mean, n = sum(values) / len(values), len(values)
    if n < 2 or not math.isfinite(mean):
        return mean, math.nan, math.nan
    reach = T_95[n - 2] * deviation(values) / math.sqrt(n)
    return mean, mean - reach, mean + reach


def ratio_interval(ratios):
    """(geometric mean, low, high): mean_interval of logarithms."""
    return tuple(map(math.exp, mean_interval([math.log(ratio) for ratio in ratios])))


def median_interval(values):
    """(median, low, high). The ends: the narrowest pair of order statistics, as far from the lowest
    as from the highest, that encloses the median of what the values were drawn from with at least
    90%, whatever their distribution. NaN ends if there are too few: five are enough."""
    ordered, n = sorted(values), len(values)
    outside, ends = 0.0, (math.nan, math.nan)
    for i in range((n + 1) // 2):
        outside += 2.0 * math.comb(n, i) / 2.0 ** n
        if outside > 0.1:
            break
        ends = ordered[i], ordered[n - 1 - i]
    return (median(ordered) if ordered else math.nan, *ends)


# ---------------------------------------------------------------- lines

def power_law(x, y):
    """(exponent, low, high) of y ~ x^exponent: a line through logarithms, its 90% interval from the
    residuals by Student's t; needs 3 points."""
    x, y = np.log(x), np.log(y)
    slope, offset = np.polyfit(x, y, 1)
    squares = np.sum((y - slope * x - offset) ** 2)
    error = math.sqrt(squares / (len(x) - 2) / np.sum((x - x.mean()) ** 2))
    reach = T_95[len(x) - 3] * error
    return float(slope), float(slope - reach), float(slope + reach)


def crossing(updates, losses, target):
    """The updates at which the loss falls to `target`, between two neighbouring runs of different
    length: linear in log updates. None if no two neighbours lie on either side."""
    pairs = sorted(zip(updates, losses))
    for (n, above), (m, below) in zip(pairs, pairs[1:]):
        if math.inf > above > target >= below:
            return n * (m / n) ** ((above - target) / (above - below))
    return None


# ---------------------------------------------------------------- seconds

# A worker's compute time for b tokens: fixed + b * per_token seconds.
Device = namedtuple("Device", "fixed per_token")


def fit_device(tokens, seconds):
    """A straight line through measured (tokens, seconds) of an update, least squares of the
    relative errors. The fixed part is not negative; where noise hides what a token costs, all
    tokens together cost a thousandth of it."""
    tokens, seconds = np.asarray(tokens, float), np.asarray(seconds, float)
    weight = seconds ** -2
    x, y = (np.average(of, weights=weight) for of in (tokens, seconds))
    slope = np.sum(weight * (tokens - x) * (seconds - y)) / np.sum(weight * (tokens - x) ** 2)
    slope = max(slope, 1e-3 * y / tokens.max())
    fixed = y - slope * x
    if fixed < 0.0:
        fixed, slope = 0.0, np.sum(weight * tokens * seconds) / np.sum(weight * tokens ** 2)
    return Device(float(fixed), float(slope))


def slowest(seconds, n):
    """The mean of the largest of n values drawn from these: what n workers wait for."""
    share = (np.arange(len(seconds) + 1) / len(seconds)) ** n
    return float(np.dot(np.sort(seconds), np.diff(share)))
