// Lesson 0: backpropagation through five nodes, by hand, beside measured slopes.
#include "lesson.h"

// One sample through five nodes. v[0] is w, the only parameter: two nodes use it. v[1] ... v[4] are
// 0; a slope at one of them is the slope at a node, since the node's value is moved by it.
typedef struct { float v[5]; double x, y; double a, b, c, p; } Net;

static double forward(Net *n) {
    double w = n->v[0];
    n->a = w * n->x + n->v[1];                             // 1
    n->b = tanh(n->a) + n->v[2];                           // 2
    n->c = n->a + n->b + n->v[3];                          // 3: a residual, so a is used twice
    n->p = w * n->c + n->v[4];                             // 4: w again
    return (n->p - n->y) * (n->p - n->y) / 2;              // 5: the loss
}

// Gradients of the activations, and the parts of w's gradient from its two uses.
typedef struct { double p, c, b, a, w_of_4, w_of_1; } Grads;

static Grads backward(const Net *n) {
    Grads d;
    d.p = n->p - n->y;                                     // 5
    d.w_of_4 = d.p * n->c;                                 // 4
    d.c = d.p * n->v[0];
    d.b = d.c;                                             // 3
    d.a = d.c + d.b * (1 - n->b * n->b);                   // 3 and 2: both uses of a
    d.w_of_1 = d.a * n->x;                                 // 1
    return d;
}

static double loss_of(void *net) { return forward(net); }
static double loss_in_float(void *net) { return (float)forward(net); }

static void node(const char *name, double value, double gradient, double slope) {
    printf("%-13s %8.4f %11.4f %11.4f\n", name, value, gradient, slope);
    if (fabs(gradient - slope) > 1e-4) claim(false, "the gradient of %s is its slope", name);
}

// Errors of the measured slope of w, against the step; the loss in double, and rounded to float.
static void check_steps(Net *n, double exact) {
    double in_double[5], in_float[5];
    printf("step h   error of the slope   with the loss in float\n");
    for (int i = 0; i < 5; i++) {
        float h = ldexpf(0.25f, -3*i);
        measured_slopes(&in_double[i], loss_of, n, n->v, 1, h);
        measured_slopes(&in_float[i], loss_in_float, n, n->v, 1, h);
        in_double[i] = fabs(in_double[i] - exact);
        in_float[i] = fabs(in_float[i] - exact);
        printf("2^%-4d %16.0e %21.0e\n", -2 - 3*i, in_double[i], in_float[i]);
    }
    claim(fabs(in_double[3] / in_double[4] / 64 - 1) < 0.1,
          "an eighth of the step has an error 64 times smaller");
    claim(in_float[4] > 5*in_float[3], "but with a loss in float a step can be too small");
}

int main(void) {
    Net first = { .v = { 0.5f }, .x = 2, .y = 2 }, second = { .v = { 0.5f }, .x = -1, .y = 1 };
    double slope[5], slope2[5];
    double loss = forward(&first) + forward(&second);
    Grads d = backward(&first), d2 = backward(&second);
    measured_slopes(slope, loss_of, &first, first.v, 5, 0x1p-11f);
    measured_slopes(slope2, loss_of, &second, second.v, 5, 0x1p-11f);
    forward(&first);                                       // its values, as they were
    printf("node             value    gradient       slope\n");
    node("w", first.v[0], d.w_of_4 + d.w_of_1, slope[0]);
    node("1  a = w x", first.a, d.a, slope[1]);
    node("2  b = tanh a", first.b, d.b, slope[2]);
    node("3  c = a + b", first.c, d.c, slope[3]);
    node("4  p = w c", first.p, d.p, slope[4]);
    claim(true, "each gradient is the measured slope, within 0.0001");
    printf("w's gradient: %.4f from node 4, %.4f from node 1\n", d.w_of_4, d.w_of_1);
    claim(fabs(d.w_of_1 - slope[0]) > 1, "with = for w the part from node 4 would be lost");
    double dw = d.w_of_4 + d.w_of_1 + d2.w_of_4 + d2.w_of_1;
    printf("two samples, loss %.3f: w's gradient is %.3f, its slope %.3f\n", loss, dw,
           slope[0] + slope2[0]);
    claim(fabs(dw - slope[0] - slope2[0]) < 1e-4, "the parts of all samples are added for w");
    claim(fabs(d2.a - slope2[1]) < 1e-4 && fabs(d.a + d2.a - slope2[1]) > 0.1,
          "sample 2 has its own a: its gradient is %.4f, with += it would be %.4f", d2.a,
          d.a + d2.a);
    check_steps(&first, d.w_of_4 + d.w_of_1);
    return 0;
}
