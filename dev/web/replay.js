// Sixty-four workers, replayed: losses are of recorded runs of the laboratory, seconds are its
// virtual clock's (experiment 10).
"use strict";

(() => {
  const data = JSON.parse(byId("replay-data").textContent);
  const COLOURS = ["var(--first)", "var(--second)", "var(--third)"];
  const PLAY = 15;                                    // seconds that the slowest lane takes
  let began = null;                                   // when Play was pressed; null: at the end

  // Of the chosen link and numbers of workers: the laboratory's lane, and its curve in seconds.
  function lanes() {
    const link = byId("replay-link").value, own = Number(byId("replay-workers").value);
    return [1, 8, own].map(n => {
      const lane = data.lanes.find(of => of.link === link && of.workers === n);
      return { ...lane, points: data.curves[lane.batch].map(([u, loss]) => [u * lane.update, loss]) };
    });
  }

  const textAt = loss => data.samples.filter(sample => loss <= sample.target).pop()?.text
    || "(no words yet)";

  function draw() {
    const shown = lanes(), slowest = Math.max(...shown.map(lane => lane.seconds));
    const clock = began === null ? slowest : (performance.now() - began) / 1e3 / PLAY * slowest;
    if (clock >= slowest) began = null;
    const lines = shown.map((lane, i) => ({ color: COLOURS[i], dashed: true,
      end: clock >= lane.seconds && lane.seconds, points:
      lane.points.filter(([x, y]) => x <= clock && (y >= data.target - 0.02 || x <= lane.seconds)) }));
    chart(byId("replay-chart"), { lines, xMost: slowest, low: 1, high: 3.2, mark: data.target,
      xLabel: "seconds by the virtual clock (calculated from measured parts)",
      level: { y: data.target, words: `a loss of ${data.target}` } });
    shown.forEach((lane, i) => {
      const last = lines[i].points[lines[i].points.length - 1];
      byId(`replay-name-${i}`).textContent =
        `${lane.workers} worker${lane.workers > 1 ? "s" : ""}, ${lane.batch.toLocaleString("en")} ` +
        `tokens per update: ${brief(Math.min(clock, lane.seconds))} s` +
        (clock >= lane.seconds ? ", there" : "");
      byId(`replay-text-${i}`).textContent = textAt(last ? last[1] : Infinity);
    });
    if (began !== null) requestAnimationFrame(draw);
  }

  for (const id of ["replay-link", "replay-workers"])
    byId(id).addEventListener("input", () => { began = null; draw(); });
  byId("replay-play").addEventListener("click", () => { began = performance.now(); draw(); });
  addEventListener("resize", draw);
  byId("replay").addEventListener("toggle", draw);
  draw();
})();
