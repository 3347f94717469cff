// ram.h: the limits of control groups, read from a tree of files as Linux shows them.
#define PROGRAM "test_ram"
#include <sys/stat.h>
#include "../dev/base/ram.h"
#include "test.h"

typedef struct { char text[200]; } Place;

static Place place(const char *root, const char *name) {
    Place p;
    snprintf(p.text, sizeof p.text, "%.80s/%.100s", root, name);
    return p;
}

static void put_line(const char *root, const char *name, const char *line) {
    FILE *f = fopen(place(root, name).text, "w");
    if (!f) die("%s/%s: cannot be written", root, name);
    fprintf(f, "%s\n", line);
    fclose(f);
}

TEST(limits_of_control_groups) {
    static const struct { const char *groups; double limit; } cases[] = {
        { "0::/", 9e9 },
        { "0::/out", 5e9 },                              // the smaller one is outside
        { "0::/out/in", 4e9 },
        { "0::/free", 9e9 },                             // "max"
        { "0::/gone/deeper", 9e9 },
        { "9:name=systemd:/out\n8:pids:/out", INFINITY },
        { "4:memory:/v1\n0::/", 2e9 },                   // both versions
        { "4:memory:/", 3e9 },
        { "", INFINITY },
    };
    const char *folders[] = { "out", "out/in", "free", "memory", "memory/v1" };
    char root[] = "/tmp/test_ram.XXXXXX", command[100];
    if (!mkdtemp(root)) die("%s: cannot be made", root);
    for (int i = 0; i < 5; i++) mkdir(place(root, folders[i]).text, 0777);
    put_line(root, "memory.max", "9000000000");
    put_line(root, "out/memory.max", "5000000000");
    put_line(root, "out/in/memory.max", "4000000000");
    put_line(root, "free/memory.max", "max");
    put_line(root, "memory/memory.limit_in_bytes", "3000000000");
    put_line(root, "memory/v1/memory.limit_in_bytes", "2000000000");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_line(root, "groups", cases[i].groups);
        double limit = cgroup_limit(place(root, "groups").text, root);
        CHECK_MSG(limit == cases[i].limit, "%s: %.0f", cases[i].groups, limit);
    }
    CHECK(cgroup_limit(place(root, "none").text, root) == INFINITY);
    snprintf(command, sizeof command, "rm -r %s", root);
    CHECK(system(command) == 0);
}

TEST(memory_of_this_machine) {
    CHECK_MSG(ram_total() > 1e8 && ram_total() <= ram_limit(), "%.0f", ram_total());
    CHECK_MSG(ram_free() > 0.0 && ram_free() <= ram_limit(), "%.0f", ram_free());
    ram_check(1);
}

int main(void) {
    return run_tests();
}
