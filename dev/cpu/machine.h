// The machine of train_gpt2.c, as dev/train/model.h asks for it: a processor needs no opening. Part
// of train_gpt2.c, which includes this file behind the trainer's headers.
#pragma once
#include "../base/ram.h"               // ram_free
#include "matmul.h"                    // PRECISION
#include "peak.h"                      // cpu_peak_flops

struct Machine { double peak_flops; };                 // measured; 0: not yet

static void machine_open(Machine *machine, const TrainOptions *o, Comm *comm) {
    (void)o, (void)comm;
    machine->peak_flops = 0.0;
}

static void machine_close(Machine *machine) { (void)machine; }

static const char *machine_precision(void) { return PRECISION; }

static double machine_peak_flops(Machine *machine) {
    if (machine->peak_flops == 0.0) machine->peak_flops = cpu_peak_flops();
    return machine->peak_flops;
}

static double machine_free_memory(const Machine *machine) {
    (void)machine;
    return ram_free();
}
