// How a run is stopped from outside: Ctrl-C, SIGTERM, SIGUSR1 or a closed terminal end it after the
// current update (within a DiLoCo round, after its last one), evaluation turn or token. A second
// Ctrl-C kills.
#pragma once
#include <signal.h>
#include <string.h>
#include <unistd.h>

// The signal that came; 0: none.
static inline volatile sig_atomic_t *stop_signal(void) {
    static volatile sig_atomic_t came;
    return &came;
}

// What the handler prints: a text that is complete at any moment.
static inline const char *volatile *stop_message(void) {
    static const char *volatile message = "\nstopping after this update; again ends at once\n";
    return &message;
}

// Of the ranks, only rank 0 has a standard output. write() may be called in a signal handler.
static inline void on_stop_signal(int signal_number) {
    const char *message = *stop_message();
    *stop_signal() = signal_number;
    if (write(STDOUT_FILENO, message, strlen(message)) < 0) return;
}

static inline void catch_stop_signals(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_stop_signal;
    action.sa_flags = SA_RESETHAND | SA_RESTART;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    sigaction(SIGUSR1, &action, NULL); // mpirun and Slurm forward this one, and kill at the others
    signal(SIGPIPE, SIG_IGN);          // the reader of our output may leave: the run goes on
}
