// The machine of train_gpt2.c, as dev/train/train.h asks for it: a processor needs no opening.
#include "../train/train.h"
#include "cpu.h"

void machine_open(Machine *machine, const TrainOptions *o, Comm *comm) {
    (void)o, (void)comm;
    machine->peak_flops = 0.0;
}

void machine_close(Machine *machine) { (void)machine; }

const char *machine_precision(void) { return PRECISION; }

double machine_peak_flops(Machine *machine) {
    if (machine->peak_flops == 0.0) machine->peak_flops = cpu_peak_flops();
    return machine->peak_flops;
}

double machine_free_memory(const Machine *machine) {
    (void)machine;
    return ram_free();
}
