// The race: two runs train the same model from scratch, each in a worker, with batch sizes that the
// reader chooses. Training is computed in full; the clock of several devices is calculated from what
// the laboratory measured (data.clock) and from the link on the sliders.
"use strict";

(() => {
  const data = JSON.parse(byId("race-data").textContent);
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const COLOURS = ["var(--first)", "var(--second)"];
  const runs = [0, 1].map(i => ({ i, points: [], updates: 0, text: "", hash: "" }));
  let axis = "many", module = null;

  const picked = (i, what) => Number(byId(`${what}-${i}`).value);
  const batchOf = i => data.batches[picked(i, "batch")];
  const devicesOf = i => Math.min(2 ** picked(i, "devices"), batchOf(i).batch / data.T);

  // ---- the clock ----

  // Bytes a second, and seconds a message; the rightmost position is a link that costs nothing.
  function link() {
    const at = Number(byId("link").value), most = Number(byId("link").max);
    return at === most ? { rate: Infinity, delay: 0 }
                       : { rate: 1e6 * 10 ** (at / 20) / 8,
                           delay: 1e-6 * 2 ** Number(byId("latency").value) };
  }

  // Seconds of an update: a device's share of the batch, then a ring all-reduce of the gradient.
  function secondsOf(batch, n) {
    const { rate, delay } = link(), rounds = 2 * (n - 1);
    const share = data.clock.t_0 + data.clock.tau * batch / n;
    return share + rounds / n * data.clock.bytes / rate + rounds * data.clock.messages * delay;
  }

  const AXES = {
    many: { words: "wall-clock seconds, on the devices of each run", unit: "seconds (calculated)",
            many: "long", scale: i => secondsOf(batchOf(i).batch, devicesOf(i)) },
    one: { words: "wall-clock seconds, on one device", unit: "seconds (calculated)",
           many: "long", scale: i => secondsOf(batchOf(i).batch, 1) },
    updates: { words: "updates", unit: "updates", many: "many", scale: () => 1 },
    tokens: { words: "training tokens", unit: "tokens", many: "many", scale: i => batchOf(i).batch },
  };

  // What it means that run `less` needed less of the axis: a sentence, or none.
  function meaning(less) {
    const large = batchOf(1).batch >= batchOf(0).batch ? 1 : 0;
    const wide = devicesOf(1) >= devicesOf(0) ? 1 : 0;
    if (axis === "tokens")
      return less === large ? "" : "Plotted against tokens, a larger batch looks worse.";
    if (axis === "updates")
      return less === large ? "A larger batch needs fewer updates, and updates are sequential." : "";
    if (axis === "one")
      return less === large ? "" : "One device computes a larger batch piece by piece (gradient " +
                                   "accumulation): nothing is gained.";
    if (less === wide && devicesOf(0) !== devicesOf(1))
      return `${"AB"[less]}'s devices split each batch, so its larger updates take little longer.`;
    const all = secondsOf(batchOf(wide).batch, devicesOf(wide));
    const computed = data.clock.t_0 + data.clock.tau * batchOf(wide).batch / devicesOf(wide);
    return computed < all / 2 ? `${"AB"[wide]} spends ${Math.round(100 * (1 - computed / all))}% of ` +
                                "an update on exchanging gradients: the link eats the gain."
                              : "More devices do not make up for more work.";
  }

  // ---- what is shown ----

  function line(i) {
    const scale = AXES[axis].scale(i);
    return runs[i].points.map(([updates, loss]) => [updates * scale, loss]);
  }

  // The lowest loss that both runs have reached, and what each needed for it.
  function headline(lines) {
    const lowest = lines.map(points => Math.min(...points.map(point => point[1])));
    const loss = Math.ceil(20 * Math.max(...lowest)) / 20;
    const need = lines.map(points => crossing(points, loss));
    if (!(loss < 3) || !need.every(x => x > 0))
      return { words: "Waiting for a loss that both runs have reached.", means: "" };
    const [less, more] = need[0] <= need[1] ? [0, 1] : [1, 0], times = need[more] / need[less];
    const who = i => `${"AB"[i]} (${devicesOf(i)} device${devicesOf(i) > 1 ? "s" : ""})`;
    const after = i => `after ${brief(Number(need[i].toPrecision(3)))}`;
    return { loss, means: times < 1.1 ? "" : meaning(less),
             words: `${who(less)} reached a validation loss of ${loss.toFixed(2)} ${after(less)} ` +
                    `${AXES[axis].unit}, ${who(more)} ${after(more)}: ` + (times < 1.1
                      ? "about the same."
                      : `${brief(Number(times.toPrecision(2)))} times as ${AXES[axis].many}.`) };
  }

  function draw() {
    const lines = [0, 1].map(line);
    const { words, loss, means } = headline(lines);
    byId("race-headline").textContent = words;
    byId("race-meaning").textContent = means;
    const ends = lines.map(points => points.length ? points[points.length - 1][0] : 0);
    chart(byId("race-chart"), {
      lines: lines.map((points, i) => ({ points, color: COLOURS[i], name: "AB"[i] })), mark: loss,
      xMost: Math.max(...ends) || 1, xLabel: AXES[axis].words, low: 1, high: 4 });
    for (const run of runs) {
      const speed = run.busy ? 1e3 * run.updates * batchOf(run.i).batch / run.busy : 0;
      byId(`state-${run.i}`).textContent = run.error ||
        `update ${run.updates.toLocaleString("en")}, ${brief(speed)} tokens/s in this tab`;
      byId(`text-${run.i}`).textContent = run.text;
    }
    const run = runs[1];
    byId("floor").textContent = run.floor ? run.floor.toFixed(2) : "";
    byId("native").textContent = `dev/web/build.sh --hash ${data.hashAt} ${flagsOf(1).join(" ")}`;
    byId("hash").textContent = run.hash || `(after update ${data.hashAt})`;
  }

  function label() {
    for (const i of [0, 1]) {
      byId(`batch-${i}-shown`).textContent = `${batchOf(i).batch.toLocaleString("en")} tokens`;
      byId(`devices-${i}-shown`).textContent = devicesOf(i);
      const devices = devicesOf(i) === 1 ? "one device" : `${devicesOf(i)} devices`;
      byId(`title-${i}`).textContent =
        `Run ${"AB"[i]}: ${devices}${axis === "one" && devicesOf(i) > 1 ? ", timed as one" : ""}`;
    }
    const { rate, delay } = link();
    byId("link-shown").textContent = rate === Infinity ? "costs nothing"
                                                       : `${brief(8 * rate)}bit/s`;
    byId("latency-shown").textContent = `${brief(1e6 * delay)} µs`;
    byId("latency").disabled = rate === Infinity;
  }

  // ---- runs ----

  const typed = i => i === 1 ? byId("flags").value.trim().split(/\s+/).filter(Boolean) : [];
  const flagsOf = i => [...data.flags, ...batchOf(i).flags, ...typed(i)];

  function start(i) {
    const run = runs[i];
    if (run.worker) run.worker.terminate();
    Object.assign(run, { points: [], updates: 0, text: "", hash: "", error: "", busy: 0 });
    run.worker = new Worker(URL.createObjectURL(new Blob(
      [byId("wasi").textContent, byId("worker").textContent], { type: "text/javascript" })));
    run.worker.onmessage = ({ data: news }) => {
      const points = run.points.concat(news.points || []);
      Object.assign(run, news, { points });
      draw();
    };
    const { batch } = batchOf(i);
    run.worker.postMessage({ module, flags: flagsOf(i), batch, most: data.most,
                              hashAt: data.hashAt });
    if (paused()) run.worker.postMessage({ pause: true });
  }

  const paused = () => document.hidden || byId("pause").getAttribute("aria-pressed") === "true";
  function tellPause() {
    for (const run of runs) run.worker?.postMessage({ pause: paused() });
    byId("pause").textContent = paused() ? "Resume" : "Pause";
  }

  // ---- the beginning ----

  async function begin() {
    try {
      module = await unpacked;
    } catch (error) {
      byId("race-live").hidden = true;
      byId("race-recorded").hidden = false;
      return;
    }
    for (const i of [0, 1]) {
      byId(`batch-${i}`).addEventListener("input", () => { label(); start(i); draw(); });
      byId(`devices-${i}`).addEventListener("input", () => { label(); draw(); });
    }
    byId("flags").addEventListener("change", () => { start(1); draw(); });
    for (const id of ["link", "latency"])
      byId(id).addEventListener("input", () => { label(); draw(); });
    for (const choice of document.querySelectorAll("input[name=axis]"))
      choice.addEventListener("change", () => { axis = choice.value; label(); draw(); });
    byId("pause").addEventListener("click", () => {
      const pressed = byId("pause").getAttribute("aria-pressed") !== "true";
      byId("pause").setAttribute("aria-pressed", pressed);
      tellPause();
    });
    document.addEventListener("visibilitychange", tellPause);
    addEventListener("resize", draw);
    if (still) byId("pause").setAttribute("aria-pressed", "true");
    label();
    start(0);
    start(1);
    tellPause();
    draw();
  }
  begin();
})();
