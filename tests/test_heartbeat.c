// What heartbeat.c promises. A rank is a process on this machine.
#include <sys/wait.h>
#include "../dev/ranks/heartbeat.c"
#include "test.h"

enum { RANKS = 5 };

typedef struct {
    int size, port;
    double timeout;
    void (*work)(Heartbeat *w);    // what a rank does while it is watched
    int started;                   // processes; they are not numbered by rank
    pid_t pid[RANKS];
    int status[RANKS];             // exit status; 256 + the signal that killed it; -1: runs
    int out[2], ready[2];          // pipes: all that ranks print; one byte from each that watches
    char said[4096];
} Run;

static void nap(double seconds) { usleep((useconds_t)(1e6*seconds)); }

// A port that nobody has, another each time; systems hand out higher ones by themselves.
static int free_port(void) {
    static int port;
    Heartbeat w;
    Error err;
    heartbeat_init(&w, 0, 2, 1.0);
    if (!port) port = 11000 + (int)(getpid() * 97L % 9000);
    do port++; while (!heartbeat_listen(&w, NULL, &port, &err));
    close(w.listener);
    heartbeat_stop(&w);
    return port;
}

static Run run_make(int size, double timeout, void (*work)(Heartbeat *)) {
    Run run;
    memset(&run, 0, sizeof run);
    run.size = size;
    run.port = free_port();
    run.timeout = timeout;
    run.work = work;
    if (pipe(run.out) != 0 || pipe(run.ready) != 0) die("no pipe to be had");
    fcntl(run.out[0], F_SETFL, O_NONBLOCK);
    return run;
}

static int rank_main(const Run *run, int rank, int size) {
    static Heartbeat w;            // as in a program: it outlives main()
    Error err;
    char id[HEARTBEAT_SHARED] = "", byte = 1;
    int port = run->port;
    heartbeat_init(&w, rank, size, run->timeout);
    if (rank == 0) snprintf(id, sizeof id, "the run of %d", size);
    if ((rank == 0 && !heartbeat_listen(&w, NULL, &port, &err))
        || !heartbeat_join(&w, "127.0.0.1", port, id, sizeof id, &err)) {
        if (!w.told) dprintf(2, "rank %d: %s\n", rank, err.text);
        return 3;
    }
    if (strncmp(id, "the run of ", 11) != 0 || atoi(id + 11) != size) return 4;
    if (!heartbeat_start(&w, "the checkpoint is whole: --resume", &err)) return 5;
    if (write(run->ready[1], &byte, 1) != 1) return 6;
    run->work(&w);
    heartbeat_stop(&w);
    return 0;
}

static void start(Run *run, int rank, int size) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid < 0) die("no process to be had");
    if (pid == 0) {
        alarm(60);                 // nothing stays behind
        dup2(run->out[1], 1);
        dup2(run->out[1], 2);
        exit(rank_main(run, rank, size));
    }
    run->status[run->started] = -1;
    run->pid[run->started++] = pid;
}

// Starts all ranks, and returns when they are watched and have exchanged heartbeats.
static void start_all(Run *run) {
    char byte;
    for (int r = 0; r < run->size; r++) start(run, r, run->size);
    for (int r = 0; r < run->size; r++) CHECK(read(run->ready[0], &byte, 1) == 1);
    nap(0.15);
}

// Waits, at most so many seconds, until all processes have ended, and kills those that have not;
// then collects what was printed.
static void run_end(Run *run, double seconds) {
    double until = seconds_now() + seconds;
    int how;
    for (int running = run->started; running > 0; nap(0.002)) {
        running = 0;
        for (int i = 0; i < run->started; i++) {
            if (run->status[i] >= 0) continue;
            running++;
            if (seconds_now() > until) kill(run->pid[i], SIGKILL);
            if (waitpid(run->pid[i], &how, WNOHANG) != run->pid[i]) continue;
            run->status[i] = WIFEXITED(how) ? WEXITSTATUS(how) : 256 + WTERMSIG(how);
        }
    }
    ssize_t n = read(run->out[0], run->said, sizeof run->said - 1);
    run->said[n > 0 ? n : 0] = '\0';
    for (int i = 0; i < 2; i++) close(run->out[i]), close(run->ready[i]);
}

static void check_status(const Run *run, int i, int want) {
    CHECK_MSG(run->status[i] == want, "process %d ended with %d, not %d; they said: %s", i,
              run->status[i], want, run->said);
}

// The one line that a lost rank leads to.
static void check_lost(const Run *run, int rank, const char *why) {
    char host[64] = "", want[256];
    gethostname(host, sizeof host - 1);
    snprintf(want, sizeof want, "test_heartbeat: rank %d (on %s) %s; the checkpoint is whole: --resume\n",
             rank, host, why);
    CHECK_MSG(strcmp(run->said, want) == 0, "they said: %s    not: %s", run->said, want);
}

static void work_not(Heartbeat *w) { (void)w; }
static void work_long(Heartbeat *w) { (void)w, nap(30.0); }

// ---- rendezvous ----

// In any order, and rank 0 last.
TEST(ranks_meet_and_share) {
    static const int order[] = { 3, 1, 2, 0 };
    Run run = run_make(4, 5.0, work_not);
    for (int i = 0; i < 4; i++) nap(0.1), start(&run, order[i], 4);
    run_end(&run, 5.0);
    for (int i = 0; i < 4; i++) check_status(&run, i, 0);
    CHECK_MSG(!run.said[0], "they said: %s", run.said);
}

// Rank 0 prints for all, and waits only where a rank may still come.
TEST(ranks_that_do_not_meet_are_named) {
    static const struct { int rank[3], size[3], timeout, lines; const char *said; } rows[] = {
        { { 0, 1, 3 }, { 5, 5, 5 }, 1, 1, "2 of 5 ranks have not connected within 1 s: 2 4; " },
        { { 0, 2, 2 }, { 4, 4, 4 }, 9, 1, "rank 0: rank 2 of 4 (on " },
        { { 0, 1, 2 }, { 4, 4, 3 }, 9, 1, "rank 0: rank 2 of 3 (on " },
        { { 1, 2, 3 }, { 4, 4, 4 }, 1, 3, "within 1 s: Connection refused; is it running" },
        { { 0, 1, 0 }, { 4, 4, 4 }, 1, 2, "Address already in use; MASTER_ADDR must" },
    };
    for (int row = 0; row < 5; row++) {
        Run run = run_make(RANKS, rows[row].timeout, work_not);
        int lines = 0;
        for (int i = 0; i < 3; i++) start(&run, rows[row].rank[i], rows[row].size[i]), nap(0.1);
        run_end(&run, 4.0);
        for (const char *c = run.said; *c; c++) lines += *c == '\n';
        CHECK_MSG(strstr(run.said, rows[row].said) && lines == rows[row].lines,
                  "they said: %s    not: %s", run.said, rows[row].said);
        for (int i = 0; i < 3; i++) check_status(&run, i, 3);
    }
}

// ---- ranks that are gone ----

static void hang(void) { nap(30.0); }

// Neither a held lock nor an exit handler keeps a rank, and what stdout holds is not lost.
static void work_hold_locks(Heartbeat *w) {
    atexit(hang);
    if (w->rank == 2) printf("unflushed\n");
    if (w->rank == 1) flockfile(stdout);
    nap(30.0);
}

TEST(a_rank_that_dies_is_named) {
    for (int lost = 0; lost < 4; lost += 3) {
        Run run = run_make(4, 9.0, work_long);
        start_all(&run);
        kill(run.pid[lost], SIGKILL);
        run_end(&run, 4.0);
        check_lost(&run, lost, "is gone: its connection closed");
        for (int r = 0; r < 4; r++) check_status(&run, r, r == lost ? 256 + SIGKILL : 1);
    }
    Run run = run_make(3, 9.0, work_hold_locks);
    start_all(&run);
    kill(run.pid[0], SIGKILL);
    run_end(&run, 4.0);
    for (int r = 1; r < 3; r++) check_status(&run, r, 1);
    CHECK_MSG(strstr(run.said, "unflushed\n"), "they said: %s", run.said);
}

// One that is stopped for less than the timeout, or all at once for longer, are not lost. One that
// is stopped for longer and then goes on ends as well, and has nothing to say.
TEST(a_rank_that_falls_silent_is_named) {
    enum { ROWS = 5 };
    static const struct { int first, last, halves; } rows[ROWS] = {
        { 0, 0, 5 }, { 1, 1, 5 }, { 0, 2, 5 }, { 0, 0, 1 }, { 1, 1, 1 },
    };
    Run run[ROWS];
    for (int i = 0; i < ROWS; i++) run[i] = run_make(3, 1.5, work_long), start_all(&run[i]);
    for (int half = 0; half <= 5; half++, nap(0.5))    // all runs at a time
        for (int i = 0; i < ROWS; i++)
            for (int r = rows[i].first; r <= rows[i].last; r++) {
                if (half == 0) kill(run[i].pid[r], SIGSTOP);
                if (half == rows[i].halves) kill(run[i].pid[r], SIGCONT);
            }
    for (int i = 0; i < ROWS; i++) {
        run_end(&run[i], 0.1);
        for (int r = 0; r < 3; r++) check_status(&run[i], r, i < 2 ? 1 : 256 + SIGKILL);
        if (i < 2) check_lost(&run[i], rows[i].first, "has not answered for 1.5 s");
        else CHECK_MSG(!run[i].said[0], "run %d said: %s", i, run[i].said);
    }
}

// ---- ranks that are not reported ----

static void work_leave(Heartbeat *w) { nap(1.5 + 0.2*(w->rank == 1) + 0.4*(w->rank == 0)); }
static void die_on(const Heartbeat *w, int rank) {
    nap(0.3);
    if (w->rank == rank) die("no more data");
    nap(30.0);
}
static void work_die_0(Heartbeat *w) { die_on(w, 0); }
static void work_die_2(Heartbeat *w) { die_on(w, 2); }

TEST(ranks_that_leave_are_not_reported) {
    Run run[3] = { run_make(3, 1.0, work_leave), run_make(3, 9.0, work_die_0),
                   run_make(3, 9.0, work_die_2) };
    for (int i = 0; i < 3; i++) start_all(&run[i]);
    for (int i = 0; i < 3; i++) {
        const char *want = i == 0 ? "" : "test_heartbeat: no more data\n";
        run_end(&run[i], 4.0);
        CHECK_MSG(strcmp(run[i].said, want) == 0, "they said: %s", run[i].said);
        for (int r = 0; r < 3; r++) check_status(&run[i], r, i > 0);
    }
}

int main(void) {
    *program_name() = "test_heartbeat";
    alarm(60);                     // rather than wait for a rank that never watches
    return run_tests();
}
