// The page's calculator: the functions of model.py, which explains them, and the controls.
// tests/test_lab_page.py compares the numbers of both. No library, no network.
"use strict";

const HIDDEN = 4 / 9;                // of the computation, can overlap with the exchange
const BOUNDS = ["fit", "low", "high"];

// ---- updates ----

// [S_min, B_crit, fewest updates, first batch, last batch] at a loss: straight between neighbouring
// targets, in logarithms. A modelled law has no last three.
function lawAt(targets, loss, bound) {
    if (targets.length === 1) return [...targets[0][bound], ...targets[0].seen || []];
    const i = targets.findIndex((t, k) => k > 0 && loss >= t.loss);
    const high = targets[i - 1], low = targets[i];
    const share = Math.log(loss / high.loss) / Math.log(low.loss / high.loss);
    const between = (a, b) => a * (b / a) ** share;
    const law = high[bound].map((a, k) => between(a, low[bound][k]));
    if (!high.seen) return law;
    const [few, first, last] = high.seen, [fewer, other, end] = low.seen;
    return [...law, between(few, fewer), Math.max(first, other), Math.min(last, end)];
}

// Never fewer than were measured.
function updates([sMin, bCrit, fewest = 0], batch) {
    return Math.max(fewest, sMin * (1 + bCrit / batch));
}

// The multiple of `unit` next to a batch among those measured; one unit where all are smaller.
function clamp([, , , least = 0, most = Infinity], batch, unit) {
    const first = Math.ceil(least / unit) * unit, last = Math.floor(most / unit) * unit;
    return Math.max(unit, Math.min(Math.max(batch, first), last));
}

// ---- seconds of an update ----

// {way: seconds} of an all-reduce of `size` bytes.
function exchangeWays(size, n, net) {
    if (n <= 1) return { none: 0 };
    const near = Math.min(net.perMachine, n), machines = n / near;
    const between = machines > 1 ? net.farLatency : 0;
    const slowest = Math.max(1 / net.near, machines > 1 ? 1 / net.far / near : 0);
    const ways = {
        ring: 2 * size * (n - 1) / n * slowest
            + 2 * (n - 1) * Math.max(net.nearLatency, between),
        tree: 2 * size * slowest + 2 * (Math.ceil(Math.log2(near)) * net.nearLatency
                                        + Math.ceil(Math.log2(machines)) * between),
    };
    if (machines > 1 && n % near === 0)
        ways["two levels"] = 2 * size * (near - 1) / near / net.near
            + 2 * (near - 1) * net.nearLatency + 2 * size * (machines - 1) / n / net.far
            + 2 * (machines - 1) * net.farLatency;
    return ways;
}

function exchangedBytes(model, stage) {
    const gradients = model.grad_bytes, params = model.param_bytes;
    const sent = [2 * gradients, gradients + params, gradients + params, gradients + 2 * params];
    return model.parameters * sent[stage] / 2;
}

function costsOf(model, s, bound) {
    const shared = s.stage >= 1 ? s.n : 1, [t0, tau] = model.line[bound];
    const net = { ...s.network, nearLatency: model.messages * s.network.nearLatency,
                  farLatency: model.messages * s.network.farLatency };
    const ways = exchangeWays(exchangedBytes(model, s.stage), s.n, net);
    return { t0: t0 + model.optimizer_seconds / shared, tau,
             c: Math.min(...Object.values(ways)) };
}

function exposedSeconds(costs, b, overlap) {
    return Math.max(0, costs.c - (overlap ? HIDDEN * costs.tau * b : 0));
}

function stepSeconds(costs, b, overlap) {
    return costs.t0 + costs.tau * b + exposedSeconds(costs, b, overlap);
}

function targetSeconds(law, costs, batch, n, overlap) {
    return updates(law, batch) * stepSeconds(costs, batch / n, overlap);
}

// ---- the best batch ----

function bestBatch(law, costs, n, seqLen, overlap) {
    const least = (fixed, perToken) => Math.sqrt(law[1] * n * fixed / perToken);
    let at = least(costs.t0 + costs.c, costs.tau);
    if (overlap) {
        const turn = costs.c * n / (HIDDEN * costs.tau);
        const exposed = least(costs.t0 + costs.c, (1 - HIDDEN) * costs.tau);
        at = exposed < turn ? exposed : Math.max(turn, least(costs.t0, costs.tau));
    }
    const [sMin, bCrit, fewest = 0] = law, unit = n * seqLen;
    if (fewest > sMin) at = Math.min(at, bCrit / (fewest / sMin - 1));
    const below = Math.max(1, Math.floor(at / unit)) * unit;
    const seconds = batch => targetSeconds(law, costs, batch, n, overlap);
    const [near, far] = [below, below + unit].map(batch => clamp(law, batch, unit));
    return seconds(near) <= seconds(far) ? near : far;
}

// ---- memory, and which wall binds ----

function memoryBytes(model, n, stage) {
    const [weights, gradients, state] = model.state_bytes;
    return model.activation_bytes * model.seq_len + model.parameters
        * (weights / (stage >= 3 ? n : 1) + gradients / (stage >= 2 ? n : 1)
           + state / (stage >= 1 ? n : 1));
}

function falls(model, law, costs, batch, s) {
    const now = targetSeconds(law, costs, batch, s.n, s.overlap);
    const fall = (otherLaw, other) => {
        const chosen = s.batch || bestBatch(otherLaw, other, s.n, model.seq_len, s.overlap);
        return 1 - targetSeconds(otherLaw, other, chosen, s.n, s.overlap) / now;
    };
    return { noise: fall([law[0], law[1] / 2, ...law.slice(2)], costs),
             compute: fall(law, { ...costs, tau: costs.tau / 2 }),
             overhead: fall(law, { ...costs, t0: costs.t0 / 2 }),
             network: fall(law, { ...costs, c: costs.c / 2 }) };
}

function walls(model, law, costs, batch, s) {
    if (model.memory && memoryBytes(model, s.n, s.stage) > model.memory) return ["memory"];
    if (law[1] <= 0.1 * batch && batch <= s.n * model.seq_len) return ["serial"];
    const found = falls(model, law, costs, batch, s);
    const [first, second] = Object.keys(found).sort((a, b) => found[b] - found[a]);
    return found[second] >= 0.9 * found[first] ? [first, second] : [first];
}

// ---- all of it ----

function answer(model, s) {
    const { n, overlap } = s;
    const laws = BOUNDS.map(bound => lawAt(model.targets, s.loss, bound));
    const costs = BOUNDS.map(bound => costsOf(model, s, bound));
    const free = laws[0].slice(0, 2), [, , , , last = Infinity] = laws[0];
    const wanted = s.batch || bestBatch(free, costs[0], n, model.seq_len, overlap);
    if (s.batch) s = { ...s, batch: clamp(laws[0], wanted, n * model.seq_len) };
    const batch = s.batch || bestBatch(laws[0], costs[0], n, model.seq_len, overlap);
    const seconds = laws.flatMap(law =>
        costs.map(cost => targetSeconds(law, cost, batch, n, overlap)));
    const made = laws.map(law => updates(law, batch));
    const steps = costs.map(cost => stepSeconds(cost, batch / n, overlap));
    const sent = 2 * exchangedBytes(model, s.stage) * (n - 1) / n;
    return { seconds: seconds[0], low: Math.min(...seconds), high: Math.max(...seconds),
             cost: n * seconds[0] * s.price / 3600, device_hours: n * seconds[0] / 3600, batch,
             updates: made[0], updates_low: Math.min(...made), updates_high: Math.max(...made),
             tokens: made[0] * batch, b_crit: laws[0][1],
             step: steps[0], step_low: Math.min(...steps), step_high: Math.max(...steps),
             exchange: costs[0].c, exposed: exposedSeconds(costs[0], batch / n, overlap),
             bytes: made[0] * sent, memory: memoryBytes(model, n, s.stage),
             walls: walls(model, laws[0], costs[0], batch, s),
             edges: [["batch", batch !== wanted || batch > last],
                     ["updates", made[0] > updates(free, batch)]]
                 .filter(([, atEdge]) => atEdge).map(([name]) => name) };
}

// ---- words ----

const WALLS = {
    memory: "memory: the model does not fit on a device; raise the ZeRO stage or add devices",
    serial: "updates are serial: S is near its minimum, and each device has one sequence",
    noise: "noise: the updates beyond the fewest possible",
    compute: "computation: the time of a token",
    overhead: "the fixed time of an update",
    network: "the network: the gradients' exchange",
};

function digits(x) {
    if (x >= 9999.5 && x < 1e15) return Math.round(x).toLocaleString("en-US");
    return Number(x.toPrecision(4)).toLocaleString("en-US", { maximumSignificantDigits: 4 });
}

// units: [[from, unit, name]], the largest last.
function inUnits(x, units) {
    const [, unit, name] = units.filter(u => x >= u[0]).pop() || units[0];
    return `${digits(x / unit)} ${name}`;
}

const TIMES = [[1e-6, 1e-6, "µs"], [1e-3, 1e-3, "ms"], [1, 1, "s"], [120, 60, "minutes"],
               [7200, 3600, "hours"], [172800, 86400, "days"],
               [730 * 86400, 365.25 * 86400, "years"]];
const SIZES = ["bytes", "kB", "MB", "GB", "TB", "PB", "EB"].map((name, i) =>
    [1000 ** i, 1000 ** i, name]);
const clock = x => x === 0 ? "0 s" : inUnits(x, TIMES);
const bytes = x => inUnits(x, SIZES);

// ---- the controls ----

const byId = id => document.getElementById(id);
const position = id => Number(byId(id).value);

// A logarithmic slider: two digits of least * 10^(k/20).
const logarithmic = (id, least) => Number((least * 10 ** (position(id) / 20)).toPrecision(2));

function readControls(models) {
    const model = models[position("model")], n = 2 ** position("devices");
    return { model, loss: model.targets.length > 1 ? position("loss") : model.targets[0].loss, n,
             batch: position("batch") ? n * model.seq_len * 2 ** (position("batch") - 1) : 0,
             network: { near: logarithmic("near", 1e6), far: logarithmic("far", 1e6),
                        nearLatency: logarithmic("near-latency", 1e-7),
                        farLatency: logarithmic("far-latency", 1e-7),
                        perMachine: 2 ** position("per-machine") },
             price: position("price"), stage: position("stage"), overlap: byId("overlap").checked };
}

function showControls(s) {
    const each = s.batch / s.n / s.model.seq_len;
    const shown = {
        loss: s.loss === null ? "20 tokens a parameter" : `${s.loss.toFixed(2)} nats`,
        devices: digits(s.n), "per-machine": digits(s.network.perMachine),
        price: s.price.toFixed(2),
        batch: each ? `${digits(s.batch)} tokens, ${digits(each)} × ${s.model.seq_len} a device`
                    : "the best",
        near: `${bytes(s.network.near)}/s`, far: `${bytes(s.network.far)}/s`,
        "near-latency": clock(s.network.nearLatency), "far-latency": clock(s.network.farLatency),
    };
    for (const [id, text] of Object.entries(shown)) {
        byId(`${id}-shown`).textContent = text;
        byId(id).setAttribute("aria-valuetext", text);
    }
}

// A model's targets and its usual network and price; chosen when the model changes.
function setModel(model) {
    const losses = model.targets.map(t => t.loss), slider = byId("loss");
    slider.disabled = losses.length === 1;
    if (!slider.disabled) {
        slider.max = losses[0];
        slider.value = slider.min = losses[losses.length - 1];
    }
    for (const [id, value] of Object.entries(model.controls)) byId(id).value = value;
}

// ---- the results ----

// [[id, name, value, text, range, source]]
function results(s, a) {
    const from = s.model.from, way = "modelled: updates × seconds of an update";
    const range = (show, low, high) => low < high ? `${show(low)} to ${show(high)}` : "none";
    const times = (show, k) => range(show, a.low * k, a.high * k);
    const made = k => range(digits, a.updates_low * k, a.updates_high * k);
    const bCrit = ["low", "high"].map(bound => lawAt(s.model.targets, s.loss, bound)[1]);
    const edge = name => a.edges.includes(name) ? "; edge of what was measured" : "";
    return [
        ["seconds", "time to the loss", a.seconds, clock(a.seconds), times(clock, 1), way],
        ["cost", "cost", a.cost, digits(a.cost), times(digits, s.n * s.price / 3600),
         way + " × price"],
        ["device_hours", "device-hours", a.device_hours, digits(a.device_hours),
         times(digits, s.n / 3600), way + " × devices"],
        ["batch", s.batch ? "batch, as given" : "best batch", a.batch,
         `${digits(a.batch)} tokens`, "",
         (s.batch ? "given" : "modelled: the least time") + edge("batch")],
        ["updates", "updates", a.updates, digits(a.updates), made(1), from.law + edge("updates")],
        ["tokens", "tokens", a.tokens, digits(a.tokens), made(a.batch), from.law],
        ["b_crit", "B_crit", a.b_crit, `${digits(a.b_crit)} tokens`, range(digits, ...bCrit),
         from.law],
        ["step", "an update", a.step, clock(a.step), range(clock, a.step_low, a.step_high),
         from.step],
        ["exchange", "exchange of gradients", a.exchange, clock(a.exchange), "", from.exchange],
        ["exposed", "of it not overlapped", a.exposed, clock(a.exposed), "",
         "modelled: up to 4/9 of the computation overlaps"],
        ["bytes", "sent by a device, whole run", a.bytes, bytes(a.bytes), "", from.exchange],
        ["memory", "memory of a device, at least", a.memory, bytes(a.memory), "", from.memory],
    ];
}

function show(models) {
    const s = readControls(models), a = answer(s.model, s);
    showControls(s);
    const limits = a.walls.map(name => WALLS[name]).join("; and ");
    byId("limit").textContent = `What limits it: ${limits}.`;
    byId("limit").dataset.walls = a.walls.join();
    byId("headline").textContent = a.walls[0] === "memory"
        ? `${digits(s.n)} device${s.n > 1 ? "s" : ""}: the model does not fit. `
          + `If it did: ${clock(a.seconds)}.`
        : `${digits(s.n)} device${s.n > 1 ? "s" : ""}: ${clock(a.seconds)}, with `
          + `${digits(a.batch)} tokens an update.`;
    byId("results").replaceChildren(...results(s, a).map(tableRow));
}

function tableRow([id, name, value, ...rest]) {
    const row = document.createElement("tr");
    row.dataset.id = id;
    row.dataset.value = value;
    for (const text of [name, ...rest])
        row.appendChild(document.createElement("td")).textContent = text;
    return row;
}

function start() {
    const models = JSON.parse(byId("models").textContent);
    byId("calculator").hidden = false;
    byId("model").addEventListener("input", () => setModel(models[position("model")]));
    byId("controls").addEventListener("input", () => show(models));
    setModel(models[position("model")]);
    show(models);
}

start();
