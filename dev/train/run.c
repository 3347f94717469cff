// A run: everything that a trainer holds beside the model (train.h).
#include "train.h"

bool round_is_over(const Run *r, uint64_t step, uint64_t tokens) {
    return r->o.outer_every == 0 || step % (uint64_t)r->o.outer_every == 0
        || run_done(&r->length, step, tokens, NAN);
}

bool stop_is_asked(Run *r) {
    int all[COMM_MAX_RANKS], own = *stop_signal();
    comm_collect(&r->comm, all, &own, sizeof own);
    for (int i = 0; i < r->comm.size && !r->stopping; i++) r->stopping = all[i];
    return r->stopping != 0;
}

Sharing run_sharing(const TrainOptions *o, Comm *data, Comm *tensor) {
    uint64_t micro_batches = o->batches.batch / o->batches.unit;
    Sharing s = { data, tensor, train_options_stage(o, data->size), (CommType)o->comm_dtype,
                  o->exact_sum ? tree_level(micro_batches - 1) + 1 : 0,
                  o->outer_every > 0, o->no_overlap, measures_noise(o),
                  o->optimizer == OPTIMIZER_SGD, o->average_tokens > 0 };
    return s;
}
