// Short children's tales from a probabilistic grammar, each with its exact probability.
//
//     Rng rng = rng_make(seed, 0);
//     char text[TALE_MAX];
//     double nats;
//     size_t n = tale_write(text, TALE_MAX, &nats, &rng);    // -ln p(text) = nats
//
// A tale is plain ASCII, lines end in \n, and nothing follows its last word: p counts that the tale
// ends there, so an end-of-text token after it costs nothing more. No text can be written in two
// ways (tales.c says why, tests/test_tales.c checks it), so p is the probability of the text itself
// and the mean of nats is the loss that no model can beat. The same seed gives the same text on
// every machine.
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "../base/rng.h"

enum { TALE_MAX = 1024 };   // no tale is longer

// Writes one tale to out, without a closing 0, and returns its length; *nats receives -ln p of the
// whole tale. 0 when the tale does not fit into cap bytes; TALE_MAX always do.
size_t tale_write(char *out, size_t cap, double *nats, Rng *rng);

// Reads a tale back: *nats receives the same number, to the last bit. false when the n bytes are
// not a tale.
bool tale_read(double *nats, const char *text, size_t n);
