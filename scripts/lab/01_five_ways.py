#!/usr/bin/env python3
"""Experiment 1: five ways to spend eight times the compute. A baseline; a batch 8 times as large
(on 8 ranks, or by gradient accumulation on one); 8 times the updates; and DiLoCo with 8 replicas.

    scripts/lab/01_five_ways.py --quick

It is Table 2 of the DiLoCo paper (Douillard et al. 2023, arXiv 2311.08105) at laptop size. All five
start from one checkpoint. Each method has its own best learning rate; a grid whose best rate lies
on its edge grows by one.
"""
import math
import os

import fit
import lab

RANKS = 8
T = 32
LINK = fit.Link(size=None, bandwidth=1.25e9, latency=2e-5)   # 10 Gbit/s, 20 us a message: modelled

# Rows of the table, in the order of the paper's losses, the worst first.
LABELS = {"baseline": "baseline", "data_parallel": "8x batch, 8 ranks",
          "accumulation": "8x batch, accumulated", "diloco": "DiLoCo, 8 replicas",
          "updates": "8x updates"}
PAPER = {"baseline": 16.23, "data_parallel": 15.30, "accumulation": 15.30, "diloco": 15.02,
         "updates": 14.72}                       # perplexities
TUNED = ["baseline", "accumulation", "diloco", "updates"]


def arguments(parser):
    parser.add_argument("--batch", type=int, metavar="N", help="tokens per update of one replica")
    parser.add_argument("--updates", type=int, metavar="N",
                        help="updates of all methods but 8x updates")
    parser.add_argument("--every", type=int, metavar="H",
                        help="DiLoCo: inner updates per outer step")
    parser.add_argument("--outer-lr", type=float, default=0.7, metavar="X", help="DiLoCo: outer "
                        "learning rate (default: the paper's 0.7)")
    parser.add_argument("--outer-momentum", type=float, default=0.9, metavar="X",
                        help="DiLoCo: outer momentum (default: the paper's 0.9)")


def settings(e):
    e.batch = e.args.batch or e.pick(tiny=64, quick=256, full=256)       # tokens
    e.steps = e.args.updates or e.pick(tiny=20, quick=1000, full=3000)
    e.every = e.args.every or e.pick(tiny=5, quick=10, full=10)
    e.micro_batch = max(1, min(8, e.batch // T))             # sequences
    if e.batch % (e.micro_batch * T) or e.steps % e.every:
        lab.fail("--batch must be a multiple of 256, and --updates a multiple of --every")
    e.rates = e.pick(tiny=[4e-3, 8e-3], quick=[2e-3, 4e-3, 8e-3, 16e-3],
                     full=[4e-3 * 2.0 ** (power / 2.0) for power in range(-4, 6)])
    e.growth = e.pick(tiny=0, quick=1, full=2)
    e.seeds = e.pick(tiny=[1], quick=[1, 2, 3], full=[1, 2, 3, 4, 5])
    e.data = e.corpus(1.2 * RANKS * e.batch * e.steps)


# ---------------------------------------------------------------- runs

def warm_job(e):
    """The checkpoint from which all five start; the paper, too, starts from a trained model."""
    steps, batch = e.pick((10, 64), (400, 1024), (400, 1024))
    return lab.Job("warm", ["--data", e.data, *e.model(), "--micro-batch", min(8, batch // T),
                            "--batch-tokens", batch, "--steps", steps, "--lr", "4e-3",
                            "--lr-schedule", "constant", "--warmup-tokens", 20 * batch,
                            "--eval-every", 0, "--eval-tokens", e.eval_tokens, "--save-every", 0,
                            "--seed", 100], keep=True)


def flags(e, batch, steps, rate, seed, evaluations=10):
    return ["--data", e.data, "--init", os.path.join(e.dir, "runs", "warm"),
            "--micro-batch", e.micro_batch, "--batch-tokens", batch, "--steps", steps,
            "--lr", f"{rate:.6g}", "--lr-schedule", "cosine", "--beta2", 0.99,
            "--eval-every", max(1, steps // evaluations), "--eval-tokens", e.eval_tokens,
            "--seed", seed]


def job(e, method, rate, seed):
    name = f"{method}_lr{rate:.6f}_s{seed}"
    large = RANKS * e.batch
    if method == "baseline":
        return lab.Job(name, flags(e, e.batch, e.steps, rate, seed), cost=1, thin=400)
    if method == "updates":
        return lab.Job(name, flags(e, e.batch, RANKS * e.steps, rate, seed), cost=RANKS, thin=400)
    if method == "accumulation":
        return lab.Job(name, flags(e, large, e.steps, rate, seed), cost=RANKS)
    if method == "data_parallel":
        return lab.Job(name, flags(e, large, e.steps, rate, seed) + ["--zero", 0], ranks=RANKS,
                       cost=2 * RANKS)
    return lab.Job(name, flags(e, large, e.steps, rate, seed) + [
        "--outer-every", e.every, "--outer-lr", e.args.outer_lr, "--outer-momentum",
        e.args.outer_momentum],
        ranks=RANKS, cost=2 * RANKS)


def sweep(e):
    """{method: {rate: [Run of each seed]}}. The first seed runs at all rates, the others at the
    method's best rate and, to compare all methods at one rate, at DiLoCo's best rate."""
    grids, first, ratio = {m: list(e.rates) for m in TUNED}, e.seeds[0], e.rates[1] / e.rates[0]
    for growth in range(e.growth + 1):
        runs = e.run([job(e, m, rate, first) for m in TUNED for rate in grids[m]])
        done = {m: {r: [runs[job(e, m, r, first).name]] for r in grids[m]} for m in TUNED}
        if growth == e.growth:
            break
        for m in TUNED:
            if edge(done[m]) < 0:
                grids[m].insert(0, grids[m][0] / ratio)
            elif edge(done[m]) > 0:
                grids[m].append(grids[m][-1] * ratio)
    best = {m: best_rate(done[m]) for m in TUNED}
    parallel = job(e, "data_parallel", best["accumulation"], first)
    again = [(m, rate) for m in TUNED for rate in sorted({best[m], best["diloco"]})
             if rate in done[m]]
    more = e.run([job(e, m, rate, seed) for m, rate in again for seed in e.seeds[1:]] + [parallel])
    for m, rate in again:
        done[m][rate] += [more[job(e, m, rate, seed).name] for seed in e.seeds[1:]]
    return done, best, more[parallel.name]


def best_rate(tried):
    return min(tried, key=lambda rate: tried[rate][0].val)


def edge(tried):
    """-1 or 1 where the best rate is the grid's lowest or highest, else 0."""
    rates, best = sorted(tried), best_rate(tried)
    return -1 if best == rates[0] else 1 if best == rates[-1] else 0


def timing(e):
    """Seconds of an update, by name. No other run of the lab is active; the faster of two repeats
    counts, in case another program was."""
    steps = max(6, round(e.pick(5e3, 2e5, 8e5) / e.batch / RANKS))
    large = RANKS * e.batch
    shapes = {"small": (e.batch, 1), "large": (large, 1), "two_ranks": (large, 2)}
    runs = e.run([lab.Job(f"time_{name}_{turn}", flags(
        e, batch, steps * (RANKS if name == "small" else 1), 1e-3, 1, evaluations=1),
        ranks=ranks, alone=True) for turn in [1, 2] for name, (batch, ranks) in shapes.items()])
    return {name: min(runs[f"time_{name}_{turn}"].median("seconds") for turn in [1, 2])
            for name in shapes}


# ---------------------------------------------------------------- numbers

def modelled_seconds(e, seconds, gradient):
    """Seconds of one update of each method, on 8 devices that are each one core of this machine."""
    ring = fit.ring_seconds(gradient, RANKS, LINK.bandwidth, LINK.latency)
    small = seconds["small"]
    return {"baseline": small, "updates": small, "accumulation": seconds["large"],
            "data_parallel": small + fit.exposed_seconds(ring, small),
            "diloco": small + ring / e.every}


def apart(one, other):
    """The largest differences between two runs: of training losses, and of validation losses."""
    def of(records, key):
        return {record["step"]: record[key] for record in records}
    def largest(a, b):
        both = a.keys() & b.keys()
        assert both, "two runs without a step in common"
        return max(abs(a[step] - b[step]) for step in both)
    return (largest(of(one.steps, "loss"), of(other.steps, "loss")),
            largest(of(one.evals, "val_loss"), of(other.evals, "val_loss")))


class Row:
    """A row of the table. sent: bytes that one rank sent in the whole run, from its log."""

    def __init__(self, method, runs, rate, side, step_seconds):
        self.method, self.runs, self.rate, self.side = method, runs, rate, side
        self.losses = [run.val for run in runs]
        self.mean = sum(self.losses) / len(self.losses)
        self.step_seconds = step_seconds
        self.updates, self.tokens = runs[0].evals[-1]["step"], runs[0].evals[-1]["tokens"]
        self.seconds = self.updates * step_seconds
        self.sent = sum(step.get("bytes_sent") or 0 for step in runs[0].steps)


def rows(e, done, best, parallel, modelled):
    def row(method):
        if method == "data_parallel":
            rate = best["accumulation"]
            return Row(method, [parallel], rate, edge(done["accumulation"]), modelled[method])
        return Row(method, done[method][best[method]], best[method], edge(done[method]),
                   modelled[method])
    return {method: row(method) for method in LABELS}


def in_order(losses):
    """Whether each loss is below the one before it, as in the rows of PAPER."""
    return all(a > b for a, b in zip(losses, losses[1:]))


def common_rates(done):
    """{rate: (seeds for which the paper's order holds if all methods use that rate, all seeds)}"""
    found = {}
    for rate in sorted(set.intersection(*(set(done[m]) for m in TUNED))):
        seeds = list(zip(*([run.val for run in done[m][rate]] for m in TUNED)))
        found[rate] = sum(in_order(losses) for losses in seeds), len(seeds)
    return found


# ---------------------------------------------------------------- pictures

def style(i):
    return {"color": lab.COLOURS[i], "marker": lab.MARKERS[i], "linestyle": lab.LINES[i],
            "markersize": 5}


def draw_ways(plt, table):
    figure, (tokens, seconds, sent) = plt.subplots(3, 1, figsize=(6.6, 11.4), layout="constrained")
    for i, (method, row) in enumerate(table.items()):
        evals = row.runs[0].evals
        y = [record["val_loss"] for record in evals]
        hollow = {"markerfacecolor": "none"} if method == "data_parallel" else {}
        wide = {"markersize": 9} if method == "data_parallel" else {}
        look = dict(style(i), **hollow, **wide)
        tokens.plot([record["tokens"] for record in evals], y, label=LABELS[method], **look)
        seconds.plot([record["step"] * row.step_seconds for record in evals], y, **look)
        draw_sent(sent, table, method, dict(look, linestyle="none"))
    tokens.set_xscale("log")
    seconds.set_xscale("log")
    sent.set_xscale("log")
    sent.margins(x=0.15, y=0.12)
    loss = "validation loss (nats a token)"
    lab.axes(tokens, "tokens trained on", loss,
             "Per token: data parallel and accumulation coincide")
    lab.axes(seconds, "seconds on 8 devices, modelled", loss, "Per second: they are "
             f"{table['accumulation'].seconds / table['data_parallel'].seconds:.1f} times apart")
    lab.axes(sent, "MB sent by a rank (nothing: drawn at 0.01)", loss, "Per byte")
    tokens.legend()
    return figure


def draw_sent(ax, table, method, look):
    """Data parallel is drawn at accumulation's losses over all seeds: its one run has the losses of
    accumulation's first seed."""
    sent, parallel = max(table[method].sent / 1e6, 1e-2), method == "data_parallel"
    row = table["accumulation" if parallel else method]
    ax.plot([sent], [row.mean], **look)
    ax.errorbar([sent], [row.mean], capsize=3, color=look["color"],
                yerr=[[row.mean - min(row.losses)], [max(row.losses) - row.mean]])
    left = sent > 1.0 and parallel
    ax.annotate(LABELS[method] + (" (same losses)" if parallel else ""), (sent, row.mean),
                (-8 if left else 8, 4 if method != "updates" else -12),
                textcoords="offset points", ha="right" if left else "left", fontsize=9)


def draw_rates(plt, e, done, best):
    figure, ax = plt.subplots(figsize=(6.6, 4.6), layout="constrained")
    for i, method in enumerate(m for m in LABELS if m in TUNED):
        i = list(LABELS).index(method)
        tried = {r: runs[0].val for r, runs in sorted(done[method].items())
                 if math.isfinite(runs[0].val)}
        label = LABELS[method] if method != "accumulation" else "8x batch"
        ax.plot(list(tried), list(tried.values()), label=label, **style(i))
        for r, runs in done[method].items():
            losses = [run.val for run in runs]
            if len(losses) > 1 and math.isfinite(max(losses)):
                ax.plot([r, r], [min(losses), max(losses)], color=lab.COLOURS[i], linewidth=4,
                        alpha=0.5)
        rate = best[method]
        where = "at the grid's edge" if edge(done[method]) else "best"
        ax.annotate(where, (rate, tried[rate]), (0, -14), textcoords="offset points", fontsize=8.5,
                    ha="center", color=lab.COLOURS[i])
    ticks = sorted({rate for m in TUNED for rate in done[m]})
    ax.set_xscale("log")
    ax.minorticks_off()
    ax.set_xticks(ticks)
    ax.set_xticklabels([f"{rate:.2g}" for rate in ticks])
    ax.margins(y=0.12)
    lab.axes(ax, "learning rate", "final validation loss (nats a token)",
             f"One seed at each rate, {len(e.seeds)} where there is a bar" if len(e.seeds) > 1
             else "One seed at each rate")
    ax.legend()
    return figure


# ---------------------------------------------------------------- the experiment

def main():
    e = lab.Experiment(
        1, "five_ways", arguments=arguments, title="Five ways to spend eight times the compute",
        question="Is eight times the compute best spent on a larger batch, on more updates, or on "
                 "replicas that rarely synchronize?",
        prediction="The order of the DiLoCo paper's table: the baseline is worst, then the 8x "
                   "batch, then DiLoCo with 8 replicas, and 8x updates are best. Data parallel and "
                   "gradient accumulation have the same losses up to rounding; accumulation takes "
                   "8 times as long.")
    e.need_mpi()
    e.eval_tokens = e.pick(2048, 32768, 131072)
    settings(e)
    warm = e.run([warm_job(e)])["warm"]
    done, best, parallel = sweep(e)
    seconds = timing(e)
    gradient = 4 * warm.start["parameters"]
    table = rows(e, done, best, parallel, modelled_seconds(e, seconds, gradient))
    same = next(run for run in done["accumulation"][best["accumulation"]])
    differences = apart(parallel, same)
    write(e, table, done, seconds, gradient, differences)
    e.figure("five_ways", lambda plt: draw_ways(plt, table),
             alt="Validation loss of the five methods, against tokens, against modelled seconds on "
                 "8 devices, and the final losses against megabytes sent by a rank.",
             caption="Each method at its own best inner learning rate. Seconds are modelled: the "
                     "measured update of one core, and a ring all-reduce at 10 Gbit/s with 20 us a "
                     "message. Bars in the last panel span the seeds. Data parallel ran with one "
                     "seed and had the losses of accumulation; it is drawn at those of all seeds.")
    e.figure("rates", lambda plt: draw_rates(plt, e, done, best),
             alt="Final validation loss against learning rate, a curve for each method.",
             caption="Which method wins can depend on how the learning rate is chosen.")
    conclude(e, warm, table, done, seconds, differences)
    e.close()


def write(e, table, done, seconds, gradient, differences):
    first = table["baseline"]
    e.csv("table", ["method", "updates", "tokens", "data_times", "seconds_modelled",
                    "time_times", "bytes_sent_by_a_rank", "best_lr", "edge", "seeds", "loss_mean",
                    "loss_low", "loss_high", "perplexity", "paper_perplexity"],
          [[m, r.updates, r.tokens, r.tokens / first.tokens, r.seconds, r.seconds / first.seconds,
            r.sent, r.rate, int(r.side != 0), len(r.losses), r.mean, min(r.losses), max(r.losses),
            math.exp(min(r.mean, 700.0)), PAPER[m]] for m, r in table.items()])
    e.csv("rates", ["method", "lr", "seed", "val_loss"],
          [[m, rate, seed, run.val] for m in TUNED for rate, of in sorted(done[m].items())
           for seed, run in zip(e.seeds, of)])
    e.csv("curves", ["method", "updates", "tokens", "seconds_modelled", "val_loss"],
          [[m, record["step"], record["tokens"], record["step"] * r.step_seconds,
            record["val_loss"]] for m, r in table.items() for record in r.runs[0].evals])
    e.csv("machine", ["what", "value"],
          [["seconds_update_one_rank_small_batch", seconds["small"]],
           ["seconds_update_one_rank_large_batch", seconds["large"]],
           ["seconds_update_two_ranks_large_batch", seconds["two_ranks"]],
           ["gradient_bytes", gradient], ["ring_bytes_per_second", LINK.bandwidth],
           ["ring_latency_seconds", LINK.latency],
           ["largest_difference_train_loss", differences[0]],
           ["largest_difference_val_loss", differences[1]]])


def conclude(e, warm, table, done, seconds, differences):
    many = f"{len(e.seeds)} seeds" if len(e.seeds) > 1 else "one seed"
    e.setting(f"2 layers of 32 channels; a replica's update is {e.batch} tokens ({e.batch // T} "
              f"sequences), {e.steps} updates from a checkpoint at {warm.val:.3f} nats; DiLoCo: "
              f"H={e.every}, outer rate {e.args.outer_lr}, momentum "
              f"{e.args.outer_momentum}, not tuned. Inner rates are tuned with one seed; losses "
              f"are means of {many}; on {lab.machine(e.args.trainer)}.")
    means = [table[m].mean for m in TUNED]
    listed = ", ".join(f"{LABELS[m] if m != 'accumulation' else '8x batch'} {table[m].mean:.3f} "
                       f"(rate {table[m].rate:.2g}{', edge of the grid' if table[m].side else ''})"
                       for m in TUNED)
    e.say(f"Final losses, each at its own best inner learning rate: {listed}.")
    e.say(f"8 ranks and one rank that accumulates have the same losses: over "
          f"{table['accumulation'].updates} updates training losses differ by at most "
          f"{differences[0]:.1e} nats, validation losses by {differences[1]:.1e}. In modelled time "
          f"on 8 devices accumulation takes "
          f"{table['accumulation'].seconds / table['data_parallel'].seconds:.1f} times as long.")
    e.say(f"Measured on this machine: an update of {RANKS * e.batch} tokens takes "
          f"{1e3 * seconds['large']:.1f} ms on one rank of one thread and "
          f"{1e3 * seconds['two_ranks']:.1f} ms on two, a speed-up of "
          f"{seconds['large'] / seconds['two_ranks']:.2f}.")
    sent = table["data_parallel"].sent, table["diloco"].sent
    e.say(f"Each rank sent {sent[0] / 1e6:.1f} MB with data parallel and {sent[1] / 1e6:.2f} MB "
          f"with DiLoCo, {sent[0] / sent[1] if sent[1] else math.inf:.1f} times less.")
    common = ", ".join(f"{rate:.2g} ({held} of {of})"
                       for rate, (held, of) in common_rates(done).items())
    e.say(f"Seeds for which the paper's order holds when all methods share a learning rate: "
          f"{common}.")
    judge(e, table, means, differences, common)


def judge(e, table, means, differences, common):
    """As predicted: in the means and with each seed."""
    seeds = list(zip(*(table[m].losses for m in TUNED)))
    ordered = sum(in_order(losses) for losses in seeds)
    same = max(differences) < 1e-3 * means[0]
    ratio = table["accumulation"].seconds / table["data_parallel"].seconds
    gap = 100 * (table["diloco"].mean / table["accumulation"].mean - 1)
    words = (f"final losses {', '.join(f'{x:.3f}' for x in means)} nats for the baseline, 8x "
             f"batch, DiLoCo ({gap:+.2f}% against 8x batch) and 8x updates; the paper's order "
             f"holds for {ordered} of {len(seeds)} seeds at tuned rates")
    if ordered == len(seeds) and same and ratio > 4:
        e.verdict("as predicted", words)
    elif means[0] == max(means) and means[-1] == min(means) and same:
        e.verdict("partly", f"{words}; with one rate for all methods: {common}")
    else:
        e.verdict("failed", words)


if __name__ == "__main__":
    main()
