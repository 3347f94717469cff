// Runs dev/web/train_gpt2.wasm: the few calls of WASI that the trainer makes, and its exports as a
// JavaScript object. In a worker, a tab, or node; no library.
//
//     const trainer = await trainGpt2(bytesOrModule, ["--layers", "2", ...]);   // throws its message
//     trainer.step()    trainer.evaluate(16384)    trainer.floor()
//     trainer.sample(200, 0)    trainer.hash()
//     const { text, event } = await planGpt2(bytesOrModule, ["--plan", ...]);   // and of its log
"use strict";

// An instance that has read these flags, and what it has written.
async function startGpt2(source, flags) {
  const module = source instanceof WebAssembly.Module ? source : await WebAssembly.compile(source);
  const written = ["", "", ""];                       // by descriptor; 1: standard output, 2: error
  const decoder = new TextDecoder();
  let memory;
  const view = () => new DataView(memory.buffer);
  const known = {
    fd_write(fd, parts, count, done) {
      let bytes = 0;
      for (let i = 0; i < count; i++) {
        const at = view().getUint32(parts + 8 * i, true);
        const size = view().getUint32(parts + 8 * i + 4, true);
        written[fd] += decoder.decode(new Uint8Array(memory.buffer, at, size));
        bytes += size;
      }
      view().setUint32(done, bytes, true);
      return 0;
    },
    clock_time_get(clock, precision, out) {
      view().setBigUint64(out, BigInt(Math.round(performance.now() * 1e6)), true);
      return 0;
    },
    environ_sizes_get(count, size) {
      view().setUint32(count, 0, true);
      view().setUint32(size, 0, true);
      return 0;
    },
    proc_exit(status) { throw new Error(written[2].trim() || `it ended with status ${status}`); },
  };
  const missing = () => 8;                            // EBADF: there are no files
  const wasi = new Proxy(known, { get: (calls, name) => calls[name] || missing });
  const { exports } = await WebAssembly.instantiate(module, { wasi_snapshot_preview1: wasi });
  memory = exports.memory;
  exports._initialize();
  new Uint8Array(memory.buffer).set(new TextEncoder().encode(flags.join("\0") + "\0\0"),
                                    exports.web_flags());
  return { exports, written };
}

async function planGpt2(source, flags) {
  const { exports, written } = await startGpt2(source, flags);
  exports.web_plan();
  return { text: written[1], event: JSON.parse(written[2]) };
}

async function trainGpt2(source, flags) {
  const { exports, written } = await startGpt2(source, flags);
  exports.web_open();
  return {
    step: exports.web_step,
    evaluate: exports.web_eval,
    floor: exports.web_floor,
    sample(tokens, number) {
      written[1] = "";
      exports.web_sample(tokens, number);
      return written[1];
    },
    hash() {
      const half = high => (exports.web_hash_half(high) >>> 0).toString(16).padStart(8, "0");
      return half(1) + half(0);
    },
  };
}

// The module from the page's text: base64 of its gzip. A browser without SIMD refuses it.
async function unpackGpt2(text) {
  const bytes = Uint8Array.from(atob(text), c => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return WebAssembly.compile(await new Response(stream).arrayBuffer());
}
if (typeof module !== "undefined") module.exports = { trainGpt2, planGpt2 };
