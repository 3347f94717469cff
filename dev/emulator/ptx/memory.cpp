// Where an access goes, and whether it may: alignment, bounds, races in shared memory.
//
// A race is two accesses to the same bytes by two threads, one of them a write, with nothing
// between them that says which comes first. A GPU may run them in either order, and in another one
// each time. Between threads of a block only these say it:
//
//     __syncthreads    what any thread did before, every thread may rely on
//     __syncwarp       the same for the lanes of a warp
//     a wait           cp.async has arrived for the thread that started it, and for no other
//
// So each two bytes remember who wrote and who read them, and when: numbers of barriers, which need
// no order of execution. A race is found although the order that happens here does no harm.
#include <algorithm>
#include "interpreter.h"

namespace ptx {

static Moment now(const Step &s) { return { s.block.barriers, s.warp.syncs }; }

// What is missing between an access of another thread and one of this warp; null if nothing is.
static const char *missing(const Step &s, int other, Moment then) {
    if (then.barriers != s.block.barriers) return nullptr;
    if (other / 32 != s.warp.number) return "__syncthreads";
    return then.syncs == s.warp.syncs ? "__syncwarp or __syncthreads" : nullptr;
}

// After a write: the last one counts, since it was compared with those before.
static void check_written(const Step &s, int lane, const Cell &cell, uint32_t at,
                          const char *does) {
    if (cell.copying >= 0)
        fault(s, lane, "race: %s shared byte %u, to which cp.async of thread %d is under way",
              does, at, cell.copying);
    const char *lacks = missing(s, cell.writer, cell.written);
    if (cell.writer != s.thread(lane) && lacks)
        fault(s, lane, "race: %s shared byte %u, which thread %d wrote: no %s between", does, at,
              cell.writer, lacks);
}

// Before a write: every reader counts, since readers may come in any order.
static void check_read(const Step &s, int lane, const Cell &cell, uint32_t at) {
    if (cell.read.barriers != s.block.barriers) return;
    if (cell.read_by_others || cell.reading_warp != s.warp.number)
        fault(s, lane, "race: writes shared byte %u, which warp %d has read: no __syncthreads "
              "between", at, cell.reading_warp);
    uint32_t others = cell.reading_lanes & ~(1u << lane);
    if (others && cell.read.syncs == s.warp.syncs)
        fault(s, lane, "race: writes shared byte %u, which thread %d has read: no __syncwarp or "
              "__syncthreads between", at, s.thread(__builtin_ctz(others)));
}

static void note_read(const Step &s, int lane, Cell *cell) {
    bool first = cell->read.barriers != s.block.barriers;
    bool other_warp = cell->reading_warp != s.warp.number;
    cell->read_by_others = !first && (cell->read_by_others || other_warp);
    if (first || other_warp || cell->read.syncs != s.warp.syncs) cell->reading_lanes = 0;
    cell->reading_lanes |= 1u << lane;
    cell->reading_warp = s.warp.number;
    cell->read = now(s);
}

static void note_write(const Step &s, int lane, Cell *cell) {
    cell->writer = s.thread(lane);
    cell->written = now(s);
}

// f(cell, its byte) for all cells of these bytes.
template <class F> static void for_cells(const Step &s, uint32_t at, int bytes, F f) {
    for (uint32_t c = at / 2; c <= (at + bytes - 1) / 2; c++) f(&s.block.cells[c], 2*c);
}

static uint8_t *shared_address(const Step &s, int lane, uint64_t at, int bytes, Access access) {
    if (at + bytes > s.block.shared.size())
        fault(s, lane, "%d bytes at shared byte %u: the block has %zu", bytes, (uint32_t)at,
              s.block.shared.size());
    for_cells(s, (uint32_t)at, bytes, [&](Cell *cell, uint32_t byte) {
        check_written(s, lane, *cell, byte, access == READ ? "reads" : "writes");
        if (access == READ) return note_read(s, lane, cell);
        check_read(s, lane, *cell, byte);
        note_write(s, lane, cell);
    });
    return &s.block.shared[at];
}

static void check_alignment(const Step &s, int lane, uint64_t at, int bytes) {
    if (at % bytes)
        fault(s, lane, "address 0x%llx is no multiple of %d", (unsigned long long)at, bytes);
}

static void check_bounds(const Step &s, int lane, uint64_t at, int bytes) {
    const std::vector<Range> &all = s.block.launch.memory;        // in ascending order
    auto after = std::upper_bound(all.begin(), all.end(), at,
                                  [](uint64_t x, const Range &r) { return x < r.begin; });
    if (after == all.begin() || at + bytes > after[-1].begin + after[-1].bytes)
        fault(s, lane, "%d bytes at 0x%llx: they are in no allocation", bytes,
              (unsigned long long)at);
}

uint8_t *address(const Step &s, int lane, Space space, uint64_t at, int bytes, Access access) {
    if (space == PARAM) return &s.block.parameters[at];
    if (space == SHARED) at = (uint32_t)at;
    check_alignment(s, lane, at, bytes);
    uint64_t shared = (uint64_t)s.block.shared.data();
    bool is_shared = at >= shared && at < shared + s.block.shared.size();
    if (space == GENERIC && is_shared) return shared_address(s, lane, at - shared, bytes, access);
    if (space == SHARED) return shared_address(s, lane, at, bytes, access);
    check_bounds(s, lane, at, bytes);
    return (uint8_t *)at;
}

// ---- cp.async ----

void copy_start(const Step &s, int lane, uint32_t to, uint64_t from, int bytes, int read) {
    check_alignment(s, lane, to, bytes);
    check_alignment(s, lane, from, bytes);
    if (read > 0) check_bounds(s, lane, from, read);
    shared_address(s, lane, to, bytes, WRITE);
    for_cells(s, to, bytes, [&](Cell *cell, uint32_t) { cell->copying = s.thread(lane); });
    Thread &thread = s.block.threads[s.thread(lane)];
    thread.copies.push_back({ to, from, bytes, read, thread.groups });
}

void copies_finish(const Step &s, int lane, int groups_left) {
    Thread &thread = s.block.threads[s.thread(lane)];
    auto arrived = [&](const Copy &copy) { return copy.group < thread.groups - groups_left; };
    for (const Copy &copy : thread.copies) {
        if (!arrived(copy)) continue;
        uint8_t *to = &s.block.shared[copy.to];
        memset(to, 0, copy.bytes);
        if (copy.read > 0) memcpy(to, (const void *)copy.from, copy.read);
        for_cells(s, copy.to, copy.bytes, [&](Cell *cell, uint32_t) {
            cell->copying = -1;
            note_write(s, lane, cell);
        });
    }
    thread.copies.erase(std::remove_if(thread.copies.begin(), thread.copies.end(), arrived),
                        thread.copies.end());
}

}  // namespace ptx
