// The lessons' pictures: figures whose frames a reader steps through, with two buttons or with the
// arrow keys, Home and End. pages.py puts into a page what is above the first picture, and the
// pictures that the page names.
"use strict";

// Draws in an SVG. Coordinates are units of its viewBox, of which a picture is 360 wide; a kind is
// a class of pages.css: hot, cold, good, dim, small, plain. A name is for tests.
class Pen {
  constructor(svg) {
    this.svg = svg;
  }

  add(tag, attributes, words) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes))
      if (value !== undefined) element.setAttribute(key, value);
    if (words !== undefined) element.textContent = words;
    this.svg.append(element);
  }

  text(x, y, words, { kind, anchor = "middle", name } = {}) {
    this.add("text", { x, y, class: kind, "text-anchor": anchor, "data-name": name }, words);
  }

  box(x, y, width, height, { kind, words, name, radius = 0 } = {}) {
    this.add("rect", { x, y, width, height, class: kind, rx: radius });
    if (words !== undefined)
      this.text(x + width / 2, y + height / 2 + 4, words, { kind, name });
  }

  line(x1, y1, x2, y2, kind) {
    this.add("line", { x1, y1, x2, y2, class: kind });
  }

  // A line with a head at its end.
  arrow(x1, y1, x2, y2, kind) {
    const angle = Math.atan2(y2 - y1, x2 - x1);
    const side = turn => `${x2 - 6 * Math.cos(angle + turn)} ${y2 - 6 * Math.sin(angle + turn)}`;
    const head = `M${side(0.5)}L${x2} ${y2}L${side(-0.5)}`;
    this.add("path", { class: kind, d: `M${x1} ${y1}L${x2} ${y2}${head}` });
  }
}

// Fills the figure #picture-NAME. frames: what each step has computed; draw(pen, frame) draws it,
// say(frame) says it in a sentence or two.
function stepped({ name, height, frames, draw, say }) {
  const figure = document.getElementById("picture-" + name);
  figure.insertAdjacentHTML("beforeend", `<div><button type="button">back</button>
    <button type="button">next</button><output></output></div>
    <svg viewBox="0 0 360 ${height}" role="img"></svg><p aria-live="polite"></p>`);
  const [back, next] = figure.querySelectorAll("button");
  const svg = figure.querySelector("svg"), words = figure.querySelector("p");
  const last = frames.length - 1;
  let at = 0;

  function go(to) {
    at = Math.max(0, Math.min(last, to));
    svg.replaceChildren();
    draw(new Pen(svg), frames[at]);
    words.textContent = say(frames[at]);
    svg.setAttribute("aria-label", words.textContent);
    figure.querySelector("output").textContent = `step ${at} of ${last}`;
    back.disabled = at === 0;
    next.disabled = at === last;
  }

  back.addEventListener("click", () => go(at - 1));
  next.addEventListener("click", () => go(at + 1));
  figure.tabIndex = 0;
  figure.addEventListener("keydown", event => {
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: last }[event.key];
    if (to === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    go(to);
  });
  go(0);
}

// ---- picture: online_softmax ----
// The online softmax reads six keys one after the other. A bar is the term e^(s - m) of a key that
// has come; where a larger score comes, all earlier bars shrink by one factor.
(() => {
  const scores = [1.0, 0.2, 2.5, 1.7, 3.1, 0.4];
  const values = [2, -1, 4, 0, 3, 1];            // one channel of each key's value
  const digits = x => (x === -Infinity ? "−∞" : x.toFixed(3).replace("-", "−"));

  // Frame i: key i - 1 has come. The last frame divides.
  function compute() {
    let state = { key: -1, m: -Infinity, z: 0, o: 0 };
    const frames = [state];
    scores.forEach((s, key) => {
      const m = Math.max(state.m, s);
      const factor = Math.exp(state.m - m), term = Math.exp(s - m);
      state = { key, m, factor, term, before: state,
                z: state.z * factor + term, o: state.o * factor + term * values[key] };
      frames.push(state);
    });
    return [...frames, { ...state, out: state.o / state.z, lse: state.m + Math.log(state.z) }];
  }

  function draw(pen, frame) {
    const done = frame.out !== undefined;
    for (const [y, words] of [[18, "key"], [38, "score"], [56, "value"], [160, "e^(s − m)"]])
      pen.text(4, y, words, { anchor: "start", kind: "dim small" });
    pen.line(54, 144, 356, 144);
    scores.forEach((s, i) => {
      const x = 80 + 50 * i, now = i === frame.key && !done;
      const kind = now ? "hot" : i > frame.key ? "dim" : undefined;
      pen.text(x, 18, i + 1, { kind });
      pen.text(x, 38, s.toFixed(1), { kind, name: "score" });
      pen.text(x, 56, String(values[i]).replace("-", "−"), { kind, name: "value" });
      if (i > frame.key) return;
      const term = Math.exp(s - frame.m);
      pen.box(x - 17, 144 - 74 * term, 34, 74 * term, { kind: now ? "hot" : "cold" });
      pen.text(x, 160, digits(term), { kind: now ? "hot" : undefined });
    });
    ["m", "z", "o"].forEach((name, i) => pen.box(
      4 + 120 * i, 178, 112, 26, { words: `${name} = ${digits(frame[name])}`, name, radius: 4 }));
    if (done) [["out", "o/z"], ["lse", "m + ln z"]].forEach(([name, of], i) => pen.box(
      4 + 180 * i, 214, 172, 26,
      { kind: "good", words: `${name} = ${of} = ${digits(frame[name])}`, name, radius: 4 }));
  }

  function say({ key, m, factor, term, before, out }) {
    if (key < 0) return "No key has come. m begins at −∞, z and o at 0.";
    if (out !== undefined)
      return `All keys have come: out = o/z = ${digits(out)}, as from all scores at once. `
        + "No step needed more than one key, m, z and o.";
    const came = `Key ${key + 1} comes.`;
    if (key === 0) return `${came} It is the first: m is its score, and its term is 1.`;
    if (factor < 1)
      return `${came} Its score is the largest so far: m rises to ${m.toFixed(1)}. z and o are `
        + `multiplied by e^(${before.m.toFixed(1)} − ${m.toFixed(1)}) = ${digits(factor)}. `
        + "Then the key's term, 1, is added.";
    return `${came} Its score is below m, so the factor is 1. Its term `
      + `e^(${scores[key].toFixed(1)} − ${m.toFixed(1)}) = ${digits(term)} is added to z, `
      + "and to o times its value.";
  }

  stepped({ name: "online_softmax", height: 246, frames: compute(), draw, say });
})();

// ---- picture: block ----
// One block of GPT-2 124M on a sequence of 1,024 tokens, a step for each call of block_forward and
// block_backward. Grey arrows go forward; orange arrows are gradients, which come back.
(() => {
  const C = 768, NH = 12, B = 1, T = 1024, N = B * T;
  const words = x => x.toLocaleString("en-US");
  const shape = (...sizes) => `(${sizes.join(",")})`;

  // The calls of block_forward in order: what each reads and writes, its weights, its row here.
  const ops = [
    { op: "LayerNorm", of: "x", out: "ln1", width: C, row: 1 },
    { op: "linear", of: "ln1", out: "qkv", from: C, width: 3 * C, w: "qkv", row: 2 },
    { op: "attention", of: "qkv", out: "att", width: C, row: 3 },
    { op: "linear", of: "att", out: "branch", from: C, width: C, w: "att_proj", row: 4 },
    { op: "residual", of: "x", out: "x_mid", width: C, row: 5 },
    { op: "LayerNorm", of: "x_mid", out: "ln2", width: C, row: 6 },
    { op: "linear", of: "ln2", out: "fc", from: C, width: 4 * C, w: "fc", row: 7 },
    { op: "GELU", of: "fc", out: "gelu", width: 4 * C, row: 8 },
    { op: "linear", of: "gelu", out: "branch", from: 4 * C, width: C, w: "mlp_proj", row: 9 },
    { op: "residual", of: "x_mid", out: "x_out", width: C, row: 10 }];

  // The calls of block_backward: the same in reverse. Where a branch began, its gradient is added.
  const back = [];
  for (const op of [...ops].reverse()) {
    if (op.op !== "residual") back.push(op);
    if (op.op === "LayerNorm") back.push({ op: "residual", of: op.of, row: op.row - 1 });
  }

  const parameters = ({ op, from, width }) =>
    op === "linear" ? from * width + width : op === "LayerNorm" ? 2 * width : 0;
  // Numbers kept for the backward pass: the output, and mean and rstd or lse beside it.
  const kept = ({ op, out, width }) => out === "branch" ? 0
    : N * width + (op === "LayerNorm" ? 2 * N : op === "attention" ? B * NH * T : 0);
  const products = ({ op, from, width }) => (op === "linear" ? N * from * width : 0);

  function compute() {
    let state = { forward: 0, backward: 0, parameters: 0, kept: 0, there: 0, again: 0 };
    const frames = [state];
    for (const op of ops) {
      state = { ...state, op, forward: state.forward + 1, kept: state.kept + kept(op),
                parameters: state.parameters + parameters(op), there: state.there + products(op) };
      frames.push(state);
    }
    for (const op of back) {
      state = { ...state, op, backward: state.backward + 1, again: state.again + 2 * products(op) };
      frames.push(state);
    }
    return frames;
  }

  const y = row => 18 + 29 * row, onStream = row => row % 5 === 0;

  // The arrow into a row from the row above, or back from it: along the branch and to the stream.
  function drawArrow(pen, row, backward) {
    const [stream, box, kind, edge] = backward ? [30, 124, "hot", 7] : [18, 88, undefined, 0];
    let from = [box, y(row - 1) + 10], to = [box, y(row) - 10];
    if (row % 5 === 1) [from, to] = [[stream, y(row - 1) + 7], [58, y(row) + edge]];
    if (row % 5 === 0) [from, to] = [[58, y(row - 1) + edge], [stream, y(row) - 7]];
    pen.arrow(...(backward ? [...to, ...from] : [...from, ...to]), kind);
  }

  // A call of the forward pass, whose turn is still to come, or is now, or was.
  function drawOp(pen, { op, out, width, row }, turn) {
    const kind = turn > 0 ? "dim" : turn === 0 ? "cold" : undefined;
    if (onStream(row)) pen.text(18, y(row) + 5, "+", { kind });
    else pen.box(60, y(row) - 10, 92, 20, { words: op, kind, radius: 4 });
    if (turn > 0) return;
    if (onStream(row)) pen.arrow(18, y(row - 5) + 9, 18, y(row) - 9);
    drawArrow(pen, row, false);
    pen.text(162, y(row) + 4, `${out} ${shape(N, width)}`, { anchor: "start", kind });
  }

  // The gradient of what a call read, beside that tensor.
  function drawBack(pen, { op, of, row }, here) {
    const label = (at, text) => pen.text(356, y(at) + 4, text, { anchor: "end", kind: "hot" });
    if (op === "residual") {
      pen.arrow(30, y(row + 5) - 9, 30, y(row) + 9, "hot");
      label(row, "dx +=");
    } else {
      if (onStream(row + 1)) drawArrow(pen, row + 1, true);
      drawArrow(pen, row, true);
      if (op !== "LayerNorm") label(row - 1, `d${of} =`);
    }
    if (here && op !== "residual")
      pen.box(60, y(row) - 10, 92, 20, { words: op, kind: "hot", radius: 4 });
  }

  function draw(pen, frame) {
    pen.text(18, y(0) + 4, "x");
    pen.text(162, y(0) + 4, `x ${shape(N, C)}`, { anchor: "start" });
    const now = frame.backward ? ops.length : frame.forward - 1;
    ops.forEach((op, i) => drawOp(pen, op, i - now));
    if (frame.backward) pen.text(356, y(10) + 4, "dx, given", { anchor: "end", kind: "hot" });
    back.slice(0, frame.backward).forEach(op => drawBack(pen, op, op === frame.op));
    [["parameters", "parameters"], ["kept for the backward pass, numbers", "kept"],
     ["multiply-adds of linear layers, forward", "there"],
     ["multiply-adds of linear layers, backward", "again"]].forEach(([text, name], i) => {
      pen.text(4, 342 + 18 * i, text, { anchor: "start", kind: "dim" });
      pen.text(356, 342 + 18 * i, words(frame[name]), { anchor: "end", name });
    });
  }

  const FORWARD = {
    LayerNorm: o => `layernorm_forward: ${o.out} has the shape of ${o.of}. A gain and a bias for `
      + `each channel: ${words(parameters(o))} parameters.`,
    linear: o => `linear_forward: ${o.out} = ${o.of} · ${o.w}_w + ${o.w}_b. ${shape(N, o.from)} `
      + `times ${shape(o.from, o.width)}: ${words(parameters(o))} parameters.`,
    attention: () => `attention_forward: each of ${NH} heads has ${C / NH} channels. `
      + `lse ${shape(B, NH, T)} is kept; the weights p ${shape(B, NH, T, T)} are not.`,
    GELU: o => `gelu_forward: each of ${words(N * o.width)} numbers by itself.`,
    residual: o => `residual_forward: ${o.out} = ${o.of} + branch. branch itself is not kept.` };
  const BACKWARD = {
    LayerNorm: o => "layernorm_backward: dbranch is written (=). The gradients of "
      + `${o.out}_gain and ${o.out}_bias receive their part (+=).`,
    linear: o => `linear_backward: d${o.of} ${shape(N, o.from)} is written (=). The gradients of `
      + `${o.w}_w ${shape(o.from, o.width)} and ${o.w}_b receive their part (+=). `
      + "Two products, where the forward pass has one.",
    attention: o => `attention_backward: d${o.of} is written. The weights p are computed again `
      + `from ${o.of} and lse.`,
    GELU: o => `gelu_backward: d${o.of} overwrites d${o.out}. The slope needs ${o.of}, `
      + "which was kept.",
    residual: o => "residual_backward: dx += dbranch. The dx that came along the stream is a term "
      + `of the sum, unchanged. Now dx is the gradient of ${o.of}.` };

  function say({ op, backward }) {
    if (!op) return "x enters the block. Press next, or the right arrow key, to follow it.";
    return (backward ? BACKWARD : FORWARD)[op.op](op);
  }

  stepped({ name: "block", height: 404, frames: compute(), draw, say });
})();

// ---- picture: tiles ----
// A product c = a b of 8 × 8 matrices by tiles of 4 × 4. A tile of a and one of b, orange, are
// fetched and multiplied into a tile of c, blue. A finished tile is green.
(() => {
  const n = 8, t = 4;

  // The loops over tiles. Each step fetches two; tiles of 1 × 1 would be one sum at a time.
  function compute() {
    let fetched = 0, done = 0;
    const frames = [{ fetched, done }];
    for (let i0 = 0; i0 < n; i0 += t)
      for (let j0 = 0; j0 < n; j0 += t)
        for (let k0 = 0; k0 < n; k0 += t) {
          fetched += 2 * t ** 2;
          done += t ** 3;
          frames.push({ i0, j0, k0, fetched, done });
        }
    return [...frames, { fetched, done, single: 2 * n ** 3 }];
  }

  const size = 13;

  function matrix(pen, name, x, y, kindOf) {
    pen.text(x + n * size / 2, y - 5, name);
    for (let i = 0; i < n; i++)
      for (let j = 0; j < n; j++)
        pen.box(x + size * j, y + size * i, size, size, { kind: kindOf(i, j) });
  }

  const inTile = (i, at) => i >= at && i < at + t;

  // Tiles of c are finished in the order of the loops, each by n t² multiply-adds.
  const finished = (i, j, done) =>
    Math.floor(i / t) * (n / t) + Math.floor(j / t) < Math.floor(done / (n * t ** 2));

  function draw(pen, { i0, j0, k0, fetched, done, single }) {
    const hot = is => (is ? "hot" : undefined);
    matrix(pen, "a", 4, 144, (i, k) => hot(inTile(i, i0) && inTile(k, k0)));
    matrix(pen, "b", 126, 18, (k, j) => hot(inTile(k, k0) && inTile(j, j0)));
    matrix(pen, "c", 126, 144, (i, j) =>
      finished(i, j, done) ? "good" : inTile(i, i0) && inTile(j, j0) ? "cold" : undefined);
    const counts = [["numbers fetched", fetched, "fetched"], ["multiply-adds", done, "done"],
                    ["fetched for each", done ? (fetched / done).toFixed(2) : "–", "each"]];
    if (single) counts.push(["one sum at a time", single, "single"]);
    counts.forEach(([words, number, name], i) => {
      pen.text(244, 30 + 46 * i, words, { anchor: "start", kind: "dim" });
      pen.text(244, 48 + 46 * i, number, { anchor: "start", name });
    });
  }

  function say({ i0, j0, k0, fetched, done, single }) {
    if (single)
      return `${done} multiply-adds fetched ${fetched} numbers of a and b. One sum at a time `
        + `fetches ${single}, ${single / fetched} times as many. In a tile each number is used `
        + `${t} times.`;
    if (i0 === undefined)
      return "Nothing is fetched yet. The fast memory has room for one tile of each matrix.";
    const began = k0 === 0 ? "A tile of c begins" : "The same tile of c goes on";
    return `${began}: rows ${i0} to ${i0 + t - 1}, columns ${j0} to ${j0 + t - 1}. `
      + `${2 * t * t} numbers are fetched for ${t ** 3} multiply-adds, k = ${k0} to ${k0 + t - 1}.`;
  }

  stepped({ name: "tiles", height: 256, frames: compute(), draw, say });
})();

// ---- picture: banks ----
// Shared memory as its 32 banks see it: word w lies in column w mod 32. The words that the lanes of
// a warp ask for are filled; below is how many words each bank must give, one a pass.
(() => {
  const BANKS = 32, LANES = 32;
  // Words in a row of the tile; whether lanes go along a row or down a column; how many are shown.
  const loads = [
    { wide: 32, way: "row", lanes: 32 },
    { wide: 32, way: "column", lanes: 1 }, { wide: 32, way: "column", lanes: 4 },
    { wide: 32, way: "column", lanes: 32 },
    { wide: 34, way: "column", lanes: 4 }, { wide: 34, way: "column", lanes: 32 },
    { wide: 33, way: "column", lanes: 1 }, { wide: 33, way: "column", lanes: 4 },
    { wide: 33, way: "column", lanes: 32 }];

  function compute(load) {
    const words = Array.from({ length: load.lanes }, (_, lane) =>
      load.way === "row" ? lane : load.wide * lane);
    const asked = new Array(BANKS).fill(0);
    for (const word of new Set(words)) asked[word % BANKS]++;
    return { ...load, words, asked, passes: Math.max(...asked) };
  }

  const left = 64, cell = 9.1, rowHeight = 5, rows = 34, floor = 290;

  function draw(pen, { wide, way, lanes, words, asked, passes }) {
    const x = bank => left + cell * bank;
    const label = (y, words) => pen.text(left - 6, y, words, { anchor: "end", kind: "dim small" });
    label(16, "bank");
    for (const bank of [0, 8, 16, 24, 31]) pen.text(x(bank + 0.5), 16, bank, { kind: "dim small" });
    for (let row = 0; row < rows; row++)
      if (row % 8 === 0)
        label(29 + rowHeight * row, `word ${BANKS * row}`);
    pen.box(left, 22, cell * BANKS, rowHeight * rows, { kind: "plain" });
    for (let bank = 1; bank < BANKS; bank++)
      pen.line(x(bank), 22, x(bank), 22 + rowHeight * rows, "faint");
    for (const word of words)
      pen.box(x(word % BANKS), 22 + rowHeight * Math.floor(word / BANKS), cell, rowHeight,
              { kind: "hot" });
    label(216, "words");
    label(228, "asked of it");
    pen.line(left, floor, left + cell * BANKS, floor);
    asked.forEach((count, bank) =>
      pen.box(x(bank), floor - 2.4 * count, cell, 2.4 * count,
              { kind: count > 1 ? "hot" : "good" }));
    const which = way === "row" ? "along a row" : `down a column, rows of ${wide}`;
    pen.text(4, 312, `${which}, lanes 0 to ${lanes - 1}`, { anchor: "start" });
    pen.text(356, 312, `passes: ${passes}`,
             { anchor: "end", kind: passes > 1 ? "hot" : "good", name: "passes" });
  }

  const times = passes => (passes === 1 ? "one pass" : `${passes} passes`);

  function say(frame) {
    const { wide, way, lanes, words, passes } = frame;
    if (way === "row") return "Along a row, each lane asks another bank: one pass.";
    const first = words.slice(0, 4), list = all => (all.length > 1 ? "s " : " ") + all.join(", ");
    const where = `Rows of ${wide} floats, down a column: word${list(first)} `
      + `in bank${list(first.map(word => word % BANKS))}`;
    if (lanes < LANES) return `${where}. So far ${times(passes)}.`;
    const last = frame === frames[frames.length - 1];
    return `${where}, and so on. The busiest bank takes ${times(passes)}.`
      + (last ? ` ${frames.filter(each => each.way === "column" && each.lanes === LANES)
        .map(each => `Rows of ${each.wide}: ${times(each.passes)}`).join(". ")}.` : "");
  }

  const frames = loads.map(compute);
  stepped({ name: "banks", height: 320, frames, draw, say });
})();

// ---- picture: ring ----
// A ring all-reduce of four ranks: each brings four numbers, one a chunk, and in the end each has
// the four sums. A column is a rank, a row a chunk; an arrow is a chunk that is sent.
(() => {
  const brought = [[3, 1, 4, 1], [5, 9, 2, 6], [5, 3, 5, 8], [9, 7, 9, 3]];    // [rank][chunk]
  const n = brought.length;
  const wrap = i => ((i % n) + n) % n;

  // One step: rank r sends chunk sends(r) to its right neighbour, which adds or copies it.
  function step(cells, sends, adds) {
    const next = cells.map(row => row.map(cell => ({ ...cell, from: undefined })));
    for (let r = 0; r < n; r++) {
      const chunk = sends(r), to = wrap(r + 1);
      const arrived = cells[r][chunk], own = cells[to][chunk];
      next[to][chunk] = adds
        ? { value: own.value + arrived.value, parts: own.parts + arrived.parts, from: r,
            sum: `${arrived.value} + ${own.value}` }
        : { ...arrived, from: r, sum: undefined };
    }
    return next;
  }

  function compute() {
    let cells = brought.map(row => row.map(value => ({ value, parts: 1 })));
    const frames = [{ phase: "start", cells, sent: 0 }];
    for (const phase of ["reduce-scatter", "all-gather"]) {
      const adds = phase === "reduce-scatter";
      for (let s = 0; s < n - 1; s++) {
        cells = step(cells, r => wrap(r - s + (adds ? 0 : 1)), adds);
        frames.push({ phase, number: s + 1, cells, sent: frames.length * brought[0].length / n });
      }
    }
    return frames;
  }

  const left = rank => 22 + 86 * rank, top = chunk => 32 + 42 * chunk;

  function drawCell(pen, rank, chunk, { value, parts, from, sum }) {
    const x = left(rank), y = top(chunk), finished = parts === n;
    const kind = finished ? "good" : from !== undefined ? "hot" : undefined;
    pen.box(x, y, 58, 32, { kind, radius: 4 });
    const added = sum && from !== undefined;
    pen.text(x + 29, y + (added ? 14 : 20), value, { kind, name: `rank${rank}` });
    if (added) pen.text(x + 29, y + 27, `= ${sum}`, { kind: "dim small" });
    if (from === undefined) return;
    pen.arrow(x - 27, y + 16, x - 2, y + 16, "hot");
    if (rank === 0) pen.arrow(left(n - 1) + 59, y + 16, left(n - 1) + 79, y + 16, "hot");
  }

  function draw(pen, { cells, sent }) {
    cells.forEach((row, rank) => {
      pen.text(left(rank) + 29, 20, `rank ${rank}`);
      row.forEach((cell, chunk) => drawCell(pen, rank, chunk, cell));
    });
    pen.text(180, top(n) + 14, `sent by each rank so far: ${sent} numbers`, { name: "sent" });
  }

  function say({ phase, number, cells, sent }) {
    if (phase === "start") return "Each rank has its own part of four sums.";
    if (phase === "reduce-scatter")
      return `Reduce-scatter, step ${number} of ${n - 1}: each rank sends one chunk to the right, `
        + `and the receiver adds its own part. ${number < n - 1
          ? "Next it sends what it has just added." : "Now each rank has one finished sum."}`;
    if (number < n - 1)
      return `All-gather, step ${number} of ${n - 1}: finished sums go right, and are copied.`;
    const vector = cells[0].length;
    return `All ranks have all sums. Each sent ${sent} numbers: 2 · ${n - 1} chunks of `
      + `${vector / n}, which is ${(sent / vector).toFixed(2)} times its vector of ${vector}.`;
  }

  stepped({ name: "ring", height: 226, frames: compute(), draw, say });
})();
