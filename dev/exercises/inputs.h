// Inputs that tell a right solution from one that is right for numbers near 0 alone.
#pragma once
#include <math.h>
#include <stddef.h>

// Rows far above and below 0, some with one element far from the others: e^300 overflows.
static void far_rows(float *x, int rows, int width) {
    for (int i = 0; i < rows*width; i++)
        x[i] = 2*x[i] + (i / width % 4 == 1 ? -1000 : i / width % 4 == 2 ? 1000 : 0);
    for (int n = 3; n < rows; n++) x[n*width + n % width] += n % 4 == 3 ? -1e4f : n % 4 ? 0 : 300;
}

static void padding(float *x, int rows, int V, int Vp) {
    for (int i = 0; i < rows*Vp; i++)
        if (i % Vp >= V) x[i] = i / Vp % 2 ? NAN : 2000;
}

// Rows that vary more or less, so that 1e-5 shows, one not at all; and a mean far from 0.
static void spread(float *x, int rows, int width) {
    static const float SCALES[] = { 1, 4e-3f, 0, 0.05f }, MEANS[] = { 0.5f, 0, 3, 10 };
    for (int i = 0; i < rows*width; i++)
        x[i] = x[i] * SCALES[i / width % 4] + MEANS[i / width % 4];
}

// Queries whose scores all lie hundreds above 0, or below.
static void far_queries(float *qkv, int rows, int NH, int HS) {
    for (int n = 0; n < rows; n++)
        for (int h = 0; h < NH; h++) {
            float *q = qkv + (size_t)n*3*NH*HS + h*HS, *k = q + NH*HS;
            k[0] = 2;
            if (n % 3 == 0) q[0] = n % 2 ? 500 : -500;
        }
}
