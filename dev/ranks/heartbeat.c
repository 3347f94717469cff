// The control plane of a run of several ranks: a TCP connection between rank 0 and each other rank
// (ranks.h).
#include "ranks.h"
#if !defined(_WIN32) && !defined(__wasm__)
#include <assert.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/time.h>

enum { HEARTBEAT_SHARED = 128 };   // bytes that rank 0 can share: NCCL's id

enum { HEARTBEAT_BEAT = 'h', HEARTBEAT_BYE = 'b', HEARTBEAT_END = 'x' };

typedef struct { uint32_t rank, size; char host[64]; } HeartbeatHello;

typedef struct { Error problem; char host[64], shared[HEARTBEAT_SHARED]; } HeartbeatVerdict;

void heartbeat_init(Heartbeat *w, int rank, int size, double timeout) {
    assert(0 <= rank && rank < size && size > 1 && timeout > 0.0);
    memset(w, 0, sizeof *w);
    w->rank = rank;
    w->size = size;
    w->timeout = timeout;
    w->beat = timeout < 10.0 ? timeout/10.0 : 1.0;
    w->listener = -1;
    w->n = rank == 0 ? size : 1;
    w->peers = (HeartbeatPeer *)alloc_or_die((size_t)w->n * sizeof *w->peers, "connections");
    for (int i = 0; i < w->n; i++) w->peers[i].fd = -1;
    signal(SIGPIPE, SIG_IGN);      // a rank that is gone is an error of send()
}

// ---- rendezvous ----

// Sets how long to wait for a message or a connection, in whole seconds.
static void heartbeat_patience(int fd, double seconds) {
    struct timeval wait = { (time_t)ceil(seconds), 0 };
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
}

// A socket that listens at an address of the host, or is connected to one; -1 and *why otherwise.
static int heartbeat_open(const Heartbeat *w, const char *host, int port, const char **why) {
    const int on = 1, off = 0;
    struct addrinfo hints, *found;
    char service[16];
    int fd = -1;
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    snprintf(service, sizeof service, "%d", port);
    int unknown = getaddrinfo(host, service, &hints, &found);
    *why = unknown ? gai_strerror(unknown) : "";
    if (unknown) return -1;
    for (struct addrinfo *a = found; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM, 0);
        heartbeat_patience(fd, w->timeout/4.0);
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);    // reuse an ended run's port
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
        if (w->rank > 0 ? connect(fd, a->ai_addr, a->ai_addrlen) == 0
                        : bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, 1024) == 0) break;
        *why = errno == EINPROGRESS ? "it does not answer" : strerror(errno);
        close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    return fd;
}

bool heartbeat_listen(Heartbeat *w, const char *host, int *port, Error *err) {
    struct sockaddr_in6 at;                      // IPv4's port lies at the same place
    socklen_t size = sizeof at;
    const char *why;
    w->listener = heartbeat_open(w, host ? host : "::", *port, &why);
    if (w->listener < 0 && !host) w->listener = heartbeat_open(w, "0.0.0.0", *port, &why);
    if (w->listener < 0 || getsockname(w->listener, (struct sockaddr *)&at, &size) != 0)
        return fail(err, "rank 0 cannot listen at %s:%d: %s; MASTER_ADDR must name this machine, "
                    "and MASTER_PORT a port that no other run uses", host ? host : "*", *port, why);
    *port = ntohs(at.sin6_port);
    return true;
}

// Receives n bytes. False: *why says what the peer has done.
static bool heartbeat_recv(int fd, void *data, size_t n, const char **why) {
    ssize_t came;
    do came = recv(fd, data, n, MSG_WAITALL); while (came < 0 && errno == EINTR);
    *why = came < 0 && errno != ECONNRESET ? "does not answer" : "has closed its connection";
    return came == (ssize_t)n;
}

// Rank 0: accepts one connection. False: a rank cannot take part; it is then peers[0].
static bool heartbeat_admit(Heartbeat *w, Error *err) {
    HeartbeatHello h;
    const char *why;
    int fd = accept(w->listener, NULL, NULL);
    heartbeat_patience(fd, 1.0);                 // a rank sends its hello at once
    if (fd < 0 || !heartbeat_recv(fd, &h, sizeof h, &why)) {
        close(fd);
        return true;
    }
    h.host[sizeof h.host - 1] = '\0';
    bool good = h.size == (uint32_t)w->size && 0 < h.rank && h.rank < h.size
             && w->peers[h.rank].fd < 0;
    HeartbeatPeer *p = &w->peers[good ? h.rank : 0];
    p->fd = fd;
    memcpy(p->host, h.host, sizeof h.host);
    return good || fail(err, "rank %u of %u (on %s) cannot take part: each of rank 0's %d ranks "
                        "connects once; check RANK and WORLD_SIZE", h.rank, h.size, h.host,
                        w->size);
}

// Counts the ranks that have not connected, and names the first eight: " 2 5".
static int heartbeat_missing(const Heartbeat *w, char names[64]) {
    int missing = 0;
    names[0] = '\0';
    for (int r = 1; r < w->size; r++)
        if (w->peers[r].fd < 0 && missing++ < 8)
            snprintf(names + strlen(names), 64 - strlen(names), " %d", r);
    return missing;
}

// Rank 0: waits until all ranks have connected, and tells them whether they have.
static bool heartbeat_gather(Heartbeat *w, HeartbeatVerdict *v) {
    double until = seconds_now() + w->timeout, left;
    char names[64];
    bool good = true;
    for (int n; good && (n = heartbeat_missing(w, names)) > 0; ) {
        struct pollfd door = { w->listener, POLLIN, 0 };
        if ((left = until - seconds_now()) <= 0.0)
            good = fail(&v->problem, "%d of %d ranks have not connected within %g s:%s%s; are they "
                        "running, and can they reach this machine (%s)?", n, w->size, w->timeout,
                        names, n > 8 ? " ..." : "", v->host);
        else if (poll(&door, 1, (int)(1e3*left) + 1) > 0)
            good = heartbeat_admit(w, &v->problem);
    }
    for (int r = 0; r < w->n; r++)
        if (w->peers[r].fd >= 0) send(w->peers[r].fd, v, sizeof *v, 0);
    close(w->listener);
    return good;
}

// Other ranks: try rank 0 until it accepts, since it or its name may appear later than this rank;
// then wait for its verdict.
static bool heartbeat_reach(Heartbeat *w, const char *host, int port, HeartbeatVerdict *v) {
    HeartbeatHello hello = { (uint32_t)w->rank, (uint32_t)w->size, "" };
    HeartbeatPeer *p = &w->peers[0];
    const char *why;
    double until = seconds_now() + w->timeout;
    memcpy(hello.host, v->host, sizeof hello.host);
    while ((p->fd = heartbeat_open(w, host, port, &why)) < 0 && seconds_now() < until)
        poll(NULL, 0, 100);
    if (p->fd < 0)
        return fail(&v->problem, "rank 0 cannot be reached at %s:%d within %g s: %s; is it "
                    "running, and are MASTER_ADDR and MASTER_PORT right?", host, port, w->timeout,
                    why);
    heartbeat_patience(p->fd, w->timeout + w->beat);
    send(p->fd, &hello, sizeof hello, 0);
    if (!heartbeat_recv(p->fd, v, sizeof *v, &why))
        return fail(&v->problem, "rank 0 %s before all ranks had connected", why);
    memcpy(p->host, v->host, sizeof v->host);
    w->told = v->problem.text[0] != '\0';
    return !w->told;
}

bool heartbeat_join(Heartbeat *w, const char *host, int port, void *shared, size_t n, Error *err) {
    HeartbeatVerdict v;
    assert(n <= sizeof v.shared);
    memset(&v, 0, sizeof v);
    gethostname(v.host, sizeof v.host - 1);
    if (w->rank == 0 && n > 0) memcpy(v.shared, shared, n);
    bool joined = w->rank == 0 ? heartbeat_gather(w, &v) : heartbeat_reach(w, host, port, &v);
    if (n > 0) memcpy(shared, v.shared, n);
    *err = v.problem;
    return joined;
}

// ---- watching: the thread ----

// Sends one byte to every peer. A peer that cannot take it will be found silent.
static void heartbeat_tell(Heartbeat *w, char what) {
    for (int i = 0; i < w->n; i++)
        if (w->peers[i].fd >= 0) send(w->peers[i].fd, &what, 1, MSG_DONTWAIT);
}

// Ends the other ranks. What they still send is read for a while: closing a connection that has
// unread bytes could drop the END that was just sent.
static void heartbeat_end(Heartbeat *w) {
    char rest[64];
    heartbeat_tell(w, HEARTBEAT_END);
    for (int round = 0; round < 20; round++) {
        poll(NULL, 0, 10);
        for (int i = 0; i < w->n; i++)
            while (w->peers[i].fd >= 0
                   && recv(w->peers[i].fd, rest, sizeof rest, MSG_DONTWAIT) > 0) {}
    }
}

// Ends the process at once. exit() could block: its handlers may wait for a lock that the main
// thread holds, or for MPI or CUDA. Standard output is flushed only if that cannot block.
__attribute__((noreturn)) static void heartbeat_exit(void) {
    struct pollfd out = { STDOUT_FILENO, POLLOUT, 0 };
    if (poll(&out, 1, 0) == 1 && ftrylockfile(stdout) == 0) fflush(stdout);
    _exit(1);
}

// A rank is lost: rank 0 prints one line (rank 1, if rank 0 is the lost one), and all ranks end,
// the lost one too: it may only be stopped.
__attribute__((noreturn)) static void heartbeat_lost(Heartbeat *w, int rank, const char *why) {
    if (!__atomic_load_n(&w->ending, __ATOMIC_SEQ_CST) && w->rank == (rank == 0 ? 1 : 0))
        dprintf(STDERR_FILENO, "%s: rank %d (on %s) %s%s%s\n", *program_name(), rank,
                w->peers[rank].host, why, w->advice[0] ? "; " : "", w->advice);
    heartbeat_end(w);
    heartbeat_exit();
}

// Ends the run if a GPU's message has failed: who waits for it would wait for ever. A few beats
// later, for a rank that is lost, or a call that has failed, is named first.
static void heartbeat_ask(Heartbeat *w) {
    const char *(*fault)(void *) = __atomic_load_n(&w->fault, __ATOMIC_SEQ_CST);
    const char *why = fault ? fault(w->fault_of) : NULL;
    w->faults = why ? w->faults + 1 : 0;
    if (w->faults < 4 || __atomic_load_n(&w->ending, __ATOMIC_SEQ_CST)) return;
    dprintf(STDERR_FILENO, "%s: rank %d: NCCL: %s%s%s\n", *program_name(), w->rank, why,
            w->advice[0] ? "; " : "", w->advice);
    heartbeat_end(w);
    heartbeat_exit();
}

// Handles what a peer has sent, or has not. `leaving`: heartbeat_stop was called here.
static void heartbeat_hear(Heartbeat *w, int rank, bool leaving) {
    HeartbeatPeer *p = &w->peers[rank];
    char said[256], beat = HEARTBEAT_BEAT, why[64];
    ssize_t came = recv(p->fd, said, sizeof said, MSG_DONTWAIT);
    size_t n = came > 0 ? (size_t)came : 0;
    bool closed = came == 0 || (came < 0 && errno != EAGAIN && errno != EWOULDBLOCK);
    if (memchr(said, HEARTBEAT_END, n)) {
        if (w->rank == 0) heartbeat_end(w);      // passes it on
        heartbeat_exit();
    }
    if (memchr(said, HEARTBEAT_BYE, n) || (closed && leaving)) {
        close(p->fd);
        p->fd = -1;
        return;
    }
    if (closed) heartbeat_lost(w, rank, "is gone: its connection closed");
    if (n > 0) p->heard = w->clock;
    if (n > 0 && rank == 0) send(p->fd, &beat, 1, MSG_DONTWAIT);
    snprintf(why, sizeof why, "has not answered for %g s", w->timeout);
    if (w->clock - p->heard >= w->timeout && !leaving) heartbeat_lost(w, rank, why);
}

// The thread: 50 rounds a second, until no peer is connected, or `timeout` after heartbeat_stop.
// Its clock counts only time during which the thread was awake: after this process was suspended or
// starved, the other ranks still have their whole timeout.
static void *heartbeat_run(void *watch) {
    Heartbeat *w = (Heartbeat *)watch;
    double next = 0.0, leave = INFINITY, ticked = seconds_now();
    for (int open = w->n; open > 0 && w->clock < leave; ) {
        poll(NULL, 0, 20);
        double now = seconds_now();
        w->clock += fmin(now - ticked, 2.0*w->beat);
        ticked = now;
        if (w->clock >= next) {
            if (w->rank == 0) heartbeat_tell(w, HEARTBEAT_BEAT);
            if (leave == INFINITY) heartbeat_ask(w);
            next = w->clock + w->beat;
        }
        open = 0;
        for (int r = 0; r < w->n; r++) {
            if (w->peers[r].fd >= 0) heartbeat_hear(w, r, leave < INFINITY);
            open += w->peers[r].fd >= 0;
        }
        if (leave == INFINITY && __atomic_load_n(&w->stopping, __ATOMIC_SEQ_CST)) {
            heartbeat_tell(w, HEARTBEAT_BYE);
            leave = w->clock + w->timeout;
        }
    }
    return NULL;
}

// ---- what the main thread calls ----

// This process's Heartbeat while its thread runs; NULL: none.
static Heartbeat **heartbeat_own(void) {
    static Heartbeat *own;
    return &own;
}

// die() has printed the reason; this ends the other ranks, which print nothing.
static void heartbeat_told(void) {
    Heartbeat *w = *heartbeat_own();
    if (!w) return;
    __atomic_store_n(&w->ending, true, __ATOMIC_SEQ_CST);
    heartbeat_tell(w, HEARTBEAT_END);
    poll(NULL, 0, 200);            // the others read END; the thread still reads
}

bool heartbeat_start(Heartbeat *w, const char *advice, Error *err) {
    sigset_t all, before;
    snprintf(w->advice, sizeof w->advice, "%s", advice);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);       // the main thread handles signals
    int why = pthread_create(&w->thread, NULL, heartbeat_run, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    w->running = why == 0;
    if (w->running) *heartbeat_own() = w;
    *die_last() = heartbeat_told;
    return w->running || fail(err, "the ranks cannot be watched: %s", strerror(why));
}

void heartbeat_stop(Heartbeat *w) {
    *heartbeat_own() = NULL;
    __atomic_store_n(&w->stopping, true, __ATOMIC_SEQ_CST);
    if (w->running) pthread_join(w->thread, NULL);
    for (int i = 0; i < w->n; i++)
        if (w->peers[i].fd >= 0) close(w->peers[i].fd);
    free(w->peers);
}
#endif
