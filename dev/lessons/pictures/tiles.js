// A product c = a b of 8 × 8 matrices by tiles of 4 × 4. A tile of a and one of b, orange, are
// fetched and multiplied into a tile of c, blue. A finished tile is green.
(() => {
  const n = 8, t = 4;

  // Runs the loops over tiles and counts; visit(i0, j0, k0, fetched, done) after each two tiles.
  function run(side, visit) {
    let fetched = 0, done = 0;
    for (let i0 = 0; i0 < n; i0 += side)
      for (let j0 = 0; j0 < n; j0 += side)
        for (let k0 = 0; k0 < n; k0 += side) {
          const used = new Set();
          for (let i = i0; i < i0 + side; i++)
            for (let j = j0; j < j0 + side; j++)
              for (let k = k0; k < k0 + side; k++, done++)
                used.add(`a${i},${k}`).add(`b${k},${j}`);
          fetched += used.size;
          visit(i0, j0, k0, fetched, done);
        }
    return { fetched, done };
  }

  function compute() {
    const frames = [{ fetched: 0, done: 0 }];
    run(t, (i0, j0, k0, fetched, done) => frames.push({ i0, j0, k0, fetched, done }));
    const { fetched, done } = frames[frames.length - 1];
    return [...frames, { fetched, done, single: run(1, () => {}).fetched }];
  }

  const size = 13;

  function matrix(pen, name, x, y, kindOf) {
    pen.text(x + n * size / 2, y - 5, name);
    for (let i = 0; i < n; i++)
      for (let j = 0; j < n; j++)
        pen.box(x + size * j, y + size * i, size, size, { kind: kindOf(i, j) });
  }

  const inTile = (i, at) => i >= at && i < at + t;

  // Whether a tile of c is finished: those before (i0, j0) in the order of the loops, or all.
  function finished(i, j, { i0, j0, k0, single }) {
    if (single) return true;
    if (i0 === undefined) return false;
    const tile = (row, column) => Math.floor(row / t) * (n / t) + Math.floor(column / t);
    return tile(i, j) < tile(i0, j0) || (tile(i, j) === tile(i0, j0) && k0 + t === n);
  }

  function draw(pen, frame) {
    const { i0, j0, k0, fetched, done, single } = frame;
    const hot = is => (is ? "hot" : undefined);
    matrix(pen, "a", 4, 144, (i, k) => hot(inTile(i, i0) && inTile(k, k0)));
    matrix(pen, "b", 126, 18, (k, j) => hot(inTile(k, k0) && inTile(j, j0)));
    matrix(pen, "c", 126, 144, (i, j) =>
      finished(i, j, frame) ? "good" : inTile(i, i0) && inTile(j, j0) ? "cold" : undefined);
    const count = (y, words, number, name, kind) => {
      pen.text(244, y, words, { anchor: "start", kind: "dim" });
      pen.text(244, y + 18, number, { anchor: "start", name, kind });
    };
    count(30, "numbers fetched", fetched, "fetched");
    count(76, "multiply-adds", done, "done");
    count(122, "fetched for each", done ? (fetched / done).toFixed(2) : "–", "each");
    if (!single) return;
    pen.text(244, 190, "one sum at a time", { anchor: "start", kind: "dim" });
    count(205, "would fetch", single, "single", "hot");
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
