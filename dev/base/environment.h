// Which of a run's processes this one is. A program that is to run as several processes, called
// ranks, is started by a launcher, and each launcher says it in environment variables of its own:
//
//     scripts/launch.sh, torchrun   RANK  WORLD_SIZE  LOCAL_RANK  LOCAL_WORLD_SIZE
//     Open MPI's mpirun             OMPI_COMM_WORLD_RANK ...
//     MPICH's and Intel's mpirun    PMI_RANK  PMI_SIZE  MPI_LOCALRANKID  MPI_LOCALNRANKS
//     Slurm's srun                  SLURM_PROCID  SLURM_STEP_NUM_TASKS  SLURM_LOCALID
//
// Slurm sets its variables in a batch script as well, where nobody has started several processes
// yet: only one step of several tasks counts.
#pragma once
#include <stdlib.h>

typedef enum { LAUNCH_RANK, LAUNCH_SIZE, LAUNCH_LOCAL_RANK, LAUNCH_LOCAL_SIZE } LaunchNumber;

enum { LAUNCHERS = 4 };

// A number of one of the four launchers above; -1 when it has not said.
static inline int launcher_number(int launcher, LaunchNumber which) {
    static const char *const names[LAUNCHERS][4] = {
        { "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
          "OMPI_COMM_WORLD_LOCAL_SIZE" },
        { "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS" },
        { "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE" },
        { "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_TASKS_PER_NODE" },
    };
    const char *text = getenv(names[launcher][which]);
    if (!text || *text < '0' || *text > '9') return -1;
    long number = strtol(text, NULL, 10);              // "4(x2)" is 4 tasks on each of two nodes
    return number < 1 << 20 ? (int)number : -1;
}

// The launcher whose word counts: the first that names a rank of several. LAUNCHERS when this
// process was started alone. (A launcher inside another finds what that has left: srun's shell,
// say, is PMI's rank 0 of 1.)
static inline int launcher_find(void) {
    int found = 0;
    while (found < LAUNCHERS
           && (launcher_number(found, LAUNCH_RANK) < 0 || launcher_number(found, LAUNCH_SIZE) < 2
               || launcher_number(found, LAUNCH_SIZE) <= launcher_number(found, LAUNCH_RANK)))
        found++;
    return found;
}

// A number of the launcher whose word counts, or `otherwise`.
static inline int launched_as(LaunchNumber which, int otherwise) {
    int launcher = launcher_find();
    int number = launcher < LAUNCHERS ? launcher_number(launcher, which) : -1;
    return number >= 0 ? number : otherwise;
}
