// A run of the race, in a worker of its own: trains, and posts what it has done about ten times a
// second. It follows wasi.js in one source.
"use strict";

const EVAL_TOKENS = 4096, SAMPLE_TOKENS = 160;
let paused = false, resume = null;

async function race({ module, flags, batch, most, hashAt }) {
  const trainer = await trainGpt2(module, flags);
  const points = [[0, trainer.evaluate(EVAL_TOKENS)]];
  let updates = 0, sampled = 0, due = batch, busy = 0, shown = 0, text = "", hash = "";
  const post = () => postMessage({ updates, points: points.splice(0), text, hash, busy,
                                   floor: trainer.floor() });
  while (updates * batch < most) {
    const began = performance.now();
    trainer.step();
    updates++;
    busy += performance.now() - began;
    if (updates === hashAt) hash = trainer.hash();
    if (updates * batch >= due) {                     // closer together at first
      points.push([updates, trainer.evaluate(EVAL_TOKENS)]);
      due = updates * batch * 1.05 + 4096;
    }
    const now = performance.now();
    if (now - sampled > 2000) {
      text = trainer.sample(SAMPLE_TOKENS, 0);
      sampled = now;
    }
    if (now - shown < 100) continue;
    post();
    shown = now;
    await new Promise(wake => setTimeout(wake, 0));   // messages come in
    if (paused) await new Promise(wake => { resume = wake; });
  }
  points.push([updates, trainer.evaluate(EVAL_TOKENS)]);
  text = trainer.sample(SAMPLE_TOKENS, 0);
  post();
}

onmessage = ({ data }) => {
  if (data.module) race(data).catch(error => postMessage({ error: error.message }));
  else paused = data.pause;
  if (!paused && resume) resume();
};
