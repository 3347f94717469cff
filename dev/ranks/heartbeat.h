// The control plane of a run of several ranks: a TCP connection between rank 0 and each other rank.
// It carries no training data. It connects the ranks, broadcasts one small message from rank 0, and
// ends the run when a rank has failed. All ranks run the same lines:
//
//     heartbeat_init(&w, rank, size, job, timeout);
//     if (!heartbeat_listen(&w, NULL, &port, &err)) die("%s", err.text);        // rank 0 alone
//     if (!heartbeat_join(&w, host, port, &err)) { if (w.told) exit(1); else die("%s", err.text); }
//     if (!heartbeat_share(&w, &id, sizeof id, &err)) die("%s", err.text);
//     if (!heartbeat_start(&w, "the checkpoint is complete: --resume", &err)) die("%s", err.text);
//     ... train ...
//     heartbeat_stop(&w);
//
// The protocol
// 1. A rank connects to rank 0 and sends a hello: magic, job, rank, size, host name. Rank 0 answers
//    with its own hello, or closes the connection if magic or job differ.
// 2. Once all ranks have connected, or one of them cannot take part, or the timeout has passed,
//    rank 0 sends every rank an Error; an empty one means that all ranks are connected.
// 3. heartbeat_share: rank 0 sends a length and the bytes to each rank.
// 4. From heartbeat_start on, each rank has a thread. Rank 0's sends a BEAT to each rank every
//    timeout/10 seconds, at least once a second; each rank's answers at once. The thread runs
//    beside the computation: a slow rank answers; a killed, stopped or disconnected one does not.
// 5. A rank is lost if its connection closes without BYE, or after `timeout` seconds of silence.
//    Rank 0 then sends END to all. A rank that receives END, or loses rank 0, calls _exit(1). A
//    rank that leaves by die() has printed the reason: it sends END itself and is not reported.
// 6. heartbeat_stop: a rank sends BYE, and rank 0 closes its connection. Rank 0 waits until all
//    ranks have left.
//
// Structures are sent as they lie in memory, since all ranks run one program; a machine of another
// byte order has another magic. The job's number keeps runs apart. It is not a password: like MPI
// and NCCL, the heartbeat trusts the network between the ranks.
#pragma once
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>
#include "../base/error.h"
#include "../base/clock.h"

#define HEARTBEAT_MAGIC UINT64_C(0x6261746368773031)   // "batchw01", the protocol's version in it
enum { HEARTBEAT_SHARE_MAX = 4096 };   // bytes
enum { HEARTBEAT_DOOR = 128 };         // connections without a complete hello, at most, on rank 0
enum { HEARTBEAT_BEAT = 'h', HEARTBEAT_BYE = 'b', HEARTBEAT_END = 'x' };

typedef struct { uint64_t magic, job; uint32_t rank, size; char host[64]; } HeartbeatHello;

typedef struct {
    int fd;                        // -1: not connected
    HeartbeatHello hello;          // the peer's
    size_t n;                      // bytes of its hello received so far
    double heard;                  // when it last sent something
} HeartbeatPeer;

typedef struct {
    HeartbeatHello hello;          // this rank's own
    int rank, size;
    double timeout, beat;          // seconds
    bool told;                     // heartbeat_join failed, and rank 0 prints the reason
    int listener, wake[2];         // rank 0's socket; the pipe that wakes the thread
    int n;                         // length of peers
    HeartbeatPeer *peers;          // rank 0: by rank, then without a complete hello; others: rank 0
    struct pollfd *polls;          // (n+1) one for each peer, and one more
    pthread_t thread;
    bool running;
    bool ending;                   // atomic: this process is in die(), which has printed the reason
    // Between heartbeat_start and heartbeat_stop only the thread uses what follows, peers and
    // polls.
    bool stopping;
    double clock, ticked;          // seconds that the thread was awake; when it last counted
    char advice[256];
} Heartbeat;

// ---- sockets: all of them non-blocking ----

static inline bool heartbeat_again(void) {
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

// Reads what has arrived, at most n bytes; *got may be 0. False if the connection is closed.
static inline bool heartbeat_read(int fd, void *data, size_t n, size_t *got) {
    ssize_t came = recv(fd, data, n, 0);
    *got = came > 0 ? (size_t)came : 0;
    if (came == 0) errno = ECONNRESET;
    return came > 0 || (came < 0 && heartbeat_again());
}

// Seconds as poll()'s milliseconds, rounded up, so that poll() does not return too early.
static inline int heartbeat_ms(double seconds) {
    return seconds <= 0.0 ? 0 : seconds < 1e6 ? (int)(1e3*seconds) + 1 : 1000000000;
}

// Sets the options of a new socket; -1 stays -1.
static inline int heartbeat_prepare(int fd) {
    const int on = 1;
    if (fd < 0) return fd;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
#ifdef SO_NOSIGPIPE
    setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
#endif
    return fd;
}

static inline void heartbeat_close(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

// Waits until fd is ready; false with ETIMEDOUT after time `until` (seconds_now).
static inline bool heartbeat_ready(int fd, short events, double until) {
    for (double left; (left = until - seconds_now()) > 0.0; ) {
        struct pollfd p = { fd, events, 0 };
        if (poll(&p, 1, heartbeat_ms(left)) > 0) return true;
    }
    errno = ETIMEDOUT;
    return false;
}

// Sends all n bytes, or returns false. With `until` in the past it sends only what fits the
// socket's buffer.
static inline bool heartbeat_send(int fd, const void *data, size_t n, double until) {
#ifdef MSG_NOSIGNAL
    const int flags = MSG_NOSIGNAL;
#else
    const int flags = 0;
#endif
    for (const char *p = (const char *)data; n > 0; ) {
        ssize_t sent = send(fd, p, n, flags);
        if (sent < 0 && (!heartbeat_again() || !heartbeat_ready(fd, POLLOUT, until))) return false;
        if (sent > 0) p += sent, n -= (size_t)sent;
    }
    return true;
}

// Receives all n bytes, or returns false: errno is ETIMEDOUT, or another if the connection closed.
static inline bool heartbeat_recv(int fd, void *data, size_t n, double until) {
    for (char *p = (char *)data; n > 0; ) {
        size_t came;
        if (!heartbeat_read(fd, p, n, &came)) return false;
        if (came == 0 && !heartbeat_ready(fd, POLLIN, until)) return false;
        p += came;
        n -= came;
    }
    return true;
}

// A host's addresses, IPv4 and IPv6, to be freed by freeaddrinfo. Returns 0 or a code for
// gai_strerror.
static inline int heartbeat_lookup(struct addrinfo **found, const char *host, int port) {
    struct addrinfo hints;
    char service[16];
    memset(&hints, 0, sizeof hints);
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    snprintf(service, sizeof service, "%d", port);
    *found = NULL;
    return getaddrinfo(host, service, &hints, found);
}

// Waits at most `seconds` for any peer, or for one more descriptor, at polls[n].
static inline void heartbeat_poll(Heartbeat *w, int more, double seconds) {
    for (int i = 0; i <= w->n; i++) {
        w->polls[i].fd = i < w->n ? w->peers[i].fd : more;
        w->polls[i].events = POLLIN;
        w->polls[i].revents = 0;
    }
    poll(w->polls, (nfds_t)w->n + 1, heartbeat_ms(seconds));
}

// ---- beginning and end ----

// rank 0...size-1; job: a number that identifies the run, the same for all its ranks and
// independent of size; timeout in seconds. With size 1 the other calls do nothing.
static inline void heartbeat_init(Heartbeat *w, int rank, int size, uint64_t job, double timeout) {
    assert(0 <= rank && rank < size && timeout > 0.0);
    memset(w, 0, sizeof *w);
    w->rank = rank;
    w->size = size;
    w->timeout = timeout;
    w->beat = timeout < 10.0 ? timeout/10.0 : 1.0;
    w->hello.magic = HEARTBEAT_MAGIC;
    w->hello.job = job;
    w->hello.rank = (uint32_t)rank;
    w->hello.size = (uint32_t)size;
    gethostname(w->hello.host, sizeof w->hello.host - 1);
    w->listener = w->wake[0] = w->wake[1] = -1;
    w->n = size == 1 ? 0 : rank == 0 ? size + HEARTBEAT_DOOR : 1;
    w->peers = (HeartbeatPeer *)alloc_or_die((size_t)w->n * sizeof *w->peers, "connections");
    w->polls = (struct pollfd *)alloc_or_die((size_t)(w->n + 1) * sizeof *w->polls, "connections");
    for (int i = 0; i < w->n; i++) w->peers[i].fd = -1;
}

// Closes and frees everything; a second call does nothing.
static inline void heartbeat_free(Heartbeat *w) {
    for (int i = 0; i < w->n; i++) heartbeat_close(&w->peers[i].fd);
    heartbeat_close(&w->listener);
    heartbeat_close(&w->wake[0]);
    heartbeat_close(&w->wake[1]);
    free(w->peers);
    free(w->polls);
    w->peers = NULL;
    w->polls = NULL;
    w->n = 0;
}

// ---- rendezvous ----

// A listening socket, or -1 and errno.
static inline int heartbeat_bind(const char *host, int port) {
    const int on = 1, off = 0;
    struct addrinfo *found;
    int fd = -1, why = EADDRNOTAVAIL;
    if (heartbeat_lookup(&found, host, port) != 0) found = NULL;
    for (struct addrinfo *a = found; a && fd < 0; a = why == EADDRINUSE ? NULL : a->ai_next) {
        fd = heartbeat_prepare(socket(a->ai_family, SOCK_STREAM, 0));
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);    // reuse an ended run's port
        if (a->ai_family == AF_INET6)
            setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
        if (fd >= 0 && bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, 1024) == 0) break;
        why = errno;
        heartbeat_close(&fd);
    }
    if (found) freeaddrinfo(found);
    errno = why;
    return fd;
}

// Rank 0: listens at a port of a host's address; NULL: of all addresses. Port 0 chooses a free port
// and stores it. Errors: the port is in use, the host is not this machine.
static inline bool heartbeat_listen(Heartbeat *w, const char *host, int *port, Error *err) {
    if (w->rank != 0 || w->size == 1) return true;
    w->listener = heartbeat_bind(host ? host : "::", *port);
    if (w->listener < 0 && !host && errno != EADDRINUSE)             // no IPv6 here
        w->listener = heartbeat_bind("0.0.0.0", *port);
    if (w->listener < 0 && errno == EADDRINUSE)
        return fail(err, "port %d is in use on this machine, perhaps by another run; "
                    "choose another with MASTER_PORT=...", *port);
    if (w->listener < 0)
        return fail(err, "rank 0 cannot listen at %s:%d: %s; MASTER_ADDR must name this "
                    "machine", host ? host : "*", *port, strerror(errno));
    struct sockaddr_storage at;
    socklen_t length = sizeof at;
    char service[16];
    if (getsockname(w->listener, (struct sockaddr *)&at, &length) == 0 &&
        getnameinfo((struct sockaddr *)&at, length, NULL, 0, service, sizeof service,
                    NI_NUMERICSERV) == 0)
        *port = atoi(service);
    return true;
}

// Accepts new connections. If all places for connections without a hello are taken, the oldest of
// these is closed: a rank of this run sends its hello at once, and would try again.
static inline bool heartbeat_accept(Heartbeat *w, Error *err) {
    for (int more = 0; more < HEARTBEAT_DOOR; more++) {
        int fd = heartbeat_prepare(accept(w->listener, NULL, NULL)), at = w->size;
        if (fd < 0 && (errno == EMFILE || errno == ENFILE))
            return fail(err, "rank 0 cannot accept %d ranks: %s; raise ulimit -n", w->size,
                        strerror(errno));
        if (fd < 0) return true;
        for (int i = w->size; i < w->n && w->peers[at].fd >= 0; i++)
            if (w->peers[i].fd < 0 || w->peers[i].heard < w->peers[at].heard) at = i;
        heartbeat_close(&w->peers[at].fd);
        w->peers[at].fd = fd;
        w->peers[at].n = 0;
        w->peers[at].heard = seconds_now();
    }
    return true;
}

// Reads more of a connection's hello. When the hello is complete, a rank of this run moves to its
// place in peers; a connection from elsewhere is closed. False: a rank of this run cannot take
// part.
static inline bool heartbeat_admit(Heartbeat *w, HeartbeatPeer *p, Error *err) {
    HeartbeatHello *h = &p->hello;
    size_t came;
    bool open = heartbeat_read(p->fd, (char *)h + p->n, sizeof *h - p->n, &came);
    p->n += came;
    if (open && p->n < sizeof *h) return true;
    if (!open || h->magic != HEARTBEAT_MAGIC || h->job != w->hello.job ||
        !heartbeat_send(p->fd, &w->hello, sizeof w->hello, 0.0)) {
        heartbeat_close(&p->fd);
        return true;
    }
    h->host[sizeof h->host - 1] = '\0';
    if (h->size != w->hello.size || h->rank >= h->size)
        return fail(err, "rank %u (on %s) was started as one of %u ranks, rank 0 as one of %d; "
                    "WORLD_SIZE must be the same for all", h->rank, h->host, h->size, w->size);
    if (h->rank == 0 || w->peers[h->rank].fd >= 0)
        return fail(err, "rank %u connected twice, from %s and from %s; each process needs a RANK "
                    "of its own", h->rank, h->host,
                    h->rank ? w->peers[h->rank].hello.host : w->hello.host);
    w->peers[h->rank] = *p;
    p->fd = -1;
    return true;
}

// How many ranks have not connected; text names them: "ranks 2 and 5 of 8 have".
static inline int heartbeat_missing(const Heartbeat *w, char *text, size_t size) {
    enum { NAMES = 8 };
    int missing = 0, named = 0;
    for (int r = 1; r < w->size; r++) missing += w->peers[r].fd < 0;
    size_t n = (size_t)snprintf(text, size, missing == 1 ? "rank" : "ranks");
    for (int r = 1; r < w->size && named < NAMES; r++) {
        if (w->peers[r].fd >= 0) continue;
        const char *before = named == 0 ? "" : named == missing - 1 ? " and" : ",";
        n += (size_t)snprintf(text + n, size - n, "%s %d", before, r);
        named++;
    }
    if (missing > named) n += (size_t)snprintf(text + n, size - n, " and %d more", missing - named);
    snprintf(text + n, size - n, " of %d %s", w->size, missing == 1 ? "has" : "have");
    return missing;
}

// Rank 0: waits until all ranks have connected.
static inline bool heartbeat_gather(Heartbeat *w, Error *err) {
    char who[160], byte;
    size_t came;
    double until = seconds_now() + w->timeout;
    while (heartbeat_missing(w, who, sizeof who) > 0) {
        double left = until - seconds_now();
        if (left <= 0.0)
            return fail(err, "%s not connected within %g s; are they running, and can they "
                        "reach this machine (%s)?", who, w->timeout, w->hello.host);
        heartbeat_poll(w, w->listener, left);
        for (int i = 1; i < w->n; i++) {
            HeartbeatPeer *p = &w->peers[i];
            if (!w->polls[i].revents) continue;
            if (i >= w->size && !heartbeat_admit(w, p, err)) return false;
            if (i < w->size && !heartbeat_read(p->fd, &byte, 1, &came))
                return fail(err, "rank %d (on %s) connected and left again", i, p->hello.host);
        }
        if (w->polls[w->n].revents && !heartbeat_accept(w, err)) return false;
    }
    return true;
}

// Tries one of rank 0's addresses once. False: *why says why.
static inline bool heartbeat_call(Heartbeat *w, const struct addrinfo *a, double until,
                                  const char **why) {
    HeartbeatPeer *p = &w->peers[0];
    HeartbeatHello *h = &p->hello;
    double now = seconds_now(), patience = fmin(until, now + w->timeout/4.0);   // for this address
    int error = 0;
    socklen_t size = sizeof error;
    p->fd = heartbeat_prepare(socket(a->ai_family, SOCK_STREAM, 0));
    if (p->fd < 0 || (connect(p->fd, a->ai_addr, a->ai_addrlen) != 0 && errno != EINPROGRESS &&
                      errno != EINTR)) error = errno;
    else if (!heartbeat_ready(p->fd, POLLOUT, patience)) error = errno;
    else getsockopt(p->fd, SOL_SOCKET, SO_ERROR, &error, &size);
    *why = error ? strerror(error) : "another program or run answers there";
    if (!error) {                  // wait in silence: rank 0 may yet read this hello
        bool heard = heartbeat_send(p->fd, &w->hello, sizeof w->hello, until) &&
                     heartbeat_recv(p->fd, h, sizeof *h, until);
        if (!heard && errno == ETIMEDOUT) *why = "it does not answer";
        h->host[sizeof h->host - 1] = '\0';
        bool ours = heard && h->magic == HEARTBEAT_MAGIC && h->job == w->hello.job;
        if (ours && h->rank == 0) return true;
    }
    heartbeat_close(&p->fd);
    return false;
}

// Other ranks: try rank 0 until it answers; it or its name may appear later than this rank.
static inline bool heartbeat_reach(Heartbeat *w, const char *host, int port, Error *err) {
    double until = seconds_now() + w->timeout;
    const char *why = "";
    do {
        struct addrinfo *found;
        int unknown = heartbeat_lookup(&found, host, port);
        bool reached = false;
        if (unknown) why = gai_strerror(unknown), found = NULL;
        for (struct addrinfo *a = found; a && !reached; a = a->ai_next)
            reached = heartbeat_call(w, a, until, &why);
        if (found) freeaddrinfo(found);
        if (reached) return true;
        poll(NULL, 0, 100);
    } while (seconds_now() < until);
    return fail(err, "rank 0 cannot be reached at %s:%d within %g s: %s; is it running, and are "
                "MASTER_ADDR and MASTER_PORT right?", host, port, w->timeout, why);
}

// Other ranks: wait for rank 0 to send that all ranks are connected, or what is wrong. Rank 0's
// timeout began before it answered this rank, so the answer comes within `timeout`.
static inline bool heartbeat_await(Heartbeat *w, Error *err) {
    const HeartbeatPeer *p = &w->peers[0];
    Error verdict;
    if (!heartbeat_recv(p->fd, &verdict, sizeof verdict, seconds_now() + w->timeout + w->beat))
        return fail(err, "rank 0 (on %s) %s before all ranks had connected", p->hello.host,
                    errno == ETIMEDOUT ? "stopped answering" : "closed its connection");
    verdict.text[sizeof verdict.text - 1] = '\0';
    w->told = verdict.text[0] != '\0';
    if (w->told) *err = verdict;
    return !w->told;
}

// Connects all ranks: returns true on all, or false on all within `timeout` of rank 0's call.
// Errors: ranks that are missing, started twice, or of another size; on other ranks also that rank
// 0 cannot be reached at host:port (rank 0 ignores both). An error that rank 0 finds reaches all
// ranks: they get the same text and w->told, and leave the printing to rank 0.
static inline bool heartbeat_join(Heartbeat *w, const char *host, int port, Error *err) {
    if (w->size == 1) return true;
    bool joined;
    if (w->rank == 0) {
        assert(w->listener >= 0);
        Error verdict;
        memset(&verdict, 0, sizeof verdict);
        joined = heartbeat_gather(w, &verdict);
        if (!joined) *err = verdict;
        else memset(&verdict, 0, sizeof verdict);
        for (int i = 1; i < w->n; i++)
            if (w->peers[i].fd >= 0 && w->peers[i].n == sizeof(HeartbeatHello))
                heartbeat_send(w->peers[i].fd, &verdict, sizeof verdict, 0.0);
        for (int i = w->size; i < w->n; i++) heartbeat_close(&w->peers[i].fd);
        heartbeat_close(&w->listener);
        w->n = w->size;
    } else {
        joined = heartbeat_reach(w, host, port, err) && heartbeat_await(w, err);
    }
    if (!joined) heartbeat_free(w);
    return joined;
}

// Broadcasts rank 0's n bytes (at most HEARTBEAT_SHARE_MAX), after heartbeat_join and before
// heartbeat_start. Errors: a rank has closed its connection, or takes longer than `timeout`.
static inline bool heartbeat_share(Heartbeat *w, void *bytes, size_t n, Error *err) {
    assert(n <= HEARTBEAT_SHARE_MAX && !w->running);
    double until = seconds_now() + w->timeout;
    uint64_t length = n;
    for (int r = 0; r < w->n; r++) {
        HeartbeatPeer *p = &w->peers[r];
        if (r == w->rank) continue;
        bool done = w->rank == 0 ? heartbeat_send(p->fd, &length, sizeof length, until) &&
                                   heartbeat_send(p->fd, bytes, n, until)
                                 : heartbeat_recv(p->fd, &length, sizeof length, until);
        if (done && length != n)
            return fail(err, "rank 0 sends %llu bytes, this rank expects %zu; is it the same "
                        "program?", (unsigned long long)length, n);
        if (!done || (w->rank != 0 && !heartbeat_recv(p->fd, bytes, n, until)))
            return fail(err, "rank %d (on %s) %s", r, p->hello.host, errno == ETIMEDOUT
                        ? "does not answer" : "is gone: its connection closed");
    }
    return true;
}

// ---- watching: the thread ----

// Sends one byte to every peer. A peer that cannot take it will be found silent.
static inline void heartbeat_tell(Heartbeat *w, char what) {
    for (int i = 0; i < w->n; i++)
        if (w->peers[i].fd >= 0) heartbeat_send(w->peers[i].fd, &what, 1, 0.0);
}

// Whether any peer is still connected.
static inline bool heartbeat_any(const Heartbeat *w) {
    for (int i = 0; i < w->n; i++)
        if (w->peers[i].fd >= 0) return true;
    return false;
}

// Waits, at most a beat, until the peers have closed their connections. Closing first, with unread
// data of theirs, would reset the connection and could drop what was just sent to them.
static inline void heartbeat_linger(Heartbeat *w) {
    char rest[256];
    size_t came;
    double until = seconds_now() + w->beat, left;
    for (int i = 0; i < w->n; i++)
        if (w->peers[i].fd >= 0) shutdown(w->peers[i].fd, SHUT_WR);
    while (heartbeat_any(w) && (left = until - seconds_now()) > 0.0) {
        heartbeat_poll(w, -1, left);
        for (int i = 0; i < w->n; i++)
            if (w->polls[i].revents && !heartbeat_read(w->peers[i].fd, rest, sizeof rest, &came))
                heartbeat_close(&w->peers[i].fd);
    }
}

// Ends the process at once. exit() could block: its handlers may wait for a lock that the main
// thread holds, or for MPI or CUDA. Standard output is flushed only if that cannot block.
__attribute__((noreturn)) static inline void heartbeat_exit(void) {
    struct pollfd out = { STDOUT_FILENO, POLLOUT, 0 };
    if (poll(&out, 1, 0) == 1 && ftrylockfile(stdout) == 0) fflush(stdout);
    _exit(1);
}

// A rank is lost: rank 0 prints one line (rank 1, if rank 0 is the lost one), and all ranks end.
__attribute__((noreturn))
static inline void heartbeat_lost(Heartbeat *w, int rank, const char *why) {
    heartbeat_tell(w, HEARTBEAT_END);      // to the lost rank too: it may only be stopped
    if (__atomic_load_n(&w->ending, __ATOMIC_SEQ_CST)) heartbeat_exit();
    if (w->rank == (rank == 0 ? 1 : 0))
        dprintf(STDERR_FILENO, PROGRAM ": rank %d (on %s) %s%s%s\n", rank,
                w->peers[rank].hello.host, why, w->advice[0] ? "; " : "", w->advice);
    heartbeat_close(&w->peers[rank].fd);
    heartbeat_linger(w);
    heartbeat_exit();
}

// Handles what a peer has sent.
static inline void heartbeat_hear(Heartbeat *w, int rank) {
    HeartbeatPeer *p = &w->peers[rank];
    char said[256], beat = HEARTBEAT_BEAT;
    size_t n;
    bool open = heartbeat_read(p->fd, said, sizeof said, &n);
    if (!open && (w->rank == 0 || !w->stopping))
        heartbeat_lost(w, rank, "is gone: its connection closed");
    if (memchr(said, HEARTBEAT_END, n)) {
        if (w->rank == 0) {            // from a rank that has printed its reason
            heartbeat_tell(w, HEARTBEAT_END);
            heartbeat_linger(w);
        }
        heartbeat_exit();
    }
    if (!open || memchr(said, HEARTBEAT_BYE, n)) {
        heartbeat_close(&p->fd);
    } else if (n > 0) {
        p->heard = w->clock;
        if (rank == 0 && !w->stopping) heartbeat_send(p->fd, &beat, 1, 0.0);
    }
}

// Advances the clock that measures silence. It counts only time during which this thread was awake:
// after this process was suspended or starved, the other ranks still have their whole timeout.
static inline void heartbeat_tick(Heartbeat *w) {
    double now = seconds_now();
    w->clock += fmin(now - w->ticked, 2.0*w->beat);
    w->ticked = now;
}

// heartbeat_stop was called: a rank sends BYE, and rank 0 closes the connection.
static inline void heartbeat_leave(Heartbeat *w) {
    w->stopping = true;
    if (w->rank == 0) return;
    heartbeat_tell(w, HEARTBEAT_BYE);
    if (w->peers[0].fd >= 0) shutdown(w->peers[0].fd, SHUT_WR);
}

// The thread. It ends when no peer is connected, or `timeout` after heartbeat_stop.
static inline void *heartbeat_run(void *watch) {
    Heartbeat *w = (Heartbeat *)watch;
    double next = 0.0, leave = INFINITY;
    while (heartbeat_any(w) && w->clock < leave) {
        if (w->rank == 0 && w->clock >= next) {
            heartbeat_tell(w, HEARTBEAT_BEAT);
            next = w->clock + w->beat;
        }
        double until = w->rank == 0 ? next : w->clock + w->beat;
        for (int r = 0; r < w->n; r++)
            if (w->peers[r].fd >= 0) until = fmin(until, w->peers[r].heard + w->timeout);
        poll(NULL, 0, 10);         // at most 100 rounds a second, however many ranks answer
        heartbeat_poll(w, w->stopping ? -1 : w->wake[0], until - w->clock);
        heartbeat_tick(w);
        for (int r = 0; r < w->n; r++)
            if (w->polls[r].revents) heartbeat_hear(w, r);
        char why[64];
        snprintf(why, sizeof why, "has not answered for %g s", w->timeout);
        for (int r = 0; r < w->n; r++)
            if (w->peers[r].fd >= 0 && w->clock - w->peers[r].heard >= w->timeout)
                heartbeat_lost(w, r, why);
        if (w->polls[w->n].revents) {
            heartbeat_leave(w);
            leave = w->clock + w->timeout;
        }
    }
    heartbeat_tell(w, HEARTBEAT_BYE);      // from rank 0, if a rank did not leave in time
    heartbeat_linger(w);
    return NULL;
}

// This process's Heartbeat while its thread runs; NULL: none.
static inline Heartbeat **heartbeat_own(void) {
    static Heartbeat *own;
    return &own;
}

// die() has printed the reason; this ends the other ranks, which print nothing.
static inline void heartbeat_told(void) {
    Heartbeat *w = *heartbeat_own();
    if (!w) return;
    __atomic_store_n(&w->ending, true, __ATOMIC_SEQ_CST);
    heartbeat_tell(w, HEARTBEAT_END);
    poll(NULL, 0, 200);            // the others read END; the thread still reads
}

// Starts the thread; all ranks call this within `timeout` of each other. From then until
// heartbeat_stop, this process ends with status 1 when any rank is lost; one rank prints a line
// that names the lost rank, followed by the advice (NULL: none). Error: no thread can be started.
static inline bool heartbeat_start(Heartbeat *w, const char *advice, Error *err) {
    if (!heartbeat_any(w)) return true;
    sigset_t all, before;
    snprintf(w->advice, sizeof w->advice, "%s", advice ? advice : "");
    if (pipe(w->wake) != 0) return fail(err, "the ranks cannot be watched: %s", strerror(errno));
    for (int i = 0; i < 2; i++) fcntl(w->wake[i], F_SETFD, FD_CLOEXEC);
    w->ticked = seconds_now();
    for (int r = 0; r < w->n; r++) w->peers[r].heard = 0.0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);       // the main thread handles signals
    int why = pthread_create(&w->thread, NULL, heartbeat_run, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    w->running = why == 0;
    if (w->running) *heartbeat_own() = w;
    *die_last() = heartbeat_told;
    return w->running || fail(err, "the ranks cannot be watched: %s", strerror(why));
}

// Leaves the run: the other ranks do not report this one as lost. Rank 0 waits here until all have
// left, at most `timeout`. Also frees the Heartbeat, at any point after heartbeat_init.
static inline void heartbeat_stop(Heartbeat *w) {
    char byte = 0;
    *heartbeat_own() = NULL;
    while (w->running && write(w->wake[1], &byte, 1) < 0 && errno == EINTR) {}
    if (w->running) pthread_join(w->thread, NULL);
    w->running = false;
    heartbeat_free(w);
}
