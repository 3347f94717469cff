// A line chart as SVG, and numbers as words. Shared by the race, the replay, and scripts/watch.py.
"use strict";

const byId = id => document.getElementById(id);

// 1234567 -> "1.23M"; 0.00132 -> "0.00132".
function brief(x) {
  const units = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];
  for (const [size, letter] of units)
    if (x >= 0.9995 * size) return Number((x / size).toPrecision(3)) + letter;
  return String(Number(x.toPrecision(3)));
}

// Round steps, so that at most five lie in a span.
function tickStep(span) {
  const power = 10 ** Math.floor(Math.log10(span / 5));
  return power * [1, 2, 5, 10].find(times => span / (power * times) <= 5);
}

// The x at which a line first comes down to y; null: it has not yet. points: [[x, y], ...].
function crossing(points, y) {
  const i = points.findIndex(point => point[1] <= y);
  if (i <= 0) return i < 0 ? null : points[0][0];
  const [[x0, y0], [x1, y1]] = [points[i - 1], points[i]];
  return x0 + (x1 - x0) * (y0 - y) / (y0 - y1);
}

// lines: [{points, color, name, dashed, faint, dots, end}]; y, a loss, from low to high; xMost: the
// right end. level: {y, words}, a horizontal line; mark: a loss at which each line gets a dot, at its
// `end` if it has one.
function chart(svg, { lines, xMost, xLabel, yLabel = "validation loss", low, high, level, mark }) {
  const width = svg.clientWidth || 640, height = svg.clientHeight || 300;
  const left = 40, right = 12, top = 10, bottom = 36;
  const X = x => left + (width - left - right) * x / xMost;
  const Y = y => top + (height - top - bottom) * (high - y) / (high - low);
  const parts = [], step = tickStep(xMost * Math.max(1, 480 / width)), rise = tickStep(high - low);
  const text = (x, y, words, how = "") => parts.push(`<text x="${x}" y="${y}" ${how}>${words}</text>`);
  for (let y = Math.ceil(low / rise) * rise; y <= high + 1e-9; y += rise) {
    parts.push(`<path class="grid" d="M${left} ${Y(y)}H${width - right}"/>`);
    text(left - 6, Y(y) + 4, brief(y), 'text-anchor="end"');
  }
  for (let x = 0; x <= xMost * 1.0001; x += step) {
    parts.push(`<path class="grid" d="M${X(x)} ${top}V${height - bottom}"/>`);
    text(X(x), height - bottom + 15, brief(x), 'text-anchor="middle"');
  }
  text((left + width - right) / 2, height - 4, xLabel, 'text-anchor="middle"');
  text(left + 6, top + 12, yLabel);
  if (level) {
    parts.push(`<path class="level" d="M${left} ${Y(level.y)}H${width - right}"/>`);
    text(width - right, Y(level.y) + 15, level.words, 'text-anchor="end"');
  }
  const dot = (x, y, color) =>
    parts.push(`<circle cx="${X(x)}" cy="${Y(y)}" r="4" fill="${color}"/>`);
  for (const { points, color, name, dashed, faint, dots, end } of lines) {
    const seen = points.filter(([x, y]) => y <= high && x <= xMost * 1.0001);
    const path = seen.map(([x, y]) => `${X(x).toFixed(1)} ${Y(y).toFixed(1)}`).join("L");
    if (seen.length > 1)
      parts.push(`<path d="M${path}" fill="none" stroke="${color}" stroke-width="2.2"` +
                 `${dashed ? ' stroke-dasharray="6 4"' : ""} opacity="${faint ? 0.5 : 1}"/>`);
    if (dots) for (const point of seen) dot(...point, color);
    const [x, y] = seen[seen.length - 1] || [];
    if (name && seen.length)
      text(X(x) - 4, Y(y) - 8, name, `text-anchor="end" style="fill:${color};font-weight:600"`);
    const at = end || mark && crossing(points, mark);
    if (at) dot(at, mark, color);
  }
  svg.innerHTML = parts.join("");
}
