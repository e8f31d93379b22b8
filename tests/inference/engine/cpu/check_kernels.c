/* Checks the kernels without Python, for processors that are only emulated: numbers against plain sums in double, and
   bits alone against bits in a crowd. Prints what they were compiled for; the exit status is 1 when anything differs. */

#include <stdio.h>
#include <stdlib.h>

#include "kernels.c"
#include "products.c"
#include "quantized.c"

#define MOST_ROWS 40

static int failures;
static uint32_t state = 1;

static float uniform(void) { /* from -1 to 1 */
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / (1 << 23) - 1.0f;
}

static float *numbers(int64_t count, float factor) {
    float *all = malloc(count * sizeof(float) + 64);
    for (int64_t i = 0; i < count; i++) all[i] = uniform() * factor;
    return all;
}

static void fail(const char *what, int64_t kind, int64_t outputs, int64_t inputs, int64_t rows) {
    printf("FAILED: %s, kind %ld, [%ld, %ld], %ld rows\n", what, (long)kind, (long)outputs, (long)inputs, (long)rows);
    failures++;
}

static float as_bfloat16(float x) { /* the nearest, ties to even */
    uint32_t word;
    memcpy(&word, &x, 4);
    word = (word + 0x7fff + (word >> 16 & 1)) & 0xffff0000;
    memcpy(&x, &word, 4);
    return x;
}

static float as_float16(const uint8_t *at) {
    _Float16 half;
    memcpy(&half, at, 2);
    return (float)half;
}

/* Weights [N, K] in the layout of a kind; `stored` [N, K] is what they then are. */
static Product packed(int64_t kind, const float *weights, int64_t outputs, int64_t inputs, const float *bias, float *stored) {
    const int64_t tiles = (outputs + WIDTH - 1) / WIDTH, all = tiles * WIDTH;
    Product p = {.bias = bias, .inputs = inputs, .outputs = outputs, .kind = kind};
    uint8_t *to = calloc(all * (inputs + GROUP) * 4, 1);
    float *filled = calloc(all * inputs, 4);
    memcpy(filled, weights, outputs * inputs * sizeof(float));
    if (kind == INT8 || kind == INT4) pack_groups(kind, filled, tiles, inputs, to);
    for (int64_t n = 0; n < outputs; n++) {
        const int64_t tile = n / WIDTH, lane = n % WIDTH;
        for (int64_t k = 0; k < inputs; k++) {
            const float x = weights[n * inputs + k], rounded = as_bfloat16(x);
            uint32_t word;
            memcpy(&word, &rounded, 4);
            const uint16_t half = (uint16_t)(word >> 16);
            const int64_t groups = (inputs + GROUP - 1) / GROUP, i = k % GROUP;
            const uint8_t *group = to + (tile * groups + k / GROUP) * GROUP_BYTES(kind) * WIDTH;
            const uint8_t byte = group[2 * WIDTH + (i / 4 * WIDTH + lane) * 4 + i % 4]; /* of int8 */
            const uint8_t pair = group[2 * WIDTH + (i % 16 / 4 * WIDTH + lane) * 4 + i % 4];
            float *own = stored + n * inputs + k;
            switch (kind) {
                case FLOAT32: memcpy(to + ((tile * inputs + k) * WIDTH + lane) * 4, &x, 4); *own = x; break;
                case BFLOAT16:
                    memcpy(to + 2 * (PAIRED ? (tile * ((inputs + 1) / 2) + k / 2) * WIDTH * 2 + lane * 2 + k % 2
                                            : (tile * inputs + k) * WIDTH + lane), &half, 2);
                    *own = rounded;
                    break;
                case INT8: *own = (int8_t)(uint8_t)(byte - BYTE_ZERO) * as_float16(group + 2 * lane); break;
                default: *own = ((i < 16 ? pair & 15 : pair >> 4) - 8) * as_float16(group + 2 * lane);
            }
        }
    }
    free(filled);
    p.weights = to;
    return p;
}

/* An input as a kind multiplies it; `high`: the largest that it shares a quantum with. */
static float rounded_input(int64_t kind, float x, float high) {
    if (kind == FLOAT32 || (kind == BFLOAT16 && !PAIRED)) return x;
    if (kind == BFLOAT16) return as_bfloat16(x);
    if (high == 0) return 0;
    return rintf(x * (127.0f / high)) * (high / 127.0f);
}

/* Any superblocks of a file [N, K / 256], packed; `stored` [N, K] is what their weights are. */
static Product packed_superblocks(int64_t kind, int64_t outputs, int64_t inputs, const float *bias, float *stored) {
    const int64_t tiles = (outputs + WIDTH - 1) / WIDTH, count = inputs / 256;
    const int64_t bytes = kind == Q4_K ? 144 : kind == Q5_K ? 176 : 210, scale = kind == Q6_K ? 208 : 0;
    uint8_t *file = calloc(tiles * WIDTH * count, bytes), *to = malloc(tiles * WIDTH * count * 256);
    for (int64_t b = 0; b < outputs * count; b++) {
        uint8_t *block = file + b * bytes;
        for (int64_t i = 0; i < bytes; i++) block[i] = (uint8_t)(uniform() * 128);
        const _Float16 scales[2] = {(_Float16)(uniform() * 1e-3f), (_Float16)(uniform() * 1e-3f)};
        memcpy(block + scale, scales, kind == Q6_K ? 2 : 4);
    }
    pack_superblocks(kind, file, tiles, count, to);
    const Product p = {.weights = to, .bias = bias, .inputs = inputs, .outputs = outputs, .kind = kind};
    for (int64_t n = 0; n < outputs; n++) weight_rows(&p, &n, 1, stored + n * inputs);
    free(file);
    return p;
}

static void check_product(int64_t kind, int64_t outputs, int64_t inputs) {
    float *weights = numbers(outputs * inputs, 0.05f), *bias = numbers(outputs + WIDTH, 1), *x = numbers(MOST_ROWS * inputs, 3);
    float *stored = malloc(outputs * inputs * sizeof(float)), *out = malloc(MOST_ROWS * outputs * sizeof(float));
    float *alone = malloc(MOST_ROWS * outputs * sizeof(float));
    void *room = malloc(MOST_ROWS * (inputs + GROUP) * 4);
    const Product p = kind < Q4_K ? packed(kind, weights, outputs, inputs, bias, stored)
                                  : packed_superblocks(kind, outputs, inputs, bias, stored);
    product(&p, x, MOST_ROWS, STORE, out, outputs, room);
    for (int64_t row = 0; row < MOST_ROWS; row++) for (int64_t n = 0; n < outputs; n++) {
        double total = bias[n], size = 1;
        for (int64_t k = 0; k < inputs; k++) {
            const int64_t from = k / GROUP * GROUP, to = from + GROUP > inputs ? inputs : from + GROUP;
            float high = 0;
            for (int64_t i = from; i < to; i++) high = fabsf(x[row * inputs + i]) > high ? fabsf(x[row * inputs + i]) : high;
            const double one = (double)stored[n * inputs + k] * rounded_input(kind, x[row * inputs + k], high);
            total += one, size += fabs(one);
        }
        if (!(fabs(total - out[row * outputs + n]) <= 2e-6 * size)) {
            printf("%g instead of %g\n", out[row * outputs + n], total);
            fail("numbers", kind, outputs, inputs, MOST_ROWS);
            row = MOST_ROWS;
            break;
        }
    }
    for (int64_t rows = 1; rows < MOST_ROWS; rows++) {
        product(&p, x + (MOST_ROWS - rows) * inputs, rows, STORE, alone, outputs, room);
        if (memcmp(alone, out + (MOST_ROWS - rows) * outputs, rows * outputs * sizeof(float))) fail("bits", kind, outputs, inputs, rows);
    }
    free((void *)p.weights);
    free(weights), free(bias), free(x), free(stored), free(out), free(alone), free(room);
}

/* ---- A layer: one stream of TOKENS tokens ---- */

/* Sizes that fill vectors and leave a rest, several spans, and a window that begins within one. */
enum { TOKENS = 150, HEADS = 4, KV_HEADS = 2, SIZE = 88, HIDDEN = 40, INNER = 2 * WIDTH, BLOCKS = 10, WINDOW = 70 };
enum { ALL_HEADS = HEADS + 2 * KV_HEADS };

static void plain_product(const float *weights, const double *x, int64_t outputs, int64_t inputs, double *out) {
    for (int64_t n = 0; n < outputs; n++) {
        out[n] = 0;
        for (int64_t k = 0; k < inputs; k++) out[n] += (double)weights[n * inputs + k] * x[k];
    }
}

static void plain_norm(const float *scale, const double *x, double eps, double *out) {
    double squares = 0;
    for (int i = 0; i < HIDDEN; i++) squares += x[i] * x[i];
    for (int i = 0; i < HIDDEN; i++) out[i] = x[i] / sqrt(squares / HIDDEN + eps) * scale[i];
}

static void plain_layer(const Model *m, const float *norms, const float *qkv, const float *output, const float *up, const float *down,
                        double hidden[][HIDDEN]) {
    static double each[TOKENS][ALL_HEADS][SIZE];
    for (int t = 0; t < TOKENS; t++) {
        double normed[HIDDEN];
        plain_norm(norms, hidden[t], m->eps, normed);
        plain_product(qkv, normed, ALL_HEADS * SIZE, HIDDEN, each[t][0]);
        for (int h = 0; h < HEADS + KV_HEADS; h++) for (int i = 0; i < SIZE / 2; i++) {
            const double a = each[t][h][i], b = each[t][h][i + SIZE / 2], c = m->cos[t * SIZE / 2 + i], s = m->sin[t * SIZE / 2 + i];
            each[t][h][i] = a * c - b * s, each[t][h][i + SIZE / 2] = b * c + a * s;
        }
        for (int h = HEADS; m->halved && h < ALL_HEADS; h++) for (int i = 0; i < SIZE; i++)
            each[t][h][i] = (_Float16)each[t][h][i];
    }
    for (int t = 0; t < TOKENS; t++) {
        double attended[HEADS * SIZE] = {0}, normed[HIDDEN], more[HIDDEN], inner[2 * INNER];
        for (int h = 0; h < HEADS; h++) {
            const int kv = HEADS + h / (HEADS / KV_HEADS), first = t >= WINDOW ? t - WINDOW + 1 : 0;
            double weight = 0, sums[SIZE] = {0};
            for (int j = first; j <= t; j++) {
                double score = 0;
                for (int i = 0; i < SIZE; i++) score += each[t][h][i] * each[j][kv][i];
                const double share = exp(score * m->scaling);
                weight += share;
                for (int i = 0; i < SIZE; i++) sums[i] += share * each[j][kv + KV_HEADS][i];
            }
            for (int i = 0; i < SIZE; i++) attended[h * SIZE + i] = sums[i] / weight;
        }
        plain_product(output, attended, HIDDEN, HEADS * SIZE, more);
        for (int i = 0; i < HIDDEN; i++) hidden[t][i] += more[i];
        plain_norm(norms + HIDDEN, hidden[t], m->eps, normed);
        plain_product(up, normed, 2 * INNER, HIDDEN, inner); /* in each tile a half of gates, then one of the others */
        double gated[INNER];
        for (int i = 0; i < INNER; i++) {
            const int at = i / (WIDTH / 2) * WIDTH + i % (WIDTH / 2);
            gated[i] = inner[at] / (1 + exp(-inner[at])) * inner[at + WIDTH / 2];
        }
        plain_product(down, gated, HIDDEN, INNER, more);
        for (int i = 0; i < HIDDEN; i++) hidden[t][i] += more[i];
    }
}

/* Run the layer over the stream in steps of so many tokens. */
static void run_layer(const Model *m, const Layer *own, int64_t pieces, float *hidden) {
    static float normed[TOKENS * HIDDEN], qkv[TOKENS * ALL_HEADS * SIZE], attended[TOKENS * HEADS * SIZE], inner[TOKENS * INNER];
    static float room[TOKENS * HEADS * SIZE];
    const int64_t table[BLOCKS] = {2, 0, 1, 9, 8, 3, 5, 4, 7, 6};
    int64_t positions[TOKENS], slots[TOKENS];
    for (int64_t start = 0; start < TOKENS; start += pieces) {
        const int64_t count = start + pieces < TOKENS ? pieces : TOKENS - start;
        for (int64_t i = 0; i < count; i++)
            positions[i] = start + i, slots[i] = table[(start + i) / BLOCK] * BLOCK + (start + i) % BLOCK;
        const Group group = {NULL, positions, table, 1, count, BLOCKS};
        const Step step = {count, count, positions, slots, hidden + start * HIDDEN, normed, qkv, attended, inner, room, &group, 1};
        layers(m, own, 1, &step);
    }
}

static void check_layer(int64_t halved) {
    float *norms = numbers(2 * HIDDEN, 1), *qkv = numbers(ALL_HEADS * SIZE * HIDDEN, 0.5f), *out = numbers(HIDDEN * HEADS * SIZE, 0.3f);
    float *up = numbers(2 * INNER * HIDDEN, 0.3f), *down = numbers(HIDDEN * INNER, 0.3f), *cos_ = numbers(TOKENS * SIZE / 2, 1);
    float *sin_ = malloc(TOKENS * SIZE / 2 * sizeof(float)), *begin = numbers(TOKENS * HIDDEN, 1), *stored = malloc(1 << 20);
    float whole[TOKENS * HIDDEN], cut[TOKENS * HIDDEN];
    double expected[TOKENS][HIDDEN];
    for (int i = 0; i < TOKENS * SIZE / 2; i++) sin_[i] = sqrtf(1 - cos_[i] * cos_[i]);
    for (int i = 0; i < TOKENS * HIDDEN; i++) expected[i / HIDDEN][i % HIDDEN] = begin[i];
    const Model m = {.heads = HEADS, .kv_heads = KV_HEADS, .head_dim = SIZE, .hidden = HIDDEN, .inner = INNER, .gated = 1, .halved = halved,
                     .head_stride = (BLOCKS + 1) * BLOCK * SIZE, .cos = cos_, .sin = sin_, .eps = 1e-5f, .scaling = 0.02f};
    const Layer own = {
        .norm = norms, .mlp_norm = norms + HIDDEN, .window = WINDOW,
        .qkv = packed(FLOAT32, qkv, ALL_HEADS * SIZE, HIDDEN, NULL, stored),
        .output = packed(FLOAT32, out, HIDDEN, HEADS * SIZE, NULL, stored),
        .up = packed(FLOAT32, up, 2 * INNER, HIDDEN, NULL, stored),
        .down = packed(FLOAT32, down, HIDDEN, INNER, NULL, stored),
        .keys = calloc(KV_HEADS * m.head_stride, 4), .values = calloc(KV_HEADS * m.head_stride, 4),
    };
    plain_layer(&m, norms, qkv, out, up, down, expected);
    memcpy(whole, begin, sizeof whole);
    run_layer(&m, &own, TOKENS, whole);
    for (int i = 0; i < TOKENS * HIDDEN; i++) {
        const double right = expected[i / HIDDEN][i % HIDDEN];
        /* What float32 and double round to neighbours in float16 is off by a unit of its last place. */
        if (!(fabs(whole[i] - right) <= (halved ? 2e-4 : 2e-5) * (1 + fabs(right)))) {
            printf("%g instead of %g\n", whole[i], right);
            fail("layer", FLOAT32, HIDDEN, i / HIDDEN, TOKENS);
            break;
        }
    }
    for (int64_t pieces = 1; pieces < 100; pieces += 11) {
        memcpy(cut, begin, sizeof cut);
        run_layer(&m, &own, pieces, cut);
        if (memcmp(cut, whole, sizeof cut)) fail("layer's bits", FLOAT32, HIDDEN, pieces, TOKENS);
    }
}

/* Each number of float16, what lies in the middle of two, and what lies just beside that. */
static void check_float16(void) {
    const float side[2] = {1, -1};
    for (uint32_t word = 0; word < 0x7c00; word++) for (int negative = 0; negative < 2; negative++) {
        const int last = word == 0x7bff; /* beyond it there are no others */
        const uint16_t own = word | negative << 15, next = last ? own : own + 1, even = own % 2 ? next : own;
        const float number = float16_at(&own), middle = last ? side[negative] * 1e30f : (number + float16_at(&next)) / 2;
        if (nearest_float16(number) != own || nearest_float16(middle) != (last ? own : even)
            || nearest_float16(nextafterf(middle, 0)) != own || nearest_float16(nextafterf(middle, 2 * middle)) != next)
            fail("float16", word, negative, 0, 0);
    }
    const uint16_t none = nearest_float16(NAN), infinite = 0xfc00;
    if (float16_at(&none) == float16_at(&none) || float16_at(&infinite) != -INFINITY) fail("no numbers in float16", 0, 0, 0, 0);
}

int main(void) {
    check_float16();
    const int64_t shapes[][2] = {{1, 4}, {31, 48}, {64, 128}, {97, 260}, {40, 1}, {33, 77}, {130, 520}};
    for (int64_t kind = FLOAT32; kind <= INT4; kind++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            check_product(kind, shapes[i][0], shapes[i][1]);
    for (int64_t kind = Q4_K; kind <= Q6_K; kind++)
        for (int64_t outputs = 1; outputs < 200; outputs += 66) check_product(kind, outputs, 256 * (1 + outputs % 5));
    check_layer(0);
    check_layer(1);
    printf("%s\n", instructions());
    return failures != 0;
}
