// What several programs do with files and directories.
#pragma once
#include <errno.h>
#include <sys/stat.h>
#include "check.h"

// Makes a directory and those above it, like mkdir -p.
static inline bool make_directories(const char *path, Error *err) {
    char part[4096];
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof part) return fail(err, "'%.40s': not a usable path", path);
    for (size_t i = 1; i <= n; i++) {
        if (path[i] != '/' && path[i] != '\0') continue;
        memcpy(part, path, i);
        part[i] = '\0';
        struct stat info;
        if (mkdir(part, 0777) == 0 || (stat(part, &info) == 0 && S_ISDIR(info.st_mode))) continue;
        return fail(err, "%s: the directory cannot be made: %s", part, strerror(errno));
    }
    return true;
}
