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
