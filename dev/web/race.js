// The race: two lanes train the same model from scratch, each in a worker, with batches that the
// reader chooses. Learning is computed in full; the clock of many devices is calculated from what
// the laboratory measured (data.clock) and from the link on the sliders.
"use strict";

(() => {
  const byId = id => document.getElementById(id);
  const data = JSON.parse(byId("race-data").textContent);
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const COLOURS = ["var(--first)", "var(--second)"];
  const DEVICES = [1, 2, 4, 8, 16, 32, 64];
  const lanes = [0, 1].map(i => ({ i, points: [], updates: 0, text: "", hash: "" }));
  let axis = "tokens", module = null;

  const picked = (i, what) => Number(byId(`${what}-${i}`).value);
  const batchOf = i => data.batches[picked(i, "batch")];
  const devicesOf = i => Math.min(DEVICES[picked(i, "devices")], batchOf(i).batch / data.T);

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
    tokens: { words: "bytes of text that were read", unit: "bytes of text", many: "much", scale: i => batchOf(i).batch },
    updates: { words: "corrections (updates)", unit: "corrections", many: "many", scale: () => 1 },
    one: { words: "seconds, if one device does the work", unit: "calculated seconds", many: "long",
           scale: i => secondsOf(batchOf(i).batch, 1) },
    many: { words: "seconds, on the devices of each lane", unit: "calculated seconds", many: "long",
            scale: i => secondsOf(batchOf(i).batch, devicesOf(i)) },
  };
  const MEANING = {
    tokens: "A larger batch needs at least as much text. Seen so, many devices bring nothing.",
    updates: "But corrections must wait for each other, and a larger batch needs fewer.",
    one: "One device reads a larger batch piece by piece (gradient accumulation): nothing is gained.",
    many: "Many devices read the pieces side by side: that is what they are for.",
  };

  // ---- what is shown ----

  function line(i) {
    const scale = AXES[axis].scale(i);
    return lanes[i].points.map(([updates, loss]) => [updates * scale, loss]);
  }

  // The lowest loss that both lanes have seen, and what each needed for it.
  function headline(lines) {
    const lowest = lines.map(points => Math.min(...points.map(point => point[1])));
    const loss = Math.ceil(20 * Math.max(...lowest)) / 20;
    if (!(loss < 3)) return { words: "Both lanes begin to learn." };
    const need = lines.map(points => crossing(points, loss));
    if (!need.every(x => x > 0)) return { words: "Both lanes begin to learn." };
    const [less, more] = need[0] <= need[1] ? [0, 1] : [1, 0], times = need[more] / need[less];
    const took = i => `${"AB"[i]} took ${brief(Number(need[i].toPrecision(3)))}`;
    return { loss, words: `To a loss of ${loss.toFixed(2)} ${took(less)} ${AXES[axis].unit}, and ` +
                          `${took(more)}: ` + (times < 1.1 ? "about the same."
                                               : `${brief(Number(times.toPrecision(2)))} times as ` +
                                                 `${AXES[axis].many}.`) };
  }

  function draw() {
    const lines = [0, 1].map(line);
    const { words, loss } = headline(lines);
    byId("race-headline").textContent = words;
    byId("race-meaning").textContent = MEANING[axis];
    const ends = lines.map(points => points.length ? points[points.length - 1][0] : 0);
    chart(byId("race-chart"), {
      lines: lines.map((points, i) => ({ points, color: COLOURS[i], name: "AB"[i] })), mark: loss,
      xMost: Math.max(...ends) || 1, xLabel: AXES[axis].words, low: 1, high: 4 });
    for (const lane of lanes) {
      const speed = lane.busy ? 1e3 * lane.updates * batchOf(lane.i).batch / lane.busy : 0;
      byId(`state-${lane.i}`).textContent = lane.error ||
        `correction ${lane.updates.toLocaleString("en")}, ${brief(speed)} bytes a second in this tab`;
      byId(`text-${lane.i}`).textContent = lane.text;
    }
    const lane = lanes[1];
    byId("floor").textContent = lane.floor ? lane.floor.toFixed(2) : "";
    byId("native").textContent = `scripts/web_hash.sh ${data.hashAt} ${flagsOf(1).join(" ")}`;
    byId("hash").textContent = lane.hash || `(after correction ${data.hashAt})`;
  }

  function label() {
    for (const i of [0, 1]) {
      byId(`batch-shown-${i}`).textContent = `${batchOf(i).batch.toLocaleString("en")} bytes`;
      byId(`devices-shown-${i}`).textContent = devicesOf(i);
      const devices = axis === "one" ? 1 : devicesOf(i);
      byId(`title-${i}`).textContent =
        `${"AB"[i]}: ${devices === 1 ? "one device" : `${devices} devices`}`;
    }
    const { rate, delay } = link();
    byId("link-shown").textContent = rate === Infinity ? "costs nothing"
                                                       : `${brief(8 * rate)}bit/s`;
    byId("latency-shown").textContent = `${brief(1e6 * delay)} µs`;
    byId("latency").disabled = rate === Infinity;
  }

  // ---- lanes ----

  const typed = i => i === 1 ? byId("flags").value.trim().split(/\s+/).filter(Boolean) : [];
  const flagsOf = i => [...data.flags, ...batchOf(i).flags, ...typed(i)];

  function start(i) {
    const lane = lanes[i];
    if (lane.worker) lane.worker.terminate();
    Object.assign(lane, { points: [], updates: 0, text: "", hash: "", error: "", busy: 0 });
    lane.worker = new Worker(URL.createObjectURL(new Blob(
      [byId("wasi").textContent, byId("worker").textContent], { type: "text/javascript" })));
    lane.worker.onmessage = ({ data: news }) => {
      const points = lane.points.concat(news.points || []);
      Object.assign(lane, news, { points });
      draw();
    };
    const { batch } = batchOf(i);
    lane.worker.postMessage({ module, flags: flagsOf(i), batch, most: data.most,
                              hashAt: data.hashAt });
    if (paused()) lane.worker.postMessage({ pause: true });
  }

  const paused = () => document.hidden || byId("pause").getAttribute("aria-pressed") === "true";
  function tellPause() {
    for (const lane of lanes) lane.worker?.postMessage({ pause: paused() });
    byId("pause").textContent = paused() ? "Go on" : "Pause";
  }

  // ---- the beginning ----

  function showRecorded(why) {
    byId("race-live").hidden = true;
    byId("race-recorded").hidden = false;
    byId("race-why").textContent = why;
  }

  async function begin() {
    try {
      module = await unpacked;
    } catch (error) {
      return showRecorded("This browser cannot run the trainer (WebAssembly with SIMD), so these " +
                          "are recorded curves.");
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
