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

  // The same from all scores at once, for comparison.
  function atOnce() {
    const weights = scores.map(s => Math.exp(s));
    const sum = weights.reduce((a, b) => a + b);
    return weights.reduce((total, w, i) => total + w * values[i], 0) / sum;
  }

  function draw(pen, frame) {
    const done = frame.out !== undefined;
    pen.text(4, 18, "key", { anchor: "start", kind: "dim" });
    pen.text(4, 38, "score", { anchor: "start", kind: "dim" });
    pen.text(4, 56, "value", { anchor: "start", kind: "dim" });
    pen.text(4, 160, "e^(s − m)", { anchor: "start", kind: "dim small" });
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
    const shown = { m: frame.m, z: frame.z, o: frame.o };
    Object.entries(shown).forEach(([name, value], i) =>
      pen.box(4 + 120 * i, 178, 112, 26, { words: `${name} = ${digits(value)}`, name, radius: 4 }));
    if (!done) return;
    pen.box(4, 214, 172, 26, { kind: "good", words: `out = o/z = ${digits(frame.out)}`, name: "out",
                               radius: 4 });
    pen.box(184, 214, 172, 26, { kind: "good", words: `lse = m + ln z = ${digits(frame.lse)}`,
                                 name: "lse", radius: 4 });
  }

  function say({ key, m, factor, term, before, out }) {
    if (key < 0) return "No key has come. m begins at −∞, z and o at 0.";
    if (out !== undefined)
      return `All keys have come: out = o/z = ${digits(out)}. From all scores at once it is `
        + `${digits(atOnce())}. No step needed more than one key, m, z and o.`;
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
