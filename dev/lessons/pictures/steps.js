// Shared by the pictures: a figure whose frames a reader steps through, with two buttons or with
// the arrow keys, Home and End. On paper it is the last frame.
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
    <svg viewBox="0 0 360 ${height}" role="img"></svg><p aria-live="polite"></p>
    <div class="printed"><svg viewBox="0 0 360 ${height}" role="img"></svg><p></p></div>`);
  const [back, next] = figure.querySelectorAll("button");
  const [svg, printed] = figure.querySelectorAll("svg");
  const [words, printedWords] = figure.querySelectorAll("p");
  const last = frames.length - 1;
  let at = 0;

  function paint(picture, paragraph, frame) {
    picture.replaceChildren();
    draw(new Pen(picture), frame);
    paragraph.textContent = say(frame);
    picture.setAttribute("aria-label", paragraph.textContent);
  }

  function go(to) {
    at = Math.max(0, Math.min(last, to));
    paint(svg, words, frames[at]);
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
  paint(printed, printedWords, frames[last]);
  go(0);
}
