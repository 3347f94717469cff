// Tables of what kernels asked for (count.h), and the time that a named GPU needs for it at least.
//
//     profile_show(counted(), "h100")               all kernels, the longest first
//     profile_show_lines(counted(), "xent", "h100")    one kernel, line by line
//
// The least time of a kernel is the longest of these, each by the data sheet. A kernel that takes
// longer on a GPU waits: for data on its way, for a barrier, for other instructions.
//
//     memory    bytes of the sectors that a launch reads or writes, each counted once: as if the L2
//               cache were empty before the launch and large enough for it
//     L2        bytes of all sectors that its requests ask for: as if the L1 caches kept nothing.
//               Known of V100 and A100 only
//     L1        passes: a multiprocessor's L1 cache and shared memory, one unit, move 128 bytes a
//               clock; a bank conflict takes a clock more
//     shuffle   one instruction of a warp a clock and multiprocessor
//     tensor    FLOP of mma, and of cuBLASLt's products
//
// Other instructions cannot be counted in this way, so there is no limit for issuing them.
#pragma once
#include <algorithm>
#include "dev/plan/plan.h"

namespace emulator {

// What plan_gpus lacks: the clock at which a data sheet's FLOP/s are reached. L2: in bytes a clock,
// from the white paper of A100, which has that of V100 too; 0: not published.
struct ProfileGpu { const char *name; double ghz, l2; const PlanGpu *sheet; };
static ProfileGpu profile_gpus[] = {
    { "v100", 1.53, 2048, NULL }, { "t4", 1.59, 0, NULL }, { "a10", 1.695, 0, NULL },
    { "a100", 1.41, 5120, NULL }, { "l4", 2.04, 0, NULL }, { "l40s", 2.52, 0, NULL },
    { "h100", 1.83, 0, NULL }, { "h200", 1.83, 0, NULL }, { "b200", 1.86, 0, NULL },
    { "3090", 1.695, 0, NULL }, { "4090", 2.52, 0, NULL },
};

enum Resource { MEMORY, L2_CACHE, L1_CACHE, SHUFFLES, TENSOR, RESOURCES };
static const char *const resource_names[] = { "memory", "L2", "L1", "shuffle", "tensor" };

// A row of the table: a kernel, or all products.
struct ProfileRow {
    std::string name;
    uint64_t launches;
    Tally global, shared;
    double lanes, memory, flops, seconds[RESOURCES];
    Resource longest;
};

inline double ratio(double a, double b) { return b > 0.0 ? a / b : 0.0; }

static const ProfileGpu *profile_gpu(const char *name) {
    std::string known;
    for (ProfileGpu &g : profile_gpus) {
        for (const PlanGpu &p : plan_gpus) if (strcmp(p.name, g.name) == 0) g.sheet = &p;
        if (strcmp(g.name, name) == 0) return &g;
        known += std::string(known.empty() ? "" : ", ") + g.name;
    }
    die("GPU=%s: its data sheet is not known here; known are %s", name, known.c_str());
}

// ---- names and lines, which addr2line knows ----

// What addr2line prints on these addresses, a list of lines for each.
typedef std::vector<std::vector<std::string>> Places;
inline Places places_of(const std::vector<uintptr_t> &addresses, const char *flags) {
    Places places(addresses.size());
    std::string command = "addr2line -a " + std::string(flags) + " -e /proc/"
                        + std::to_string(getpid()) + "/exe";
    char text[4096];
    for (uintptr_t a : addresses) {
        snprintf(text, sizeof text, " %zx", (size_t)a);
        command += text;
    }
    FILE *f = popen((command + " 2> /dev/null").c_str(), "r");
    size_t at = 0;
    while (f && fgets(text, sizeof text, f)) {
        text[strcspn(text, "\n")] = '\0';
        if (strncmp(text, "0x", 2) == 0) at++;
        else if (at > 0 && at <= places.size()) places[at - 1].push_back(text);
    }
    if (f) pclose(f);
    return places;
}

// "void xent_kernel<8, (Mode)1>(float*, ...)" is xent_kernel<8, 1>. Of attention's
// Tile<64, 2, 64> the size of a head is kept. A launch may give no more than a variable's name.
inline std::string kernel_name(const std::string &symbol) {
    size_t i = symbol.compare(0, 5, "void ") == 0 ? 5 : 0;
    std::string name;
    for (int depth = 0; i < symbol.size() && (symbol[i] != '(' || depth > 0); i++) {
        depth += (symbol[i] == '<') - (symbol[i] == '>');
        if (symbol[i] == '(') i = symbol.find(')', i);       // the type of an enum
        else name += symbol[i];
    }
    size_t tile = name.find("Tile<"), comma = name.find(',', tile), close = name.find('>', tile);
    if (tile == std::string::npos) return name;
    std::string head = name.substr(tile + 5, comma - tile - 5);
    return name.substr(0, tile) + head + name.substr(close + (name[close + 1] == ' ' ? 2 : 1));
}

inline std::vector<CountedKernel> named(std::vector<CountedKernel> kernels) {
    std::vector<uintptr_t> addresses;
    for (CountedKernel &k : kernels) addresses.push_back((uintptr_t)k.address);
    Places symbols = places_of(addresses, "-f -C");
    for (size_t i = 0; i < kernels.size(); i++)
        if (kernels[i].address && !symbols[i].empty() && symbols[i][0] != "??")
            kernels[i].name = kernel_name(symbols[i][0]);
    return kernels;
}

// ---- floors ----

inline ProfileRow row_of(const CountedKernel &k, const ProfileGpu *g) {
    ProfileRow r = { k.name, k.launches, {}, {}, 0, (double)(k.read + k.written), 0, {}, MEMORY };
    Tally all = {};
    for (auto &i : k.instructions) {
        CountKind kind = i.first.kind;
        if (kind <= ATOMIC) r.global += i.second;
        else if (kind <= SHARED_STORE) r.shared += i.second;
        all += i.second;
    }
    r.lanes = ratio((double)all.lanes, (double)all.requests);
    r.flops = k.flops + 4096.0 * (double)k.total(MMA).requests;      // 2*16*8*16
    double clocks = g->sheet->multiprocessors * g->ghz * 1e9;
    r.seconds[MEMORY] = r.memory / (1e9 * g->sheet->bandwidth);
    r.seconds[L2_CACHE] = ratio(32.0 * (double)r.global.sectors, 1e9 * g->ghz * g->l2);
    r.seconds[L1_CACHE] = (double)(r.global.passes + r.shared.passes) / clocks;
    r.seconds[SHUFFLES] = (double)k.total(SHUFFLE).requests / clocks;
    r.seconds[TENSOR] = r.flops / (1e12 * g->sheet->tflops);
    for (int i = 0; i < RESOURCES; i++)
        if (r.seconds[i] > r.seconds[r.longest]) r.longest = (Resource)i;
    return r;
}

// ---- all kernels ----

inline void show_gpu(const ProfileGpu *g) {
    printf("Least times on one %s, by its data sheet: %.0f GB/s, %d multiprocessors at %.2f GHz, "
           "%.0f TFLOP/s.\n", g->name, g->sheet->bandwidth, g->sheet->multiprocessors, g->ghz,
           g->sheet->tflops);
}

inline std::string short_name(const ProfileRow &r) {
    std::string name = r.name;
    size_t at = name.find("_kernel");
    return at == std::string::npos ? name : name.erase(at, 7);
}

// A cell of a table, empty if there is nothing to count. Of two numbers, the second is the least.
inline void show_cell(int width, int digits, double n) {
    if (n > 0.0) printf("%*.*f ", width, digits, n);
    else printf("%*s ", width, "");
}
inline void show_pair(double n, double least) {
    if (n > 0.0) printf("%4.1f/%-4.1f ", n, least);
    else printf("%9s ", "");
}

inline void show_row(const ProfileRow &r) {
    double requests = (double)r.global.requests;
    printf("%-27.27s %5zu %8.3f ", short_name(r).c_str(), (size_t)r.launches, 1e-6 * r.memory);
    show_cell(8, 3, 32e-6 * (double)r.global.sectors);
    show_pair(ratio((double)r.global.sectors, requests), ratio((double)r.global.ideal, requests));
    show_cell(5, 2, ratio((double)r.shared.passes, (double)r.shared.least));
    show_cell(5, 1, r.lanes);
    show_cell(8, 1, 1e-6 * r.flops);
    printf("%8.3f %s\n", 1e6 * r.seconds[r.longest], resource_names[r.longest]);
}

inline void show_legend(const std::vector<ProfileRow> &rows) {
    printf("\nmemory    MB of the 32-byte sectors that a launch reads or writes, each once\n"
           "L2        MB of all sectors that requests ask for; L1 caches may have some of them\n"
           "sectors   of a request, a load or store of a warp; and how many if it were packed\n"
           "bank x    clocks that shared memory takes, in those without bank conflicts\n"
           "lanes     of a warp's 32, those that take part in an instruction, on average\n"
           "min us    what no launch can be faster than, and the resource that says so\n"
           "cuBLASLt  is not ours: its FLOP; as memory the bytes of operands and results, each\n"
           "          once; what its kernels ask of L2 and shared memory is not counted\n");
    for (const ProfileRow &r : rows)
        if (r.lanes > 0.0) {
            std::string name = short_name(r);
            printf("\nNext: `make profile KERNEL=%s`, the longest kernel of ours, line by line; "
                   "lesson 18.\n", name.substr(0, name.find('<')).c_str());
            return;
        }
}

inline void profile_show(const std::vector<CountedKernel> &all, const char *gpu) {
    const ProfileGpu *g = profile_gpu(gpu);
    std::vector<ProfileRow> rows;
    for (const CountedKernel &k : named(all)) rows.push_back(row_of(k, g));
    std::sort(rows.begin(), rows.end(), [](const ProfileRow &a, const ProfileRow &b) {
        return a.seconds[a.longest] > b.seconds[b.longest];
    });
    show_gpu(g);
    const char *format = "%-27s %5s %8s %8s %9s %5s %5s %8s %8s %s\n";
    printf("\n");
    printf(format, "", "", "memory", "L2", "sectors", "bank", "", "", "min", "");
    printf(format, "kernel", "calls", "MB", "MB", "/ideal", "x", "lanes", "MFLOP", "us", "by");
    ProfileRow sum = {};
    for (const ProfileRow &r : rows) {
        show_row(r);
        sum.launches += r.launches;
        sum.memory += r.memory;
        sum.global.sectors += r.global.sectors;
        sum.flops += r.flops;
        sum.seconds[MEMORY] += r.seconds[r.longest];
    }
    printf("%-27s %5zu %8.3f %8.3f %21s %8.1f %8.3f\n", "sum", (size_t)sum.launches,
           1e-6 * sum.memory, 32e-6 * (double)sum.global.sectors, "", 1e-6 * sum.flops,
           1e6 * sum.seconds[MEMORY]);
    show_legend(rows);
}

// ---- one kernel ----

static const char *const kind_names[] = { "load", "store", "atomic", "load shared", "store shared",
                                          "shuffle", "mma", "barrier" };

// A line of the kernel, and the lines in the functions that were called there, down to the access.
typedef std::pair<std::string, int> SourceLine;  // file, line
struct ProfileLine { std::vector<SourceLine> places; CountKind kind; };
inline bool operator<(const ProfileLine &a, const ProfileLine &b) {
    return a.places != b.places ? a.places < b.places : a.kind < b.kind;
}

// addr2line names the innermost place first. Those in the emulator are left out.
inline ProfileLine line_of(const std::vector<std::string> &places, CountKind kind) {
    ProfileLine line = { {}, kind };
    for (size_t i = places.size(); i-- > 0; ) {
        size_t colon = places[i].rfind(':');
        if (places[i].find("dev/emulator/") == std::string::npos && colon != std::string::npos)
            line.places.push_back({ places[i].substr(0, colon), atoi(&places[i][colon + 1]) });
    }
    return line;
}

// From this folder, if it lies in it.
inline std::string short_path(const std::string &path) {
    char here[4096];
    size_t n = getcwd(here, sizeof here) ? strlen(here) : 0;
    return n && path.compare(0, n, here) == 0 && path[n] == '/' ? path.substr(n + 1) : path;
}

inline std::string source_line(const std::string &file, int number) {
    char text[512] = "";
    FILE *f = fopen(file.c_str(), "r");
    for (int i = 0; f && i < number; i++) if (!fgets(text, sizeof text, f)) break;
    if (f) fclose(f);
    text[strcspn(text, "\n")] = '\0';
    return text + strspn(text, " ");
}

// 120>45: line 45, in a function that line 120 calls. Another file than the kernel's is named.
inline void show_line(const ProfileLine &line, const Tally &t) {
    std::string chain, file = line.places.empty() ? "" : line.places[0].first;
    for (const SourceLine &p : line.places) {
        chain += chain.empty() ? "" : ">";
        if (p.first != file) chain += short_path(p.first) + ":";
        chain += std::to_string(p.second);
    }
    double requests = (double)t.requests;
    printf("%-18s %-12s %8zu %5.1f ", chain.c_str(), kind_names[line.kind], (size_t)t.requests,
           (double)t.lanes / requests);
    show_cell(5, 1, (double)t.bytes / (double)t.lanes);
    if (line.kind <= ATOMIC) show_pair((double)t.sectors / requests, (double)t.ideal / requests);
    else show_pair((double)t.passes / requests, (double)t.least / requests);
    const SourceLine *shown = NULL;              // a helper stands above the kernel that calls it
    for (const SourceLine &p : line.places)
        if (p.first == file && p.second >= line.places[0].second) shown = &p;
    if (!shown) puts("(addr2line does not know where)");
    else printf("%.36s\n", source_line(file, shown->second).c_str());
}

inline void show_lines(const CountedKernel &k, const ProfileGpu *g) {
    ProfileRow r = row_of(k, g);
    printf("\n%s: %zu launches, %zu blocks, %zu warps\n  minimum times:", k.name.c_str(),
           (size_t)k.launches, (size_t)k.blocks, (size_t)k.warps);
    for (int i = 0; i < RESOURCES; i++)
        if (r.seconds[i] > 0.0) printf(" %s %.3f us", resource_names[i], 1e6 * r.seconds[i]);
    printf("\n  memory: %.3f MB read, %.3f MB written; L2: %.3f MB; %.1f MFLOP\n",
           1e-6 * (double)k.read, 1e-6 * (double)k.written, 32e-6 * (double)r.global.sectors,
           1e-6 * r.flops);
    if (k.instructions.empty()) return;
    Tally loads = k.total(GLOBAL_LOAD), stores = k.total(GLOBAL_STORE);
    printf("  loads: %zu requests, %zu sectors; stores: %zu requests, %zu sectors; "
           "shared: %zu passes\n", (size_t)loads.requests, (size_t)loads.sectors,
           (size_t)stores.requests, (size_t)stores.sectors, (size_t)r.shared.passes);
    std::vector<uintptr_t> addresses;
    std::map<ProfileLine, Tally> lines;
    for (auto &i : k.instructions) addresses.push_back(i.first.address - 1);     // of the call
    Places places = places_of(addresses, "-i");
    size_t n = 0;
    for (auto &i : k.instructions) lines[line_of(places[n++], i.first.kind)] += i.second;
    std::string file;
    for (auto &line : lines) {
        std::string here = line.first.places.empty() ? "" : line.first.places[0].first;
        if (here != file)
            printf("%-31s %8s %5s %5s %9s\n", short_path(here).c_str(), "requests", "lanes",
                   "bytes", "/ideal");
        file = here;
        show_line(line.first, line.second);
    }
}

// Kernels whose names begin with `name`.
inline void profile_show_lines(const std::vector<CountedKernel> &all, const char *name,
                               const char *gpu) {
    const ProfileGpu *g = profile_gpu(gpu);
    std::vector<CountedKernel> kernels = named(all);
    std::string known;
    bool found = false;
    show_gpu(g);
    for (const CountedKernel &k : kernels) {
        bool wanted = k.name.compare(0, strlen(name), name) == 0;
        if (wanted) show_lines(k, g);
        found = found || wanted;
        known += std::string(known.empty() ? "" : ", ") + k.name;
    }
    if (!found) die("KERNEL=%s: no such kernel ran; these did: %s", name, known.c_str());
    printf("\n120>45    line 45, in a function that line 120 calls\n"
           "requests  of all warps; lanes: of a warp's 32, on average; bytes: of a lane\n"
           "/ideal    sectors of a request, and how many if it were packed; of shared memory: its\n"
           "          clocks, and how many without bank conflicts\n"
           "\nNext: a line that is not ideal; dev/emulator/README.md says why of some.\n");
}

}  // namespace emulator
