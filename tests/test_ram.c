// memory.c: the limits of control groups, read from a tree of files as Linux shows them.
#include <sys/stat.h>
#include "../dev/base/memory.c"
#include "files.h"
#include "test.h"

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
    Path d = folder_make(NULL);
    const char *root = d.text;
    for (int i = 0; i < 5; i++) mkdir(in(root, folders[i]).text, 0777);
    put_text(root, "memory.max", "9000000000");
    put_text(root, "out/memory.max", "5000000000");
    put_text(root, "out/in/memory.max", "4000000000");
    put_text(root, "free/memory.max", "max");
    put_text(root, "memory/memory.limit_in_bytes", "3000000000");
    put_text(root, "memory/v1/memory.limit_in_bytes", "2000000000");
    for (size_t i = 0; i < COUNT(cases); i++) {
        put_text(root, "groups", cases[i].groups);
        double limit = cgroup_limit(in(root, "groups").text, root);
        CHECK_MSG(limit == cases[i].limit, "%s: %.0f", cases[i].groups, limit);
    }
    CHECK(cgroup_limit(in(root, "none").text, root) == INFINITY);
    folder_remove(&d);
}

TEST(memory_of_this_machine) {
    CHECK_MSG(ram_total() > 1e8 && ram_total() <= ram_limit(), "%.0f", ram_total());
    CHECK_MSG(ram_free() > 0.0 && ram_free() <= ram_limit(), "%.0f", ram_free());
    ram_check(1);
}

int main(void) {
    *program_name() = "test_ram";
    return run_tests();
}
