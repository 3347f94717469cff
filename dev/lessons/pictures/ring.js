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
