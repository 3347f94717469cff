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
