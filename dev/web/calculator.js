// The page's calculator: sets the flags of `train_gpt2 --plan` from the controls, and shows what
// the trainer, which the page carries as WebAssembly, prints for them. No formula stands here.
"use strict";

(() => {
  const models = JSON.parse(byId("models").textContent);
  const at = id => Number(byId(id).value);
  let turn = 0;                                       // of the controls; a later one wins

  // A logarithmic slider: two digits of least * 10^(k/20).
  const logarithmic = (id, least) => Number((least * 10 ** (at(id) / 20)).toPrecision(2));

  // Three digits and a unit; units: [[size, name]], the largest last.
  function inUnits(x, units) {
    const [size, name] = units.filter(unit => x >= unit[0]).pop() || units[0];
    return `${(x / size).toLocaleString("en", { maximumSignificantDigits: 3 })} ${name}`;
  }
  const clock = seconds => inUnits(seconds, [[1e-6, "µs"], [1e-3, "ms"], [1, "s"], [60, "minutes"],
                                             [3600, "hours"], [86400, "days"],
                                             [365.25 * 86400, "years"]]);
  const rate = bytes => inUnits(bytes, [[1e6, "MB/s"], [1e9, "GB/s"], [1e12, "TB/s"]]);
  const count = x => inUnits(x, [[1, ""], [1e3, "thousand"], [1e6, "million"], [1e9, "billion"],
                                 [1e12, "trillion"]]).trim();

  // ---- the question ----

  function readControls() {
    const model = models[at("model")], n = 2 ** at("devices"), each = 2 ** at("batch");
    const link = (id, latency) =>
      `${logarithmic(id, 1e6) / 1e6}MB/s+${logarithmic(latency, 0.1)}us`;
    const machine = [model.machine || byId("gpu").value, n,
                     `${link("near", "near-latency")}:${2 ** at("per-machine")}+` +
                     link("far", "far-latency"), at("price")].join();
    const micro = Math.min(each, 16);
    return { model, n, each, machine, micro, tokens: logarithmic("tokens", 1e5) };
  }

  const flagsOf = q => [
    "--plan", ...q.model.flags, "--micro-batch", q.micro,
    "--batch-tokens", q.n * q.each * q.model.T, "--tokens", q.tokens, "--zero", byId("zero").value,
    ...(byId("overlap").checked ? [] : ["--no-overlap"]), "--plan-gpu", q.machine].map(String);

  // The plan; with a smaller micro-batch where that makes it fit.
  async function ask(q, module) {
    const first = await planGpt2(module, flagsOf(q)), most = first.event.fits_micro_batch;
    if (first.event.fits !== false || !(most > 0 && most < q.micro)) return first;
    q.micro = 2 ** Math.floor(Math.log2(most));
    return planGpt2(module, flagsOf(q));
  }

  // ---- the answer ----

  function showControls(q) {
    const shown = {
      tokens: count(q.tokens), devices: q.n, "per-machine": 2 ** at("per-machine"),
      price: at("price").toFixed(2), batch: `${q.each} of ${q.model.T} tokens`,
      near: rate(logarithmic("near", 1e6)), far: rate(logarithmic("far", 1e6)),
      "near-latency": clock(logarithmic("near-latency", 1e-7)),
      "far-latency": clock(logarithmic("far-latency", 1e-7)),
    };
    for (const [id, text] of Object.entries(shown)) {
      byId(`${id}-shown`).textContent = text;
      byId(id).setAttribute("aria-valuetext", text);
    }
    byId("gpu").disabled = Boolean(q.model.machine);
  }

  function headline(q, e) {
    const devices = `${q.n} device${q.n > 1 ? "s" : ""}`;
    if (e.fits === false) return `${devices}: the model does not fit.`;
    const cost = e.cost > 0 ? `, which cost $${count(e.cost)}` : "";
    return `${devices}: ${clock(86400 * e.days)}${cost}.`;
  }

  function limit(e) {
    const share = seconds => `${(100 * seconds / e.seconds_per_step).toFixed(1)}%`;
    return `Of an update's ${clock(e.seconds_per_step)}, ${share(e.seconds_compute)} compute and ` +
           `${share(e.seconds_exposed)} wait for the network.`;
  }

  async function show(module) {
    const q = readControls(), mine = ++turn;
    showControls(q);
    let words = "", why = "", text = "";
    try {
      const plan = await ask(q, module);
      [words, why, text] = [headline(q, plan.event), limit(plan.event), plan.text];
    } catch (error) {
      words = error.message;
    }
    if (mine !== turn) return;
    byId("headline").textContent = words;
    byId("limit").textContent = why;
    byId("plan").textContent = text;
    byId("command").textContent = `./train_gpt2 ${flagsOf(q).join(" ")}`;
  }

  // A model's usual run; chosen when the model changes.
  function setModel() {
    for (const [id, value] of Object.entries(models[at("model")].controls)) byId(id).value = value;
  }

  unpacked.then(module => {
    byId("calculator").hidden = false;
    byId("calculator-why").hidden = true;
    byId("model").addEventListener("input", setModel);
    byId("controls").addEventListener("input", () => show(module));
    setModel();
    show(module);
  }, () => {});
})();
