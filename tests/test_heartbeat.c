// The control plane: ranks that find each other or say why not, and the end when one is gone.
// A rank is a process on this machine; timeouts are short.
#define PROGRAM "test_heartbeat"
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include "../dev/ranks/heartbeat.h"
#include "test.h"

enum { RANKS = 8, JOB = 4711 };

typedef struct {
    int size, port, listener;      // listener: rank 0 has it already (port 0 was asked for), or -1
    const char *host;
    double timeout;
    uint64_t job;
    void (*work)(Heartbeat *w);        // what a rank does while it is watched
    pid_t pid[RANKS];
    int status[RANKS];             // exit status; 256 + the signal that killed it; -1: runs
    double ended[RANKS];           // seconds_now
    int out[2], ready[2];          // pipes: all that ranks print; one byte from each that watches
    char said[4096];
} Run;

static void nap(double seconds) { usleep((useconds_t)(1e6*seconds)); }

// A port that nobody has, another each time: below those that systems hand out by themselves, and
// those of other tests, and far from those of a process that runs this test beside this one.
static int free_port(void) {
    static int port;
    if (!port) port = 11000 + (int)(getpid() * 97L % 9000);
    for (;;) {
        int fd = heartbeat_bind("127.0.0.1", ++port);
        if (fd < 0) continue;
        close(fd);
        return port;
    }
}

static Run run_make(int size, double timeout, void (*work)(Heartbeat *)) {
    Run run;
    memset(&run, 0, sizeof run);
    run.size = size;
    run.port = free_port();
    run.host = "127.0.0.1";
    run.timeout = timeout;
    run.job = JOB;
    run.work = work;
    run.listener = -1;
    for (int r = 0; r < RANKS; r++) run.status[r] = -1;
    if (pipe(run.out) != 0 || pipe(run.ready) != 0) die("no pipe to be had");
    return run;
}

// ---- what a rank does ----

static int rank_failed(const Heartbeat *w, const char *why) {
    if (!w->told) dprintf(2, "rank %d: %s\n", w->rank, why);
    return w->told ? 4 : 3;
}

static int rank_main(const Run *run, int rank, int size) {
    static Heartbeat w;                // as in a program: it outlives main()
    Error err;
    char secret[100] = "", byte = 1;
    int port = run->port;
    heartbeat_init(&w, rank, size, run->job, run->timeout);
    w.listener = rank == 0 ? run->listener : -1;
    if (w.listener < 0 && !heartbeat_listen(&w, NULL, &port, &err))
        return rank_failed(&w, err.text);
    if (!heartbeat_join(&w, run->host, port, &err)) return rank_failed(&w, err.text);
    if (rank == 0) snprintf(secret, sizeof secret, "the number is %d", size);
    if (!heartbeat_share(&w, secret, sizeof secret, &err)) return rank_failed(&w, err.text);
    char want[100];
    snprintf(want, sizeof want, "the number is %d", size);
    if (size > 1 && strcmp(secret, want) != 0) return rank_failed(&w, "another secret");
    if (!heartbeat_start(&w, "the checkpoint is whole: --resume", &err)) return 5;
    if (write(run->ready[1], &byte, 1) != 1) return 6;
    if (run->work) run->work(&w);
    heartbeat_stop(&w);
    return 0;
}

// Starts a process as one of `size` ranks; it is the slot-th of the run.
static void start_as(Run *run, int slot, int rank, int size) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid < 0) die("no process to be had");
    if (pid == 0) {
        alarm(60);                 // nothing stays behind
        dup2(run->out[1], 1);
        dup2(run->out[1], 2);
        close(run->out[0]);
        _exit(rank_main(run, rank, size));
    }
    run->pid[slot] = pid;
}

static void start(Run *run, int rank) { start_as(run, rank, rank, run->size); }

static void start_all(Run *run) {
    for (int r = 0; r < run->size; r++) start(run, r);
}

// Waits until so many ranks heartbeat; false when they do not within 10 s.
static bool all_ready(Run *run, int n) {
    char byte;
    for (double until = seconds_now() + 10.0; n > 0; n--)
        if (!heartbeat_ready(run->ready[0], POLLIN, until) || read(run->ready[0], &byte, 1) != 1)
            return false;
    nap(0.15);                     // so that heartbeats have been exchanged
    return true;
}

// Waits until the slots of the run that are still there have ended, and no longer than so many
// seconds; true if they have.
static bool wait_for(Run *run, double seconds) {
    for (double until = seconds_now() + seconds; ; nap(0.002)) {
        int running = 0, how;
        for (int s = 0; s < RANKS; s++) {
            if (!run->pid[s] || run->status[s] >= 0) continue;
            if (waitpid(run->pid[s], &how, WNOHANG) == run->pid[s]) {
                run->status[s] = WIFEXITED(how) ? WEXITSTATUS(how) : 256 + WTERMSIG(how);
                run->ended[s] = seconds_now();
            } else {
                running++;
            }
        }
        if (!running || seconds_now() > until) return !running;
    }
}

// Ends what is left and collects what was printed.
static void run_end(Run *run, double seconds) {
    if (!wait_for(run, seconds)) {
        test_fail(__FILE__, __LINE__, "ranks still run after %g s", seconds);
        for (int s = 0; s < RANKS; s++)
            if (run->pid[s] && run->status[s] < 0) kill(run->pid[s], SIGKILL);
        wait_for(run, 5.0);
    }
    close(run->out[1]);
    fcntl(run->out[0], F_SETFL, O_NONBLOCK);     // another run's ranks may have it as well
    size_t n = 0;
    for (ssize_t came; (came = read(run->out[0], run->said + n, sizeof run->said - 1 - n)) > 0; )
        n += (size_t)came;
    close(run->out[0]);
    close(run->ready[0]);
    close(run->ready[1]);
    if (run->listener >= 0) close(run->listener);
}

static void check_status(const Run *run, int slot, int want) {
    CHECK_MSG(run->status[slot] == want, "process %d ended with %d, not %d; they said: %s", slot,
              run->status[slot], want, run->said);
}

static void check_all(const Run *run, int want) {
    for (int r = 0; r < run->size; r++) check_status(run, r, want);
}

static int lines(const char *text) {
    int n = 0;
    for (; *text; text++) n += *text == '\n';
    return n;
}

static void check_said(const Run *run, const char *what) {
    CHECK_MSG(strstr(run->said, what), "they said: %s    not: %s", run->said, what);
}

// What the one line about a lost rank is.
static void check_lost(const Run *run, int rank, const char *why) {
    char host[64] = "", want[512];
    gethostname(host, sizeof host - 1);
    snprintf(want, sizeof want, "test_heartbeat: rank %d (on %s) %s; the checkpoint is whole: "
             "--resume\n", rank, host, why);
    CHECK_MSG(strcmp(run->said, want) == 0, "they said: %s    not: %s", run->said, want);
}

static const char CLOSED[] = "is gone: its connection closed";

// ---- sockets ----

// What is sent is read back in pieces, by a child that is slow; and what cannot be is told.
TEST(pieces) {
    enum { N = 1 << 20 };
    unsigned char *data = (unsigned char *)alloc_or_die(2*N, "a test's bytes"), *back = data + N;
    int pair[2], how;
    for (int i = 0; i < N; i++) data[i] = (unsigned char)((i >> 8)*37 + i*11);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    pid_t pid = fork();
    if (pid == 0) {                // sends back what comes, 50,000 bytes at a time
        alarm(10);
        for (size_t n = 0; n < N; ) {
            ssize_t came = read(pair[1], back + n, n + 50000 < N ? 50000 : N - n);
            if (came <= 0) _exit(1);
            n += (size_t)came;
        }
        for (size_t n = 0; n < N; n += 1 << 16) {
            nap(0.002);
            if (write(pair[1], back + n, 1 << 16) != 1 << 16) _exit(2);
        }
        _exit(0);
    }
    heartbeat_prepare(pair[0]);
    CHECK(heartbeat_send(pair[0], data, N, seconds_now() + 3.0));
    CHECK(heartbeat_recv(pair[0], back, N, seconds_now() + 3.0));
    CHECK(memcmp(data, back, N) == 0);
    waitpid(pid, &how, 0);
    CHECK(how == 0);
    double before = seconds_now();
    CHECK(!heartbeat_recv(pair[0], back, 1, before + 0.1) && errno == ETIMEDOUT);
    CHECK(seconds_now() - before >= 0.1 && seconds_now() - before < 0.5);
    close(pair[1]);
    CHECK(!heartbeat_recv(pair[0], back, 1, seconds_now() + 1.0) && errno != ETIMEDOUT);
    CHECK(!heartbeat_send(pair[0], data, 1, seconds_now() + 1.0));       // and no SIGPIPE
    close(pair[0]);
    free(data);
}

// ---- rendezvous ----

TEST(one_rank_alone) {
    Run run = run_make(1, 1.0, NULL);
    start_all(&run);
    run_end(&run, 5.0);
    check_all(&run, 0);
    CHECK(run.said[0] == '\0');
}

TEST(ranks_meet_in_any_order) {
    static const int orders[][5] = { { 0, 1 }, { 1, 0 }, { 0, 1, 2, 3, 4 }, { 4, 2, 0, 3, 1 },
                                     { 3, 4, 1, 2, 0 } };
    for (int o = 0; o < 5; o++) {
        Run run = run_make(o < 2 ? 2 : 5, 5.0, NULL);
        for (int r = 0; r < run.size; r++) {
            start(&run, orders[o][r]);
            nap(0.02);
        }
        run_end(&run, 8.0);
        check_all(&run, 0);
        CHECK_MSG(run.said[0] == '\0', "they said: %s", run.said);
    }
}

TEST(rank_0_comes_late) {
    Run run = run_make(3, 3.0, NULL);
    start(&run, 1);
    start(&run, 2);
    nap(0.6);
    start(&run, 0);
    run_end(&run, 5.0);
    check_all(&run, 0);
}

TEST(names_and_ipv6_and_any_port) {
    static const char *const hosts[] = { "localhost", "127.0.0.1", "::1" };
    for (int h = 0; h < 3; h++) {
        int v6 = h == 2 ? heartbeat_bind("::1", 0) : -1;
        if (h == 2 && v6 < 0) continue;          // a machine without IPv6
        heartbeat_close(&v6);
        Run run = run_make(2, 3.0, NULL);
        Heartbeat w;
        Error err;
        heartbeat_init(&w, 0, 2, JOB, 1.0);
        run.host = hosts[h];
        run.port = 0;
        CHECK(heartbeat_listen(&w, h == 0 ? NULL : hosts[h], &run.port, &err));
        CHECK(run.port > 0);
        run.listener = w.listener;
        start_all(&run);
        run_end(&run, 5.0);
        check_all(&run, 0);
        w.listener = -1;
        heartbeat_free(&w);
    }
}

TEST(the_missing_are_named) {
    Run run = run_make(8, 0.8, NULL);
    static const int here[] = { 0, 1, 3, 4, 6, 7 };
    for (int i = 0; i < 6; i++) start(&run, here[i]);
    run_end(&run, 6.0);
    check_status(&run, 0, 3);
    for (int i = 1; i < 6; i++) check_status(&run, here[i], 4);
    check_said(&run, "rank 0: ranks 2 and 5 of 8 have not connected within 0.8 s");
    CHECK_MSG(lines(run.said) == 1, "they said: %s", run.said);
}

TEST(one_and_many_missing) {
    Heartbeat w;
    char text[160];
    heartbeat_init(&w, 0, 4, JOB, 1.0);
    CHECK(heartbeat_missing(&w, text, sizeof text) == 3);
    CHECK_MSG(strcmp(text, "ranks 1, 2 and 3 of 4 have") == 0, "%s", text);
    w.peers[1].fd = w.peers[3].fd = 1000000;
    CHECK(heartbeat_missing(&w, text, sizeof text) == 1);
    CHECK_MSG(strcmp(text, "rank 2 of 4 has") == 0, "%s", text);
    w.peers[2].fd = 1000000;
    CHECK(heartbeat_missing(&w, text, sizeof text) == 0);
    heartbeat_free(&w);
    heartbeat_init(&w, 0, 1024, JOB, 1.0);
    CHECK(heartbeat_missing(&w, text, sizeof text) == 1023);
    CHECK_MSG(strcmp(text, "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 1015 more of 1024 have") == 0,
              "%s", text);
    heartbeat_free(&w);
}

TEST(rank_0_that_never_comes) {
    Run run = run_make(2, 0.5, NULL);
    double before = seconds_now();
    start(&run, 1);
    run_end(&run, 4.0);
    char want[100];
    snprintf(want, sizeof want, "rank 1: rank 0 cannot be reached at 127.0.0.1:%d within 0.5 s: "
             "Connection refused", run.port);
    check_status(&run, 1, 3);
    check_said(&run, want);
    CHECK(lines(run.said) == 1 && run.ended[1] - before >= 0.5);
}

TEST(a_name_that_is_not_known) {
    Run run = run_make(2, 0.3, NULL);
    run.host = "no-such-host.invalid";
    start(&run, 1);
    run_end(&run, 30.0);           // as long as the system's resolver takes
    check_status(&run, 1, 3);
    check_said(&run, "rank 0 cannot be reached at no-such-host.invalid:");
}

TEST(rank_0_that_listens_and_does_nothing) {
    Run run = run_make(2, 0.5, NULL);
    int fd = heartbeat_bind("127.0.0.1", run.port);
    start(&run, 1);
    run_end(&run, 4.0);
    check_status(&run, 1, 3);
    check_said(&run, "it does not answer");
    close(fd);
}

TEST(another_program_at_rank_0s_port) {
    static const HeartbeatHello answers[] = { { HEARTBEAT_MAGIC, JOB + 1, 0, 2, "other-run" },
                                          { HEARTBEAT_MAGIC + 1, JOB, 0, 2, "other-version" },
                                          { HEARTBEAT_MAGIC, JOB, 1, 2, "other-rank" } };
    for (int i = 0; i < 3; i++) {
        Run run = run_make(2, 0.25, NULL);
        int listener = heartbeat_bind("127.0.0.1", run.port), fd = -1;
        start(&run, 1);
        for (double until = seconds_now() + 2.0; seconds_now() < until && !wait_for(&run, 0.01); ) {
            int next = heartbeat_prepare(accept(listener, NULL, NULL));
            if (next < 0) continue;
            heartbeat_send(next, &answers[i], sizeof answers[i], 0.0);
            heartbeat_close(&fd);
            fd = next;
        }
        run_end(&run, 1.0);
        check_status(&run, 1, 3);
        check_said(&run, "rank 1: rank 0 cannot be reached");        // it may be calling again
        close(listener);
        heartbeat_close(&fd);
    }
}

TEST(a_port_in_use) {
    Run run = run_make(2, 1.0, NULL);
    const char *const hosts[] = { "0.0.0.0", "127.0.0.1" };
    for (int h = 0; h < 2; h++) {
        int fd = heartbeat_bind(hosts[h], run.port), port = run.port;
        Heartbeat w;
        Error err = { "" };
        char want[100];
        heartbeat_init(&w, 0, 2, JOB, 1.0);
        CHECK(!heartbeat_listen(&w, h ? hosts[h] : NULL, &port, &err));
        snprintf(want, sizeof want, "port %d is in use", run.port);
        CHECK_MSG(strstr(err.text, want) && strstr(err.text, "MASTER_PORT="), "%s", err.text);
        heartbeat_stop(&w);
        close(fd);
    }
    run_end(&run, 0.0);
}

TEST(an_address_of_another_machine) {
    Heartbeat w;
    Error err = { "" };
    int port = 0;
    heartbeat_init(&w, 0, 2, JOB, 1.0);
    CHECK(!heartbeat_listen(&w, "192.0.2.1", &port, &err));      // an address for documentation
    CHECK_MSG(strstr(err.text, "rank 0 cannot listen at 192.0.2.1:0"), "%s", err.text);
    heartbeat_stop(&w);
}

TEST(a_rank_twice) {
    Run run = run_make(4, 4.0, NULL);
    start(&run, 0);
    start(&run, 2);
    nap(0.3);
    start_as(&run, 4, 2, 4);
    run_end(&run, 3.0);            // long before the timeout
    check_status(&run, 0, 3);
    check_status(&run, 2, 4);
    check_status(&run, 4, 4);
    check_said(&run, "rank 0: rank 2 connected twice, from ");
    CHECK(lines(run.said) == 1);
}

TEST(another_world_size) {
    static const int wrong[][2] = { { 2, 3 }, { 5, 6 }, { 2, 300 } };      // rank, size
    for (int i = 0; i < 3; i++) {
        Run run = run_make(4, 4.0, NULL);
        start(&run, 0);
        nap(0.1);
        start_as(&run, 2, wrong[i][0], wrong[i][1]);
        run_end(&run, 3.0);        // long before the timeout
        char want[100];
        snprintf(want, sizeof want, "was started as one of %d ranks, rank 0 as one of 4",
                 wrong[i][1]);
        check_status(&run, 0, 3);
        check_status(&run, 2, 4);
        check_said(&run, want);
        snprintf(want, sizeof want, "rank 0: rank %d (on ", wrong[i][0]);
        check_said(&run, want);
    }
}

TEST(a_rank_that_goes_before_all_have_come) {
    Run run = run_make(3, 4.0, NULL);
    start(&run, 0);
    start(&run, 1);
    nap(0.3);
    kill(run.pid[1], SIGKILL);
    run_end(&run, 3.0);
    check_status(&run, 0, 3);
    check_said(&run, "connected and left again");
    run = run_make(3, 4.0, NULL);
    start(&run, 0);
    start(&run, 1);
    nap(0.3);
    kill(run.pid[0], SIGKILL);
    run_end(&run, 3.0);
    check_status(&run, 1, 3);
    check_said(&run, "closed its connection before all ranks had connected");
}

// ---- strangers ----

// Connects to rank 0 as anybody might, and says n bytes.
static int stranger(int port, const void *bytes, size_t n) {
    struct addrinfo *a;
    if (heartbeat_lookup(&a, "127.0.0.1", port) != 0) die("127.0.0.1 is not known");
    int fd = -1;
    for (int tries = 0; fd < 0 && tries < 100; tries++) {
        fd = heartbeat_prepare(socket(a->ai_family, SOCK_STREAM, 0));
        int error = 0;
        socklen_t size = sizeof error;
        connect(fd, a->ai_addr, a->ai_addrlen);
        heartbeat_ready(fd, POLLOUT, seconds_now() + 1.0);
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
        if (error) heartbeat_close(&fd), nap(0.02);
    }
    freeaddrinfo(a);
    CHECK(fd >= 0);
    heartbeat_send(fd, bytes, n, 0.0);
    return fd;
}

TEST(strangers_do_no_harm) {
    enum { MANY = 200 };           // more than there are places at the door
    Run run = run_make(3, 5.0, NULL);
    HeartbeatHello hello = { HEARTBEAT_MAGIC, JOB + 1, 1, 3, "another-run" };
    char *garbage = (char *)alloc_or_die(1 << 20, "garbage");
    for (int i = 0; i < 1 << 20; i++) garbage[i] = (char)(i % 251);
    int fd[MANY];
    start(&run, 0);
    for (int i = 0; i < MANY; i++) {
        fd[i] = -1;
        if (i % 4 == 0) fd[i] = stranger(run.port, "", 0);                  // silence
        if (i % 4 == 1) fd[i] = stranger(run.port, garbage, i == 1 ? 1 << 20 : 300);
        if (i % 4 == 2) fd[i] = stranger(run.port, &hello, sizeof hello);   // another run's rank
        if (i % 4 == 3) close(stranger(run.port, &hello, (size_t)i % 80));  // part of it, and away
    }
    hello.job = JOB;
    hello.magic++;                 // another version of the protocol
    int version = stranger(run.port, &hello, sizeof hello);
    hello.magic--;
    int half = stranger(run.port, &hello, 40);   // might be of this run, and never goes on
    start(&run, 2);
    start(&run, 1);
    run_end(&run, 4.0);
    check_all(&run, 0);
    CHECK_MSG(run.said[0] == '\0', "they said: %s", run.said);
    for (int i = 0; i < MANY; i++) heartbeat_close(&fd[i]);
    close(version);
    close(half);
    free(garbage);
}

// Who has stood at the door longest has to go, not a rank in the middle of its hello.
TEST(a_door_full_of_silent_strangers) {
    enum { MANY = HEARTBEAT_DOOR + 40, MORE = HEARTBEAT_DOOR/2 };
    Run run = run_make(3, 5.0, NULL);
    HeartbeatHello hello = { HEARTBEAT_MAGIC, JOB, 1, 3, "slow-rank" }, answer;
    int fd[MANY + MORE];
    start(&run, 0);
    for (int i = 0; i < MANY; i++) fd[i] = stranger(run.port, "", 0);
    int slow = stranger(run.port, &hello, 40);
    for (int i = MANY; i < MANY + MORE; i++) fd[i] = stranger(run.port, "", 0);
    nap(0.2);
    CHECK(heartbeat_send(slow, (char *)&hello + 40, sizeof hello - 40, seconds_now() + 1.0));
    CHECK(heartbeat_recv(slow, &answer, sizeof answer, seconds_now() + 1.0));
    CHECK(answer.magic == HEARTBEAT_MAGIC && answer.rank == 0 && answer.size == 3);
    start(&run, 2);
    nap(0.2);
    close(slow);                   // it is no rank, after all
    run_end(&run, 4.0);
    for (int i = 0; i < MANY + MORE; i++) close(fd[i]);
}

// Ranks that heartbeat_init would not let through.
TEST(a_rank_that_cannot_be) {
    static const uint32_t ranks[] = { 9, 3, 0, 4000000000u };
    for (int i = 0; i < 4; i++) {
        Run run = run_make(3, 4.0, NULL);
        HeartbeatHello hello = { HEARTBEAT_MAGIC, JOB, ranks[i], 3, "nowhere" };
        start(&run, 0);
        int fd = stranger(run.port, &hello, sizeof hello);
        run_end(&run, 3.0);        // long before the timeout
        close(fd);
        check_status(&run, 0, 3);
        char want[64];
        snprintf(want, sizeof want, ranks[i] ? "rank %u (on nowhere) was started as one of 3 ranks"
                                             : "rank %u connected twice, from nowhere", ranks[i]);
        check_said(&run, want);
    }
}

TEST(another_runs_rank_is_turned_away) {
    Run run = run_make(2, 2.0, NULL), other = run_make(2, 0.6, NULL);
    other.port = run.port;
    other.job = JOB + 1;
    start(&run, 0);
    start(&other, 1);
    run_end(&other, 3.0);
    start(&run, 1);
    run_end(&run, 4.0);
    check_status(&other, 1, 3);
    check_said(&other, "another program or run answers there");
    check_all(&run, 0);
}

// ---- sharing ----

static void ignore(int signal) { (void)signal; }

// A signal every millisecond: no call may take an interruption for an error.
TEST(share_under_a_rain_of_signals) {
    Heartbeat w;
    Error err = { "" };
    int port = free_port();
    pid_t pid = fork();
    struct itimerval often = { { 0, 1000 }, { 0, 1000 } }, never = { { 0, 0 }, { 0, 0 } };
    struct sigaction act;
    memset(&act, 0, sizeof act);
    act.sa_handler = ignore;       // without SA_RESTART
    sigaction(SIGALRM, &act, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    heartbeat_init(&w, pid == 0, 2, JOB, 5.0);
    bool good = heartbeat_listen(&w, NULL, &port, &err)
             && heartbeat_join(&w, "127.0.0.1", port, &err);
    unsigned char bytes[HEARTBEAT_SHARE_MAX];
    for (int round = 0; good && round < 50; round++) {
        for (int i = 0; i < HEARTBEAT_SHARE_MAX; i++)
            bytes[i] = pid == 0 ? 0 : (unsigned char)(i*7 + round);
        good = heartbeat_share(&w, bytes, round == 0 ? 0 : sizeof bytes, &err);
        for (int i = 0; good && round > 0 && i < HEARTBEAT_SHARE_MAX; i++)
            good = bytes[i] == (unsigned char)(i*7 + round);
        if (pid && round == 20) nap(0.1);        // the other has to wait
    }
    good = good && heartbeat_start(&w, NULL, &err);
    heartbeat_stop(&w);
    setitimer(ITIMER_REAL, &never, NULL);
    if (pid == 0) _exit(good ? 0 : 1);
    int how;
    while (waitpid(pid, &how, 0) < 0) {}
    signal(SIGALRM, SIG_DFL);
    CHECK_MSG(good, "%s", err.text);
    CHECK(how == 0);
}

TEST(share_fails_with_a_name) {
    for (int other = 0; other < 2; other++) {    // 0: other sizes; 1: rank 0 ends instead
        Heartbeat w;
        Error err = { "" };
        int port = free_port(), how;
        char bytes[64] = "";
        pid_t pid = fork();
        heartbeat_init(&w, pid != 0, 2, JOB, 2.0);
        bool joined = heartbeat_listen(&w, NULL, &port, &err) &&
                      heartbeat_join(&w, "127.0.0.1", port, &err);
        if (pid == 0) {
            if (other == 0) heartbeat_share(&w, bytes, 32, &err);
            _exit(!joined);
        }
        CHECK_MSG(joined, "%s", err.text);
        CHECK(!heartbeat_share(&w, bytes, 64, &err));
        CHECK_MSG(strstr(err.text, other ? "is gone" : "rank 0 sends 32 bytes, this rank expects"),
                  "%s", err.text);
        heartbeat_stop(&w);
        waitpid(pid, &how, 0);
    }
}

// ---- ranks that are gone ----

static void work_long(Heartbeat *w) {
    (void)w;
    nap(30.0);
}

TEST(a_killed_rank_ends_all) {
    for (int lost = 3; lost >= 0; lost -= 3) {
        Run run = run_make(4, 5.0, work_long);
        start_all(&run);
        CHECK(all_ready(&run, 4));
        double killed = seconds_now();
        kill(run.pid[lost], SIGKILL);
        run_end(&run, 4.0);
        for (int r = 0; r < 4; r++) {
            check_status(&run, r, r == lost ? 256 + SIGKILL : 1);
            CHECK_MSG(run.ended[r] - killed < 1.0, "rank %d: %g s", r, run.ended[r] - killed);
        }
        check_lost(&run, lost, CLOSED);
    }
}

// A run that ended a moment ago leaves its port to the next, although the system still keeps the
// connections that rank 0 closed first (TIME_WAIT): those to the ranks that it told of the end.
TEST(the_port_is_free_again) {
    Run run = run_make(3, 3.0, work_long);
    start_all(&run);
    CHECK(all_ready(&run, 3));
    kill(run.pid[1], SIGKILL);
    run_end(&run, 3.0);
    Run next = run_make(2, 3.0, NULL);
    next.port = run.port;
    start_all(&next);
    run_end(&next, 3.0);
    check_all(&next, 0);
}

TEST(the_first_two_killed) {
    Run run = run_make(4, 5.0, work_long);
    start_all(&run);
    CHECK(all_ready(&run, 4));
    kill(run.pid[1], SIGSTOP);
    kill(run.pid[0], SIGKILL);
    kill(run.pid[1], SIGKILL);
    run_end(&run, 4.0);
    check_status(&run, 2, 1);
    check_status(&run, 3, 1);
    CHECK_MSG(run.said[0] == '\0', "they said: %s", run.said);
}

// Stopped is silent. When it goes on, long after, it ends as well, and has nothing to say. Three
// runs at a time: rank r of run r is stopped.
TEST(a_stopped_rank_ends_all) {
    const double timeout = 1.2;
    double stopped[3];
    Run run[3];
    for (int v = 0; v < 3; v++) {
        run[v] = run_make(3, timeout, work_long);
        start_all(&run[v]);
        CHECK(all_ready(&run[v], 3));
    }
    for (int v = 0; v < 3; v++) {
        stopped[v] = seconds_now();
        kill(run[v].pid[v], SIGSTOP);
    }
    for (double until = seconds_now() + timeout + 0.5; seconds_now() < until; )
        for (int v = 0; v < 3; v++) wait_for(&run[v], 0.0);
    for (int v = 0; v < 3; v++) {
        CHECK(run[v].status[v] < 0);
        kill(run[v].pid[v], SIGCONT);
        run_end(&run[v], 1.0);
        for (int r = 0; r < 3; r++) {
            double after = run[v].ended[r] - stopped[v];
            check_status(&run[v], r, 1);
            CHECK_MSG(r == v || (after > 0.8*timeout && after < timeout + 0.4),
                      "rank %d ended %g s after rank %d was stopped", r, after, v);
        }
        check_lost(&run[v], v, "has not answered for 1.2 s");
    }
}

static void work_exit_1(Heartbeat *w) {
    if (w->rank == 2) exit(1);
    nap(30.0);
}

TEST(an_exit_without_goodbye_ends_all) {
    Run run = run_make(3, 5.0, work_exit_1);
    start_all(&run);
    run_end(&run, 4.0);
    check_all(&run, 1);
    check_lost(&run, 2, CLOSED);
}

static void hang(void) { nap(30.0); }

// Held locks and exit handlers do not keep a process; what stdout holds is not lost.
static void work_hold_locks(Heartbeat *w) {
    if (w->rank == 2) return;
    atexit(hang);
    printf("unflushed by %d\n", w->rank);
    if (w->rank == 1) flockfile(stdout);
    if (w->rank == 0) nap(0.5), _exit(1);
    nap(30.0);
}

static void work_print(Heartbeat *w) {
    if (w->rank == 2) nap(0.3), _exit(1);
    printf("unflushed by %d\n", w->rank);
    nap(30.0);
}

TEST(nothing_keeps_a_lost_run) {
    Run run = run_make(4, 5.0, work_hold_locks);
    start_all(&run);
    run_end(&run, 4.0);
    check_status(&run, 1, 1);
    check_status(&run, 2, 0);
    check_status(&run, 3, 1);
    check_said(&run, "rank 0 (on ");
    check_said(&run, "unflushed by 3\n");
    run = run_make(3, 5.0, work_print);
    start_all(&run);
    run_end(&run, 4.0);
    check_all(&run, 1);
    check_said(&run, "rank 2 (on ");
    check_said(&run, "unflushed by 0\n");
    check_said(&run, "unflushed by 1\n");
    CHECK(lines(run.said) == 3);
}

// ---- ranks that are not gone ----

static void work_a_while(Heartbeat *w) {
    (void)w;
    for (double until = seconds_now() + 3.0; seconds_now() < until; ) nap(0.01);
}

TEST(suspended_together_and_continued) {
    Run run = run_make(3, 0.9, work_a_while);
    start_all(&run);
    CHECK(all_ready(&run, 3));
    for (int r = 0; r < 3; r++) {
        kill(run.pid[r], SIGSTOP);
        nap(0.03);                 // so that no answer lies unread
    }
    nap(1.1);
    for (int r = 0; r < 3; r++) {
        kill(run.pid[r], SIGCONT);
        nap(0.03);
    }
    for (int r = 0; r < 2; r++) {  // and one alone, for less than the timeout
        nap(0.1);
        kill(run.pid[r], SIGSTOP);
        nap(0.3);
        kill(run.pid[r], SIGCONT);
    }
    run_end(&run, 6.0);
    check_all(&run, 0);
    CHECK_MSG(run.said[0] == '\0', "they said: %s", run.said);
}

static void work_hard(Heartbeat *w) {
    volatile double sum = 0.0;
    for (double until = seconds_now() + 1.8; seconds_now() < until; )
        for (int i = 0; i < 1000000; i++) sum += (double)(i + w->rank);
    if (sum < 0.0) dprintf(2, "a sum of positive numbers is %g\n", sum);
}

TEST(slow_is_not_dead) {
    Run run = run_make(2, 1.0, work_hard);
    start_all(&run);
    run_end(&run, 8.0);
    check_all(&run, 0);
    CHECK_MSG(run.said[0] == '\0', "they said: %s", run.said);
}

static void work_rest(Heartbeat *w) {
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    nap(0.7);
    getrusage(RUSAGE_SELF, &after);
    double user = (double)(after.ru_utime.tv_sec - before.ru_utime.tv_sec) +
                  1e-6 * (double)(after.ru_utime.tv_usec - before.ru_utime.tv_usec);
    double system = (double)(after.ru_stime.tv_sec - before.ru_stime.tv_sec) +
                    1e-6 * (double)(after.ru_stime.tv_usec - before.ru_stime.tv_usec);
    if (user + system > 0.03) dprintf(2, "rank %d: %g s of CPU\n", w->rank, user + system);
    if (after.ru_nvcsw - before.ru_nvcsw > 50)
        dprintf(2, "rank %d woke %ld times\n", w->rank, after.ru_nvcsw - before.ru_nvcsw);
}

TEST(watching_costs_nothing) {
    Run run = run_make(3, 2.0, work_rest);
    start_all(&run);
    run_end(&run, 5.0);
    check_all(&run, 0);
    CHECK_MSG(run.said[0] == '\0', "they said: %s", run.said);
}

static volatile sig_atomic_t caught;
static void catch_it(int signal) { caught = signal; }

static void work_catch(Heartbeat *w) {
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGINT);
    signal(SIGINT, catch_it);
    pthread_sigmask(SIG_BLOCK, &one, NULL);
    kill(getpid(), SIGINT);        // would go to the watching thread, if that took any
    nap(0.1);
    if (caught) dprintf(2, "rank %d: the thread took it\n", w->rank);
    pthread_sigmask(SIG_UNBLOCK, &one, NULL);
    if (!caught) dprintf(2, "rank %d: nobody took it\n", w->rank);
}

TEST(signals_reach_the_main_thread) {
    Run run = run_make(2, 2.0, work_catch);
    start_all(&run);
    run_end(&run, 5.0);
    check_all(&run, 0);
    CHECK_MSG(run.said[0] == '\0', "they said: %s", run.said);
}

// ---- leaving ----

static void work_leave_early(Heartbeat *w) { nap(w->rank == 2 ? 0.0 : w->rank == 1 ? 0.3 : 1.1); }
static void work_leave_first(Heartbeat *w) { nap(w->rank == 0 ? 0.0 : 0.3); }
static void work_leave_too_late(Heartbeat *w) { nap(w->rank == 0 ? 0.0 : 1.1); }
static void work_die_last(Heartbeat *w) {
    if (w->rank == 0) return;
    nap(0.3);
    if (w->rank == 2) _exit(7);
    nap(2.0);
}

// Three runs at a time: ranks that leave long before rank 0 does, ranks that leave after it, and
// ranks that rank 0 does not wait for any longer.
TEST(leaving_in_peace) {
    double before = seconds_now();
    Run run[3] = { run_make(3, 0.8, work_leave_early), run_make(3, 2.0, work_leave_first),
                   run_make(3, 0.5, work_leave_too_late) };
    for (int i = 0; i < 3; i++) start_all(&run[i]);
    for (int ended = 0; ended < 3 && seconds_now() < before + 3.0; ) {
        ended = 0;
        for (int i = 0; i < 3; i++) ended += wait_for(&run[i], 0.0);
    }
    for (int i = 0; i < 3; i++) {
        run_end(&run[i], 3.0);
        check_all(&run[i], 0);
        CHECK_MSG(run[i].said[0] == '\0', "they said: %s", run[i].said);
    }
    CHECK(run[0].ended[2] - before < 0.8 && run[0].ended[0] - run[0].ended[2] > 0.8);
    CHECK(run[1].ended[0] - before > 0.25 && run[1].ended[0] - before < 1.8);
    CHECK(run[2].ended[1] - run[2].ended[0] > 0.3);
}

TEST(a_rank_lost_while_rank_0_waits) {
    Run run = run_make(3, 2.0, work_die_last);
    start_all(&run);
    run_end(&run, 5.0);
    check_status(&run, 0, 1);
    check_status(&run, 1, 1);
    check_lost(&run, 2, CLOSED);
}

int main(void) {
    signal(SIGPIPE, SIG_DFL);
    RUN(pieces);
    RUN(one_rank_alone);
    RUN(ranks_meet_in_any_order);
    RUN(rank_0_comes_late);
    RUN(names_and_ipv6_and_any_port);
    RUN(the_missing_are_named);
    RUN(one_and_many_missing);
    RUN(rank_0_that_never_comes);
    RUN(a_name_that_is_not_known);
    RUN(rank_0_that_listens_and_does_nothing);
    RUN(another_program_at_rank_0s_port);
    RUN(a_port_in_use);
    RUN(an_address_of_another_machine);
    RUN(a_rank_twice);
    RUN(another_world_size);
    RUN(a_rank_that_goes_before_all_have_come);
    RUN(strangers_do_no_harm);
    RUN(a_door_full_of_silent_strangers);
    RUN(a_rank_that_cannot_be);
    RUN(another_runs_rank_is_turned_away);
    RUN(share_under_a_rain_of_signals);
    RUN(share_fails_with_a_name);
    RUN(a_killed_rank_ends_all);
    RUN(the_port_is_free_again);
    RUN(the_first_two_killed);
    RUN(a_stopped_rank_ends_all);
    RUN(an_exit_without_goodbye_ends_all);
    RUN(nothing_keeps_a_lost_run);
    RUN(suspended_together_and_continued);
    RUN(slow_is_not_dead);
    RUN(watching_costs_nothing);
    RUN(signals_reach_the_main_thread);
    RUN(leaving_in_peace);
    RUN(a_rank_lost_while_rank_0_waits);
    return test_end();
}
