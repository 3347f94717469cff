// POSIX on Windows, for MinGW-w64: what this project calls and Windows' C library lacks, or
// understands otherwise. The Makefile includes this file before all others, which thus stay as they
// are; beside it are the headers that MinGW lacks. Paths and texts are UTF-8, files are binary, and
// open files can be renamed and removed. What one process alone does not need fails.
#pragma once
#define tell windows_tell                // a name that tales.c has, too
#include <windows.h>
#include <shellapi.h>                    // CommandLineToArgvW
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#undef tell
#undef near
#undef far
#undef stat
#undef fstat
#define PRINTF_LIKE(fmt, args) __attribute__((format(gnu_printf, fmt, args)))
void _assert(const char *, const char *, unsigned) __attribute__((noreturn));

// ---- texts and errors ----

typedef struct { wchar_t text[4096]; } Wide;

// A path that is too long or no UTF-8 becomes "", which names no file.
static inline Wide wide(const char *utf8) {
    Wide w = { L"" };
    if (strcmp(utf8, "/dev/null") == 0) utf8 = "NUL";
    if (!MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, utf8, -1, w.text, 4096)) w.text[0] = 0;
    return w;
}

static inline void narrow(char *utf8, size_t size, const wchar_t *text) {
    WideCharToMultiByte(CP_UTF8, 0, text, -1, utf8, (int)size, NULL, NULL);
}

// Sets errno, and returns -1.
static inline int windows_failed(void) {
    switch (GetLastError()) {
        case ERROR_FILE_NOT_FOUND: case ERROR_PATH_NOT_FOUND: case ERROR_INVALID_NAME:
            return errno = ENOENT, -1;
        case ERROR_ACCESS_DENIED: case ERROR_SHARING_VIOLATION: return errno = EACCES, -1;
        case ERROR_DISK_FULL: case ERROR_HANDLE_DISK_FULL: return errno = ENOSPC, -1;
        case ERROR_FILE_EXISTS: return errno = EEXIST, -1;
        case ERROR_DIR_NOT_EMPTY: return errno = ENOTEMPTY, -1;
        case ERROR_DIRECTORY: return errno = ENOTDIR, -1;
        default: return errno = EIO, -1;
    }
}

// A call that changes a name. A virus scanner may hold a file for a moment: tries for a second.
#define windows_try(call) ({ \
    int tries = 20, status; \
    while ((status = (call) ? 0 : windows_failed()) != 0 && --tries > 0 \
           && (errno == EACCES || errno == ENOTEMPTY)) Sleep(50); \
    status; })

// ---- open files ----

enum { O_CLOEXEC = 0, O_NONBLOCK = 0, O_DIRECTORY = 0 };   // nothing is inherited, nothing blocks
enum { LOCK_EX = 1, LOCK_NB = 2, PROT_READ = 1, MAP_PRIVATE = 2 };
#define MAP_FAILED NULL
#define handle_of(fd) ((HANDLE)_get_osfhandle(fd))
#define open windows_open
#define fopen(path, mode) _wfopen(wide(path).text, wide(mode).text)
#define write(fd, data, n) _write(fd, data, (unsigned)((n) < 1 << 30 ? (n) : 1 << 30))
#define pread(fd, data, n, at) (_lseeki64(fd, at, SEEK_SET) < 0 ? -1 : _read(fd, data, n))
#define stat windows_stat
#define lstat windows_stat
#define fstat windows_fstat
#define ino_t unsigned long long         // Windows' own has 16 bits, all 0
#define S_ISLNK(mode) ((void)(mode), 0)  // a link is what it points to
#define madvise(at, n, advice) ((void)(at), (void)(n))              // it reads ahead as it likes
#define munmap(map, n) ((void)(n), UnmapViewOfFile(map))
#define posix_memalign(p, bytes, n) ((*(p) = malloc(n)) ? 0 : ENOMEM)      // to 16: free() takes it

static inline int windows_open(const char *path, int flags, ...) {
    DWORD access = flags & O_RDWR ? GENERIC_READ | GENERIC_WRITE
                 : flags & O_WRONLY ? GENERIC_WRITE : GENERIC_READ;
    DWORD how = !(flags & O_CREAT) ? OPEN_EXISTING : flags & O_EXCL ? CREATE_NEW : OPEN_ALWAYS;
    HANDLE file = CreateFileW(wide(path).text, access,
                              FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, NULL, how,
                              FILE_FLAG_BACKUP_SEMANTICS, NULL);   // opens directories, too
    if (file == INVALID_HANDLE_VALUE) return windows_failed();
    return _open_osfhandle((intptr_t)file, (flags & O_APPEND) | O_BINARY);
}

// Directories cannot be synced (EINVAL); but NTFS keeps a journal of names, and rename waits.
static inline int fsync(int fd) {
    if (FlushFileBuffers(handle_of(fd))) return 0;
    return windows_failed(), errno = errno == EACCES ? EINVAL : errno, -1;
}

struct windows_stat { dev_t st_dev; ino_t st_ino; unsigned st_mode; off_t st_size; };

static inline int windows_fstat(int fd, struct windows_stat *s) {
    BY_HANDLE_FILE_INFORMATION info;
    DWORD type = GetFileType(handle_of(fd));
    memset(s, 0, sizeof *s);
    s->st_mode = type == FILE_TYPE_PIPE ? S_IFIFO : S_IFCHR;
    if (type != FILE_TYPE_DISK) return 0;
    if (!GetFileInformationByHandle(handle_of(fd), &info)) return windows_failed();
    s->st_dev = info.dwVolumeSerialNumber;
    s->st_ino = (ino_t)info.nFileIndexHigh << 32 | info.nFileIndexLow;
    s->st_size = (off_t)((ino_t)info.nFileSizeHigh << 32 | info.nFileSizeLow);
    s->st_mode = info.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY ? S_IFDIR : S_IFREG;
    return 0;
}

static inline int windows_stat(const char *path, struct windows_stat *s) {
    int fd = open(path, O_RDONLY), status = fd < 0 ? -1 : fstat(fd, s);
    if (fd >= 0) close(fd);
    return status;
}

// Windows locks no directory, and a locked log could not be read. So the lock is an object that is
// named after the file, and exists until this process ends.
static inline int flock(int fd, int how) {
    struct stat info;
    char name[80];
    if (fstat(fd, &info) != 0) return -1;
    snprintf(name, sizeof name, "Global\\batchwise-%x-%llx", (unsigned)info.st_dev, info.st_ino);
    HANDLE lock = CreateMutexA(NULL, FALSE, name);
    if (lock && GetLastError() != ERROR_ALREADY_EXISTS) return 0;
    return (void)how, CloseHandle(lock), errno = EWOULDBLOCK, -1;
}

static inline void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset) {
    HANDLE mapping = CreateFileMappingW(handle_of(fd), NULL, PAGE_READONLY, 0, 0, NULL);
    void *map = mapping ? MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, n) : NULL;
    if (!map) windows_failed();
    if (mapping) CloseHandle(mapping);   // the view stays
    return (void)at, (void)protection, (void)flags, (void)offset, map;
}

// ---- names ----

#define access(path, mode) \
    (GetFileAttributesW(wide(path).text) == INVALID_FILE_ATTRIBUTES ? windows_failed() : 0)
#define mkdir(path, mode) (CreateDirectoryW(wide(path).text, NULL) ? 0 : windows_failed())
#define rmdir(path) windows_try(RemoveDirectoryW(wide(path).text))
#define unlink windows_unlink
#define rename(from, to) /* replaces a file in one step on NTFS, and waits for the disk */ \
    windows_try(MoveFileExW(wide(from).text, wide(to).text, \
                            MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH))
#define symlink(to, link) ((void)(to), errno = EPERM, -1)          // administrators alone may
#define readlink(link, to, n) ((void)(link), -1)
#define realpath(path, out) _strdup(path)

// A link to a directory is removed, not what is in the directory.
static inline int windows_unlink(const char *path) {
    DWORD kind = GetFileAttributesW(wide(path).text);
    if (kind == INVALID_FILE_ATTRIBUTES) return windows_failed();
    if (!(kind & FILE_ATTRIBUTE_DIRECTORY)) return windows_try(DeleteFileW(wide(path).text));
    return kind & FILE_ATTRIBUTE_REPARSE_POINT ? rmdir(path) : (errno = EISDIR, -1);
}

struct dirent { char d_name[1024]; };
typedef struct { HANDLE find; int more; WIN32_FIND_DATAW data; struct dirent entry; } DIR;

static inline DIR *windows_find(const char *pattern) {
    DIR *dir = (DIR *)calloc(1, sizeof *dir);
    if (!dir) abort();
    dir->find = FindFirstFileW(wide(pattern).text, &dir->data);
    dir->more = dir->find != INVALID_HANDLE_VALUE;
    if (!dir->more) windows_failed(), free(dir), dir = NULL;
    return dir;
}

static inline DIR *opendir(const char *path) {
    char pattern[4096];
    snprintf(pattern, sizeof pattern, "%s/*", path);
    return windows_find(pattern);
}

static inline struct dirent *readdir(DIR *dir) {
    if (!dir->more) return NULL;
    narrow(dir->entry.d_name, sizeof dir->entry.d_name, dir->data.cFileName);
    dir->more = FindNextFileW(dir->find, &dir->data);
    return &dir->entry;
}
#define closedir(dir) (FindClose((dir)->find), free(dir))

enum { GLOB_NOSORT = 1, GLOB_NOMATCH = 3, GLOB_MOST = 65536 };
typedef struct { size_t gl_pathc; char **gl_pathv; } glob_t;

// The wildcards are * and ?, in a file's name alone. No name on Windows holds one, so a \ is left
// out: what it protects means itself.
static inline int glob(const char *pattern, int flags, void *on_error, glob_t *found) {
    char plain[4096] = "", path[5200];
    int n = 0, folder = 0;
    for (; *pattern && n + 1 < (int)sizeof plain; pattern++) {
        if (*pattern != '\\') plain[n++] = *pattern;
        if (*pattern == '/') folder = n;
    }
    *found = (glob_t){ 0, (char **)calloc(GLOB_MOST, sizeof(char *)) };
    DIR *dir = windows_find(plain);
    for (struct dirent *e; dir && found->gl_pathc < GLOB_MOST && (e = readdir(dir)); ) {
        snprintf(path, sizeof path, "%.*s%s", folder, plain, e->d_name);
        found->gl_pathv[found->gl_pathc++] = _strdup(path);
    }
    if (dir) closedir(dir);
    return (void)flags, (void)on_error, found->gl_pathc ? 0 : GLOB_NOMATCH;
}

static inline void globfree(glob_t *found) {
    for (size_t i = 0; i < found->gl_pathc; i++) free(found->gl_pathv[i]);
    free(found->gl_pathv);
}

// A stream into memory: a temporary file, which fclose reads back; one at a time.
typedef struct { FILE *file; char **text; size_t *n; } Memstream;

static inline Memstream *memstream(void) {
    static Memstream s;
    return &s;
}

static inline FILE *open_memstream(char **text, size_t *n) {
    wchar_t *name = _wtempnam(NULL, L"gpt");
    *memstream() = (Memstream){ name ? _wfopen(name, L"w+bD") : NULL, text, n };   // D: delete
    free(name);
    return memstream()->file;
}

static inline int windows_fclose(FILE *file) {
    Memstream *s = memstream();
    int good = 1;
    if (file == s->file) {
        *s->n = fflush(file) == 0 ? (size_t)ftell(file) : 0;
        *s->text = (char *)calloc(*s->n + 1, 1);
        rewind(file);
        good = *s->text && fread(*s->text, 1, *s->n, file) == *s->n;
        s->file = NULL;
    }
    return fclose(file) == 0 && good ? 0 : EOF;
}
#define fclose windows_fclose

static inline ssize_t getline(char **line, size_t *room, FILE *file) {
    ssize_t n = 0;
    for (int c = 0; c != '\n' && (c = getc(file)) != EOF; (*line)[n] = '\0') {
        if ((size_t)n + 1 >= *room) *line = (char *)realloc(*line, *room = 2 * *room + 128);
        if (!*line) abort();
        (*line)[n++] = (char)c;
    }
    return n > 0 ? n : -1;
}

// ---- the machine, the terminal, signals, arguments ----

enum { _SC_NPROCESSORS_ONLN, _SC_PAGESIZE, _SC_PHYS_PAGES, _SC_AVPHYS_PAGES };
#define gethostname(name, n) ((void)(name))
#define ioctl(fd, request, size) windows_size(fd, size)
struct winsize { unsigned short ws_row, ws_col; };

static inline long sysconf(int name) {
    MEMORYSTATUSEX memory = { .dwLength = sizeof memory };
    if (name == _SC_NPROCESSORS_ONLN) return (long)GetActiveProcessorCount(ALL_PROCESSOR_GROUPS);
    if (name == _SC_PAGESIZE || !GlobalMemoryStatusEx(&memory)) return 4096;
    return (long)((name == _SC_PHYS_PAGES ? memory.ullTotalPhys : memory.ullAvailPhys) / 4096);
}

static inline int windows_size(int fd, struct winsize *size) {
    CONSOLE_SCREEN_BUFFER_INFO info;
    if (!GetConsoleScreenBufferInfo(handle_of(fd), &info)) return -1;
    size->ws_col = (unsigned short)(info.srWindow.Right - info.srWindow.Left + 1);
    return 0;
}

// Ctrl-C is SIGINT, Ctrl-Break SIGHUP; a handler is called once. The other signals never come: no
// mapped file can shrink here, and closing the window ends the program at once.
enum { SIGHUP = SIGBREAK, SIGBUS = 7, SIGUSR1 = 10, SIGPIPE = 13, SIGXFSZ = 25 };
enum { SA_RESTART, SA_RESETHAND };
struct sigaction { void (*sa_handler)(int); int sa_flags; };
#define signal(n, handler) ({ \
    (n) == SIGINT || (n) == SIGTERM || (n) == SIGHUP ? (signal)(n, handler) : SIG_DFL; })
#define sigaction(n, action, old) ((void)signal(n, (action)->sa_handler))

// The arguments as UTF-8. A path gets slashes, where the program looks for them; a prompt keeps its
// backslashes. Streams become binary, and a terminal learns UTF-8 and \033[K.
static inline char **arguments(int *argc, char **argv) {
    wchar_t **wide_argv = CommandLineToArgvW(GetCommandLineW(), argc);
    DWORD mode;
    for (int fd = 0; fd <= 2; fd++) _setmode(fd, O_BINARY);
    _fmode = O_BINARY;
    SetConsoleOutputCP(CP_UTF8);
    if (GetConsoleMode(handle_of(1), &mode)) SetConsoleMode(handle_of(1), mode | 4);   // \033[K
    argv = (char **)calloc((size_t)*argc + 1, sizeof *argv);
    for (int i = 0; i < *argc; i++) {
        size_t size = 3*wcslen(wide_argv[i]) + 1;
        argv[i] = (char *)calloc(size, 1);
        narrow(argv[i], size, wide_argv[i]);
        int prompt = (i > 0 && strcmp(argv[i - 1], "--generate") == 0)
                   || (i > 0 && strcmp(argv[i - 1], "--stop") == 0)
                   || strncmp(argv[i], "--generate=", 11) == 0
                   || strncmp(argv[i], "--stop=", 7) == 0;
        for (char *p = argv[i]; *p && !prompt; p++) if (*p == '\\') *p = '/';
    }
    return argv;
}
