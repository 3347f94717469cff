// make profile: what each kernel of one update asks of a GPU, counted in the emulator.
// dev/emulator/README.md says how it is called.
#include "gpu.cu"                      // gpu_open, update
#include "../emulator/profile.h"       // profile_show, profile_show_lines

// profile [MODEL [MICRO_BATCH [GPU [KERNEL]]]]; "" is what stands there by default.
int main(int argc, char **argv) {
    static Machine machine;
    static Model m;
    ModelShape s = { { 2, 4, 256, 8192, 256, 0 }, 256, 2 };
    const char *gpu = argc > 3 && *argv[3] ? argv[3] : "h100", *kernel = argc > 4 ? argv[4] : "";
    *program_name() = "profile";
    if (argc > 1 && *argv[1]) shape_parse(&s, argv[1], "MODEL");
    if (argc > 2 && *argv[2] && (s.B = atoi(argv[2])) < 1)
        die("MICRO_BATCH=%s: a number of sequences is expected", argv[2]);
    emulator::profile_gpu(gpu);                  // dies if it is not known
    ModelSpec spec = { s.c, s.B, s.T, TRAIN, RECOMPUTE_NONE, Sharing(), 132 };       // an h100's
    gpu_open(&machine);
    model_init(&m, &spec, &machine);
    params_draw(&m.params, 1);
    int N = s.B*s.T, *tokens = random_tokens(N + 1, s.c.V);
    emulator::count_clear();
    update(&m, tokens, tokens + 1, s.B, s.T, 1);
    printf("One update of L=%d, NH=%d, C=%d, V=%d, T=%d, B=%d in " PRECISION ", as counted.\n",
           s.c.L, s.c.NH, s.c.C, s.c.V, s.T, s.B);
    if (!*kernel) emulator::profile_show(emulator::counted(), gpu);
    else emulator::profile_show_lines(emulator::counted(), kernel, gpu);
    free(tokens);
    model_free(&m);
    machine_close(&machine);
    return 0;
}
