// Launches, blocks, warps, and reports.
//
// A block's warps take turns: one runs until all its lanes have exited or wait at a barrier. In a
// warp, the lanes that are at the lowest instruction run together; so those that took a branch are
// waited for where the ways meet again. Since races are found by what is missing between accesses,
// not by their effect, this order is as good as any other.
#include <cxxabi.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include "interpreter.h"

namespace ptx {

// ---- reports ----

static std::mutex reporting;                     // never given back: only the first report prints

void die(const char *format, ...) {
    reporting.lock();
    fflush(stdout);
    fprintf(stderr, "ptx: ");
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    _exit(1);
}

static const Program &program(void) {
    static const char *path = getenv("EMULATOR_PTX");
    if (!path) die("EMULATOR_PTX must name the file that nvcc -ptx -lineinfo wrote");
    static const Program p = parse(path);
    return p;
}

// "layernorm_forward_kernel<4>" of _Z24layernorm_forward_kernelILi4EEv...
static std::string readable(const std::string &name) {
    int status;
    char *whole = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
    std::string text = whole ? whole : name;
    free(whole);
    if (text.compare(0, 5, "void ") == 0) text = text.substr(5);
    return text.substr(0, text.find('('));
}

static std::string place(int file, int line) {
    auto found = program().files.find(file);
    if (found == program().files.end()) return "an unknown line";
    return found->second.substr(found->second.rfind('/') + 1) + ":" + std::to_string(line);
}

void fault(const Step &s, int lane, const char *format, ...) {
    char what[1000];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    const Source &at = s.i.source;
    std::string where = place(at.file, at.line);
    if (at.caller_line) where += ", called in " + place(at.caller_file, at.caller_line);
    uint3 id = s.block.id;
    die("kernel %s, block (%u,%u,%u), thread %d, %s: %s: %s", readable(s.block.kernel.name).c_str(),
        id.x, id.y, id.z, s.thread(lane), where.c_str(), what, s.i.text.c_str());
}

// ---- a warp ----

// Whether all members of a collective have come. Until then those that are here wait.
static bool members_are_here(Step *s) {
    Warp &w = s->warp;
    int first = __builtin_ctz(s->lanes), operand = s->i.meaning->members;
    uint32_t members = operand == WHOLE_WARP ? ~0u : (uint32_t)s->row(operand)[first];
    if (s->lanes & ~members) fault(*s, first, "its mask %08x does not name its lane", members);
    uint32_t here = s->lanes;
    for_lanes(w.in_collective, [&](int l) { if (w.pc[l] == w.pc[first]) here |= 1u << l; });
    if (members & ~w.exited & ~here) {
        w.in_collective |= s->lanes;
        return false;
    }
    w.in_collective &= ~here;
    s->lanes = here;
    return true;
}

// Carries out the lowest instruction at which one of these lanes is, for all that are there.
static void step(Block &b, Warp &w, uint32_t ready) {
    int pc = w.pc[__builtin_ctz(ready)];
    for_lanes(ready, [&](int l) { pc = std::min(pc, w.pc[l]); });
    Step s = { b, w, b.kernel.code[pc], 0 };
    uint32_t skip = 0;
    for_lanes(ready, [&](int l) {
        if (w.pc[l] != pc) return;
        bool holds = s.i.guard < 0 || (w.registers[32*s.i.guard + l] != 0) != s.i.guard_negated;
        (holds ? s.lanes : skip) |= 1u << l;
    });
    b.steps++;
    for_lanes(skip, [&](int l) { w.pc[l]++; });
    if (!s.lanes || (s.i.meaning->members != ALONE && !members_are_here(&s))) return;
    for_lanes(s.lanes, [&](int l) { w.pc[l]++; });
    s.i.meaning->run(s);
}

// Lets a warp run until all lanes have exited or wait at a barrier.
static void run(Block &b, Warp &w) {
    while (uint32_t ready = ~(w.exited | w.at_barrier | w.in_collective)) step(b, w, ready);
    if (!w.in_collective) return;
    int lane = __builtin_ctz(w.in_collective);
    Step stuck = { b, w, b.kernel.code[w.pc[lane]], w.in_collective };
    fault(stuck, lane, "lanes %08x wait for others: %08x are at a barrier, %08x have exited",
          w.in_collective, w.at_barrier, w.exited);
}

// ---- a block ----

static uint32_t special(const std::string &name, const Block &b, uint32_t thread) {
    dim3 size = b.launch.grid.block;
    dim3 tid(thread % size.x, thread / size.x % size.y, thread / size.x / size.y);
    const struct { const char *prefix; dim3 value; } known[] = {
        { "%tid.", tid }, { "%ntid.", size }, { "%ctaid.", b.id },
        { "%nctaid.", b.launch.grid.grid },
    };
    if (name == "%laneid") return thread % 32;
    for (auto &k : known) {
        if (name.compare(0, name.size() - 1, k.prefix) != 0) continue;
        char axis = name.back();
        return axis == 'x' ? k.value.x : axis == 'y' ? k.value.y : k.value.z;
    }
    die("kernel %s: run.cpp does not know %s", readable(b.kernel.name).c_str(), name.c_str());
}

static void warp_begin(Warp *w, const Block &b, int threads) {
    w->registers.assign(32 * (size_t)b.kernel.rows, 0xABABABABABABABAB);
    int lanes = threads - 32*w->number;
    if (lanes < 32) w->exited = ~0u << lanes;
    auto row = [&](int r) { return &w->registers[32 * (size_t)r]; };
    for (auto &c : b.kernel.constants) std::fill_n(row(c.first), 32, c.second);
    for (auto &c : b.kernel.specials)
        for (int l = 0; l < 32; l++) row(c.first)[l] = special(c.second, b, 32*w->number + l);
}

// Uninitialized shared memory holds NaNs, as the emulator's does.
static void block_begin(Block *b) {
    dim3 size = b->launch.grid.block;
    int threads = (int)(size.x * size.y * size.z), warps = (threads + 31) / 32;
    b->shared.assign(b->kernel.shared_bytes + b->launch.grid.dynamic_bytes, 0xFF);
    b->cells.resize(b->shared.size()/2 + 1);
    b->threads.resize(32*warps);
    b->warps.resize(warps);
    for (int i = 0; i < warps; i++) {
        b->warps[i].number = i;
        warp_begin(&b->warps[i], *b, threads);
    }
}

// All warps run until they wait at the barrier; then it opens, until all have exited.
static void block_run(Block *b) {
    for (bool alive = true; alive; b->barriers++) {
        alive = false;
        for (Warp &w : b->warps) run(*b, w);
        for (Warp &w : b->warps) {
            w.at_barrier = 0;
            alive = alive || ~w.exited;
        }
    }
}

// ---- a launch ----

static std::set<std::string> launched;
static std::atomic<uint64_t> steps;

static void count(void) {
    fprintf(stderr, "ptx: %zu kernels, %llu warp instructions, 0 races\n", launched.size(),
            (unsigned long long)steps);
}

static const Kernel &kernel_of(const void *function) {
    Dl_info symbol = {};
    if (!function || !dladdr(function, &symbol) || !symbol.dli_sname)
        die("a kernel without a name: launch it by a function's, and link with -rdynamic");
    auto found = program().kernels.find(symbol.dli_sname);
    if (found == program().kernels.end())
        die("%s has no kernel %s", getenv("EMULATOR_PTX"), readable(symbol.dli_sname).c_str());
    if (launched.empty()) atexit(count);
    launched.insert(symbol.dli_sname);
    return found->second;
}

static std::vector<uint8_t> parameters_of(const Kernel &k, const Launch &l) {
    std::vector<uint8_t> bytes(k.parameter_bytes);
    bool fit = k.parameters.size() == l.arguments.size();
    for (size_t i = 0; fit && i < l.arguments.size(); i++) {
        fit = k.parameters[i].bytes == l.arguments[i].bytes;
        if (fit) memcpy(&bytes[k.parameters[i].at], l.arguments[i].data, l.arguments[i].bytes);
    }
    if (!fit) die("kernel %s has other arguments in PTX", readable(k.name).c_str());
    return bytes;
}

void launch(Launch l) {
    const Kernel &k = kernel_of(l.kernel);
    std::vector<uint8_t> parameters = parameters_of(k, l);
    std::sort(l.memory.begin(), l.memory.end(),
              [](const Range &a, const Range &b) { return a.begin < b.begin; });
    dim3 g = l.grid.grid;
    int64_t gx = g.x, gy = g.y, blocks = gx * gy * g.z;
    #pragma omp parallel for schedule(dynamic) if (blocks > 1)
    for (int64_t i = 0; i < blocks; i++) {
        uint3 id = { (unsigned)(i % gx), (unsigned)(i / gx % gy), (unsigned)(i / gx / gy) };
        Block b = { l, k, id, parameters, {}, {}, {}, {} };
        block_begin(&b);
        block_run(&b);
        steps += b.steps;
    }
}

}  // namespace ptx
