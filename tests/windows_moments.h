// Mishaps for test_windows.sh, compiled into the trainer before posix.h. Windows' calls that change
// a file or a name are counted. With MOMENT=n the program dies before the nth, as if it were killed.
// With MOMENT=-n the nth and all after it fail, as on a full disk.
#define tell windows_tell
#include <windows.h>
#include <errno.h>
#include <io.h>
#include <stdio.h>
#include <stdlib.h>
#undef tell

__declspec(selectany) int moments = 0;       // passed so far, in all files of the program

static inline void moments_show(void) { fprintf(stderr, "%d moments\n", moments); }

// Whether the call goes through.
static inline int moment(void) {
    const char *text = getenv("MOMENT");
    int n = text ? atoi(text) : 0, now = ++moments;
    if (now == 1 && text && n == 0) atexit(moments_show);
    if (now == n) TerminateProcess(GetCurrentProcess(), 9);
    if (n == 0 || now < -n || n > 0) return 1;
    errno = ENOSPC;
    SetLastError(ERROR_DISK_FULL);
    return 0;
}

#define CreateFileW(path, access, share, security, how, flags, template) \
    ((how) == OPEN_EXISTING || moment() \
        ? (CreateFileW)(path, access, share, security, how, flags, template) : INVALID_HANDLE_VALUE)
#define _write(fd, data, n) (moment() ? (_write)(fd, data, n) : -1)
#define FlushFileBuffers(file) (moment() && (FlushFileBuffers)(file))
#define CreateDirectoryW(path, security) (moment() && (CreateDirectoryW)(path, security))
#define RemoveDirectoryW(path) (moment() && (RemoveDirectoryW)(path))
#define DeleteFileW(path) (moment() && (DeleteFileW)(path))
#define MoveFileExW(from, to, how) (moment() && (MoveFileExW)(from, to, how))
