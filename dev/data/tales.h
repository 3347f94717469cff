// Short children's tales from a probabilistic grammar, each with its exact probability.
//
//     Rng rng = rng_make(seed, 0);
//     char text[TALE_MAX];
//     double nats;
//     size_t n = tale_write(text, TALE_MAX, &nats, &rng);    // -ln p(text) = nats
//
// A tale is plain ASCII; lines end in \n. p includes the end of the tale, so an end-of-text token
// after it adds no nats. The grammar is unambiguous: no text has two derivations (tales.c says why,
// tests/test_tales.c checks it). So p is the probability of the text itself, and the mean of nats
// is the entropy, a lower bound on any model's loss. A seed gives the same text on every machine.
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "../base/rng.h"

enum { TALE_MAX = 1024 };   // no tale is longer

// Writes one tale to out, without a NUL, and returns its length; *nats receives -ln p of the whole
// tale. Returns 0 if the tale needs more than cap bytes; TALE_MAX bytes always suffice.
size_t tale_write(char *out, size_t cap, double *nats, Rng *rng);

// Parses a tale: *nats receives the same -ln p as from tale_write, bit for bit. False if the n
// bytes are not a tale.
bool tale_read(double *nats, const char *text, size_t n);
