// Memory: one allocation, laid out; and what this machine has (base.h).
#include "base.h"

Memory memory_begin(void *base) {
    Memory mem = { (char *)base, 0, { 0 } };
    return mem;
}

void *memory_take(Memory *mem, MemoryKind kind, size_t bytes) {
    size_t rounded = (bytes + 255) / 256 * 256;
    char *p = mem->base ? mem->base + mem->used : NULL;
    mem->used += rounded;
    mem->bytes[kind] += bytes;
    mem->bytes[MEM_REST] += rounded - bytes;
    return p;
}

float *memory_floats(Memory *mem, MemoryKind kind, size_t count) {
    return (float *)memory_take(mem, kind, count * sizeof(float));
}

// One number of /proc/meminfo in bytes; 0 if unknown.
static double ram_field(const char *name) {
    char line[200];
    size_t n = strlen(name);
    double kb = 0.0;
    FILE *f = fopen("/proc/meminfo", "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, name, n) == 0 && sscanf(line + n, ": %lf kB", &kb) == 1) break;
    if (f) fclose(f);
    return 1024.0 * kb;
}

// The number in ROOT/GROUP/NAME; INFINITY if there is none ("max").
static double cgroup_number(const char *root, const char *group, const char *name) {
    char path[8300];
    double limit = INFINITY;
    snprintf(path, sizeof path, "%s%s/%s", root, group, name);
    FILE *f = fopen(path, "r");
    if (f && fscanf(f, "%lf", &limit) != 1) limit = INFINITY;
    if (f) fclose(f);
    return limit;
}

// The smallest limit on memory of a process's control groups (containers, Slurm, systemd) and of
// the groups around them, in bytes; INFINITY: none.
//   groups   /proc/self/cgroup. Its lines are 0::/GROUP (version 2), N:memory:/GROUP (version 1)
//   root     /sys/fs/cgroup
static double cgroup_limit(const char *groups, const char *root) {
    char line[4096], v1_root[4096];
    double least = INFINITY;
    FILE *f = fopen(groups, "r");
    snprintf(v1_root, sizeof v1_root, "%s/memory", root);
    while (f && fgets(line, sizeof line, f)) {
        bool v2 = strncmp(line, "0::/", 4) == 0;
        char *group = v2 ? line + 3 : strstr(line, ":memory:/"), *slash;
        if (!group) continue;
        if (!v2) group += 8;
        group[strcspn(group, "\n")] = '\0';
        do {                                     // this group, then the one around it
            double limit = v2 ? cgroup_number(root, group, "memory.max")
                              : cgroup_number(v1_root, group, "memory.limit_in_bytes");
            least = fmin(least, limit);
            slash = strrchr(group, '/');
            if (slash) *slash = '\0';
        } while (slash);
    }
    if (f) fclose(f);
    return least;
}

static double ram_limit(void) { return cgroup_limit("/proc/self/cgroup", "/sys/fs/cgroup"); }

// Bytes of memory, used or not, that this process could have at most; INFINITY: unknown.
static double ram_total(void) {
    double pages = (double)sysconf(_SC_PHYS_PAGES), page = (double)sysconf(_SC_PAGESIZE);
    return fmin(pages > 0.0 ? pages * page : INFINITY, ram_limit());
}

double ram_free(void) {
    double available = ram_field("MemAvailable");
#ifdef _WIN32
    available = (double)sysconf(_SC_AVPHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
#endif
    return available > 0.0 ? fmin(available, ram_limit()) : ram_total();
}

void ram_check(size_t bytes) {
    double need = (double)bytes * launched_as(LAUNCH_LOCAL_SIZE, 1);
    double all = ram_total() + ram_field("SwapTotal"), now = ram_free();
    double unit = need < 1e9 ? 1e6 : 1e9;
    const char *name = need < 1e9 ? "MB" : "GB";
    if (need > all)
        die("memory: the model needs %.1f %s, and this machine has %.1f %s; use a smaller model or "
            "micro-batch; --plan shows what takes how much", need / unit, name, all / unit, name);
    if (need > now)
        warn("warning: the model needs %.1f %s of memory, and %.1f %s are free", need / unit, name,
             now / unit, name);
}
