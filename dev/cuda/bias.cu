// The gradient of a bias: db (OC) += the sum of the rows of dout (N,OC).
//
//     make ladder OP=bias
//
// Each element of dout is read once and added once. So memory is the limit: 2*N*OC bytes in bf16.
// A rung is as good as its loads are wide and as many threads are at work. Every rung adds in the
// same order in every run: no atomics.
#include "ladder.cu"                   // Rung, Result, ladder_climb, ladder_main

struct Data { float *db; const real *dout; size_t N; int OC; };
struct Shape { size_t N; int OC; };

// ---- the rungs ----

// Thread c owns column c and walks down its rows. Neighbouring threads read neighbouring elements:
// the loads are coalesced, two sectors a request in bf16. But there are only OC threads: 768 of the
// 270,000 that an H100 has room for, each waiting for one load after the other.
__global__ void column_kernel(float *db, const real *dout, size_t N, int OC) {
    int c = (int)thread_in_grid();
    if (c >= OC) return;
    float sum = 0.0f;
    for (size_t n = 0; n < N; n++) sum += (float)dout[n*OC + c];
    db[c] += sum;
}

static void column(const Data *d, Gpu *g) {
    column_kernel<<<blocks_for(d->OC, 256), 256, 0, g->stream>>>(d->db, d->dout, d->N, d->OC);
    LAUNCH_CHECK();
}

static const Rung<Data> rungs[] = {
    { "a thread a column", "each thread sums one column, row after row", column },
};

// ---- the CPU, and the shapes ----

static void climb(Ladder *l, Shape s) {
    Array<real> dout(s.N * s.OC);
    Array<float> db(s.OC);
    std::vector<double> expected(s.OC, 1.0);
    array_draw(&dout, 1);
    for (size_t i = 0; i < dout.cpu.size(); i++) expected[i % s.OC] += (double)(float)dout.cpu[i];
    char title[100];
    snprintf(title, sizeof title, "bias, backward: N=%zu, OC=%d, " PRECISION, s.N, s.OC);
    Data d = { db.gpu, dout.gpu, s.N, s.OC };
    ladder_climb(l, title, rungs, d, { result("db", db, expected, 1.0f, 0) },
                 { (double)(dout.cpu.size() * sizeof(real)), 0.0 });
}

int main(int argc, char **argv) {
    static const Shape small[] = { { 5, 8 }, { 37, 264 }, { 301, 776 } };
    return ladder_main(argc, argv, small, { 1024, 768 }, { 65536, 768 }, climb);
}
