// The rank of this process, and the number of ranks. A run of several processes (ranks) is started
// by a launcher, which passes both in environment variables:
//
//     scripts/launch.sh, torchrun   RANK  WORLD_SIZE  LOCAL_RANK  LOCAL_WORLD_SIZE
//     Open MPI's mpirun             OMPI_COMM_WORLD_RANK ...
//     MPICH's and Intel's mpirun    PMI_RANK  PMI_SIZE  MPI_LOCALRANKID  MPI_LOCALNRANKS
//     Slurm's srun                  SLURM_PROCID  SLURM_STEP_NUM_TASKS  SLURM_LOCALID
//
// Slurm sets its variables in a batch script as well, before any rank runs. SLURM_STEP_NUM_TASKS
// counts the tasks of one srun step, so a batch script is not taken for a rank.
#pragma once
#include <stdlib.h>

typedef enum { LAUNCH_RANK, LAUNCH_SIZE, LAUNCH_LOCAL_RANK, LAUNCH_LOCAL_SIZE } LaunchNumber;

enum { LAUNCHERS = 4 };

// One of a launcher's four numbers; -1 if its variable is not set.
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

// The first launcher that reports a rank of two or more; LAUNCHERS if this process runs alone.
// (Variables can be left over from an outer launcher: srun's shell, for instance, is PMI's rank 0
// of 1.)
static inline int launcher_find(void) {
    int found = 0;
    while (found < LAUNCHERS
           && (launcher_number(found, LAUNCH_RANK) < 0 || launcher_number(found, LAUNCH_SIZE) < 2
               || launcher_number(found, LAUNCH_SIZE) <= launcher_number(found, LAUNCH_RANK)))
        found++;
    return found;
}

// One of the numbers of launcher_find()'s launcher, or `otherwise`.
static inline int launched_as(LaunchNumber which, int otherwise) {
    int launcher = launcher_find();
    int number = launcher < LAUNCHERS ? launcher_number(launcher, which) : -1;
    return number >= 0 ? number : otherwise;
}
