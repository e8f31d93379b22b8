/* The decoder layers of the compiled forward pass on CPU, over plain arrays.

   Letters: T tokens of the batch, H query heads, KV key heads, G = H / KV, D head size, K inputs and N outputs of a
   matrix product.

   Every number is computed by the same operations in the same order whatever else is in the batch and however many
   threads there are: a row of a product is one chain of multiply-adds over K for each output, a query's attention is
   one walk over its own stream's positions. So a stream's bits do not depend on its neighbours, not even on there
   being any.

   Compiled at load for the processor at hand, see library.py. Integers are int64 throughout, as in torch. */

#include <string.h>
#include <sys/mman.h>

#include "vectors.h"

/* A tile is VECTORS vectors of LANES outputs wide and at most ROWS rows high: what fits into the registers. */
#if defined(__AVX512F__)
#define ROWS 12
#else
#define ROWS 6
#endif
#define VECTORS 2
#define WIDTH (VECTORS * LANES)

#define BLOCK 16 /* positions in a block of the key-value cache */
#define PARTS (BLOCK / LANES)
#define SPAN (4 * BLOCK) /* positions that a query looks at together */
#define QUERIES (LANES / 2) /* that look together: what fits into the registers */
#define STRIDE 16 /* inputs between two looks at memory */
#define SHORT_STRIDE 2 /* the same for so few rows that memory is what is waited for */
#define FLOAT_PART 128 /* inputs whose weights in a tile stay in the nearest cache */
#define INT8_PART 512
#define TOGETHER 256 /* rows whose results of a tile are kept at once, on a thread's stack */
#define LINE 64 /* bytes of a cache line */

#if defined(__AVX512BF16__)
#define PAIRED 1 /* bfloat16 is multiplied two by two, inputs being rounded to it */
#else
#define PAIRED 0 /* it is widened to float32 */
#endif

enum { FLOAT32, BFLOAT16, INT8 };   /* what weights are stored as */
enum { STORE, ADD, GATED, GELU };   /* what becomes of a product */

typedef struct {
    const void *weights; /* tiles of WIDTH outputs, each [K, WIDTH]; int8 [K / 4, WIDTH, 4], PAIRED [K / 2, WIDTH, 2] */
    const float *scales; /* [N] of int8 weights */
    const int32_t *sums; /* [N] sums of an output's int8 weights */
    const float *bias;   /* [N] or NULL */
    int64_t inputs, outputs, kind;
} Product;

typedef struct {
    const float *norm, *norm_bias;
    Product qkv;
    const float *head_norm; /* [H + KV, D] or NULL */
    Product output;
    const float *mlp_norm, *mlp_norm_bias;
    Product up; /* gated: in each tile a vector of gates, then one of what they let through */
    Product down;
    int64_t window; /* how many positions back a query sees, itself included; 0: all */
    float *keys;   /* [KV, blocks, D, BLOCK] */
    float *values; /* [KV, blocks, BLOCK, D] */
} Layer;

typedef struct {
    int64_t heads, kv_heads, head_dim, hidden, inner, head_stride; /* head_stride: numbers from one KV head to the next */
    int64_t centred; /* norms: 1 subtracts the mean (layer norm), 0 does not (RMS norm) */
    int64_t gated;   /* MLP: 1 SiLU-gated, 0 tanh-GELU */
    const float *cos, *sin; /* [context, D / 2], or NULL for no rotation */
    float eps, scaling;
} Model;

typedef struct { /* parts of streams, each of as many consecutive queries */
    const int64_t *rows;      /* [count, queries] in the batch, or NULL: in order */
    const int64_t *positions; /* [count, queries] */
    const int64_t *table;     /* [count, width] blocks */
    int64_t count, queries, width;
} Group;

typedef struct {
    int64_t tokens, stored; /* stored: how many of them have a place in the cache */
    const int64_t *positions, *slots;
    float *hidden, *normed, *qkv, *attended, *inner;
    void *room;   /* for the inputs of a product, 4 bytes each */
    float *steps; /* [T] room for their scales, where they are quantized */
    const Group *groups;
    int64_t group_count;
} Step;

int team = 1;

/* How many threads each of the following calls may use. */
void use_threads(int64_t count) { team = (int)count; }

static void advise(void *at, int64_t size, uintptr_t page, int advice) {
    const uintptr_t from = ((uintptr_t)at + page - 1) & ~(page - 1), to = ((uintptr_t)at + (uintptr_t)size) & ~(page - 1);
    if (from < to) madvise((void *)from, to - from, advice);
}

/* Memory that is read from end to end again and again: large pages save address translations. */
void prefer_large_pages(void *at, int64_t size) {
#if defined(MADV_HUGEPAGE)
    advise(at, size, 1 << 21, MADV_HUGEPAGE);
#else
    (void)at, (void)size;
#endif
}

/* Memory that is not read any more: pages of a mapped file need not stay. It keeps its content. */
void page_out(void *at, int64_t size) {
#if defined(MADV_PAGEOUT)
    advise(at, size, 1 << 12, MADV_PAGEOUT);
#else
    (void)at, (void)size;
#endif
}

INLINE vec silu(vec x) { return x / (exponential(-x) + 1.0f); }

/* The tanh approximation (arXiv:1606.08415): 0.5 (1 + tanh(u)) is the logistic function of 2 u. */
INLINE vec gelu(vec x) { return x / (exponential((x * x * x * 0.044715f + x) * -1.5957691216f) + 1.0f); }

/* ---- Matrix products ---- */

typedef struct {
    const Product *product;
    const void *inputs; /* groups of rows, each [words, rows] of 4 bytes: a float32, a pair of bfloat16 or 4 of int8 */
    const float *steps; /* [T], for int8: what one quantum of a row is worth */
    int64_t tokens, groups, words;
    int64_t mode;
    float *out; /* [T, stride] */
    int64_t stride;
} Job;

typedef struct {
    const char *weights; /* of the tile */
    const char *next;    /* of the next one: what to ask memory for while we compute */
    int64_t pace;        /* so many bytes of `next` for each input */
    int64_t column;      /* first output */
} Place;

/* The first row of a group; the groups are of nearly equal height. */
INLINE int64_t first_row(int64_t tokens, int64_t groups, int64_t group) { return tokens * group / groups; }

/* Store the results [T, WIDTH] of a tile as the job wants them. */
static void finish(const float *result, const Job *job, const Place *at) {
    const Product *p = job->product;
    const int64_t gated = job->mode == GATED, width = gated ? LANES : WIDTH;
    const int64_t from = gated ? at->column / VECTORS : at->column, all = gated ? p->outputs / VECTORS : p->outputs;
    const int64_t left = all - from < width ? all - from : width;
    for (int64_t row = 0; row < job->tokens; row++, result += WIDTH) {
        float *to = job->out + row * job->stride + from, part[WIDTH];
        for (int v = 0; v < VECTORS; v++) {
            vec value = load(result + v * LANES);
            if (p->bias) value += load(p->bias + at->column + v * LANES);
            store(part + v * LANES, job->mode == GELU ? gelu(value) : value);
        }
        if (gated) store(part, silu(load(part)) * load(part + LANES));
        for (int64_t i = 0; i < left; i++) to[i] = job->mode == ADD ? to[i] + part[i] : part[i];
    }
}

/* Ask memory for the part of the next tile that belongs to `count` inputs from k on. */
INLINE void fetch(const Place *at, int64_t k, int64_t count) {
    const char *from = at->next + k * at->pace, *to = from + count * at->pace;
    for (; from < to; from += LINE) __builtin_prefetch(from, 0, 2);
}

INLINE vec widened(const uint16_t *at) {
    typedef uint32_t wide __attribute__((vector_size(LANES * 4)));
    return (vec)(__builtin_convertvector(*(const half *)at, wide) << 16);
}

/* The word at `at` in each lane, whatever it means: arithmetic would not keep the bits of every pair. */
INLINE vec repeated(const float *at) {
    int32_t word;
    memcpy(&word, at, 4);
    return (vec)(word - (ivec){0});
}

/* total + x * w; of pairs, both products are added. */
INLINE vec accumulated(const int kind, vec total, vec x, vec w) {
#if PAIRED
    if (kind == BFLOAT16) {
        __asm__("vdpbf16ps %2, %1, %0" : "+v"(total) : "v"(x), "v"(w));
        return total;
    }
#else
    (void)kind;
#endif
    return fused(x, w, total);
}

/* Rows of a group, [size, rows], with weights [size, WIDTH], added to their results [rows, WIDTH]. */
INLINE void float_rows(const int rows, const int kind, const int stride, const float *inputs, const void *weights,
                       int64_t size, int64_t from, const Place *at, float *result) {
    vec total[ROWS][VECTORS];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < VECTORS; v++)
        total[r][v] = load(result + r * WIDTH + v * LANES);
    for (int64_t start = 0; start < size; start += stride) {
        const int64_t end = start + stride < size ? start + stride : size;
        fetch(at, from + start, stride);
        for (int64_t k = start; k < end; k++) {
            vec w[VECTORS];
            UNROLL for (int v = 0; v < VECTORS; v++) {
                const int64_t index = k * WIDTH + v * LANES;
                w[v] = kind == FLOAT32 || PAIRED ? load((const float *)weights + index)
                                                 : widened((const uint16_t *)weights + index);
            }
            UNROLL for (int r = 0; r < rows; r++) {
                vec x = repeated(inputs + k * rows + r);
                UNROLL for (int v = 0; v < VECTORS; v++) total[r][v] = accumulated(kind, total[r][v], x, w[v]);
            }
        }
    }
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < VECTORS; v++)
        store(result + r * WIDTH + v * LANES, total[r][v]);
}

#define EACH_COUNT(CASE, ...) \
    CASE(1, __VA_ARGS__) CASE(2, __VA_ARGS__) CASE(3, __VA_ARGS__) CASE(4, __VA_ARGS__) CASE(5, __VA_ARGS__) \
    CASE(6, __VA_ARGS__) CASE(7, __VA_ARGS__) CASE(8, __VA_ARGS__) CASE(9, __VA_ARGS__) CASE(10, __VA_ARGS__) \
    CASE(11, __VA_ARGS__) CASE(12, __VA_ARGS__)
#define FLOAT_CASE(n, kind, stride) \
    case n: if (n <= ROWS) float_rows(n, kind, stride, inputs, weights, size, from, at, result); break;
#define FLOAT_GROUP(name, kind, stride) \
    static void name(int64_t rows, const float *inputs, const void *weights, int64_t size, int64_t from, \
                     const Place *at, float *result) { switch (rows) { EACH_COUNT(FLOAT_CASE, kind, stride) } }
FLOAT_GROUP(float_group, FLOAT32, STRIDE)
FLOAT_GROUP(only_float_group, FLOAT32, SHORT_STRIDE)
#if PAIRED
FLOAT_GROUP(half_group, BFLOAT16, STRIDE)
#else
#define half_group float_group /* its weights were widened */
#endif
FLOAT_GROUP(only_half_group, BFLOAT16, SHORT_STRIDE)

/* Of several groups each takes one part of the weights after the other, which so stays near for all of them; bfloat16
   is widened once. */
static void float_groups(const Job *job, const Place *at, float *result) {
    const int64_t words = job->words;
    const int kind = job->product->kind;
    float wide[FLOAT_PART * WIDTH];
    for (int64_t from = 0; from < words; from += FLOAT_PART) {
        const int64_t size = from + FLOAT_PART < words ? FLOAT_PART : words - from;
        const float *weights = (const float *)at->weights + from * WIDTH;
        if (kind == BFLOAT16 && !PAIRED) {
            const uint16_t *own = (const uint16_t *)at->weights + from * WIDTH;
            for (int64_t i = 0; i < size * WIDTH; i += LANES) store(wide + i, widened(own + i));
            weights = wide;
        }
        for (int64_t group = 0; group < job->groups; group++) {
            const int64_t first = first_row(job->tokens, job->groups, group);
            const int64_t rows = first_row(job->tokens, job->groups, group + 1) - first;
            Place own = *at;
            own.next += words * own.pace * group;
            (kind == BFLOAT16 ? half_group : float_group)(
                rows, (const float *)job->inputs + first * words + from * rows, weights, size, from, &own,
                result + first * WIDTH);
        }
    }
}

static void float_tile(const Job *job, const Place *at) {
    float result[job->tokens * WIDTH];
    memset(result, 0, sizeof result);
    if (job->groups > 1) float_groups(job, at, result);
    else
        (job->product->kind == BFLOAT16 ? only_half_group : only_float_group)(job->tokens, job->inputs, at->weights,
                                                                              job->words, 0, at, result);
    finish(result, job, at);
}

/* Four products of bytes, inputs from 1 to 255 by signed weights, added to each number of `total`. Without an
   instruction for that, floats are multiplied: as exact, up to sums of 2^24. */
#if defined(__AVX512VNNI__)
typedef ivec sums;
INLINE sums four(sums total, const uint8_t *inputs, ivec weights) {
    int32_t x;
    memcpy(&x, inputs, 4);
    __asm__("vpdpbusd %2, %1, %0" : "+v"(total) : "v"(x - (ivec){0}), "v"(weights));
    return total;
}
INLINE vec whole(sums total, ivec weights) { return __builtin_convertvector(total - weights * 128, vec); }
#else
typedef vec sums;
INLINE sums four(sums total, const uint8_t *inputs, ivec weights) {
    UNROLL for (int i = 0; i < 4; i++)
        total += (float)(inputs[i] - 128) * __builtin_convertvector((weights << (24 - 8 * i)) >> 24, vec);
    return total;
}
INLINE vec whole(sums total, ivec weights) { (void)weights; return total; }
#endif

/* As `float_rows`: inputs [size / 4, rows, 4], weights [size / 4, WIDTH, 4]. */
INLINE void int8_rows(const int rows, const uint8_t *inputs, const int8_t *weights, int64_t size, int64_t from,
                      const Place *at, sums *result) {
    sums total[ROWS][VECTORS];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < VECTORS; v++)
        total[r][v] = result[r * VECTORS + v];
    for (int64_t start = 0; start < size; start += STRIDE) {
        const int64_t end = start + STRIDE < size ? start + STRIDE : size;
        fetch(at, from + start, STRIDE);
        for (int64_t k = start; k < end; k += 4) {
            ivec w[VECTORS];
            UNROLL for (int v = 0; v < VECTORS; v++) memcpy(w + v, weights + k * WIDTH + v * 4 * LANES, sizeof(ivec));
            UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < VECTORS; v++)
                total[r][v] = four(total[r][v], inputs + k * rows + 4 * r, w[v]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < VECTORS; v++)
        result[r * VECTORS + v] = total[r][v];
}

#define INT8_CASE(n, ...) case n: if (n <= ROWS) int8_rows(n, inputs, weights, size, from, at, result); break;
static void int8_group(int64_t rows, const uint8_t *inputs, const int8_t *weights, int64_t size, int64_t from,
                       const Place *at, sums *result) {
    switch (rows) { EACH_COUNT(INT8_CASE, 0) }
}

static void int8_tile(const Job *job, const Place *at) {
    const Product *p = job->product;
    const int64_t inputs = p->inputs, part = job->groups > 1 ? INT8_PART : inputs;
    sums total[job->tokens * VECTORS];
    float result[job->tokens * WIDTH];
    memset(total, 0, sizeof total);
    for (int64_t from = 0; from < inputs; from += part) {
        const int64_t size = from + part < inputs ? part : inputs - from;
        const int8_t *weights = (const int8_t *)at->weights + from * WIDTH;
        for (int64_t group = 0; group < job->groups; group++) {
            const int64_t first = first_row(job->tokens, job->groups, group);
            const int64_t rows = first_row(job->tokens, job->groups, group + 1) - first;
            Place own = *at;
            own.next += inputs * own.pace * group;
            int8_group(rows, (const uint8_t *)job->inputs + first * inputs + from * rows, weights, size, from, &own,
                       total + first * VECTORS);
        }
    }
    for (int v = 0; v < VECTORS; v++) {
        const int64_t column = at->column + v * LANES;
        ivec weights;
        memcpy(&weights, p->sums + column, sizeof(ivec));
        vec scale = load(p->scales + column);
        for (int64_t row = 0; row < job->tokens; row++)
            store(result + row * WIDTH + v * LANES, whole(total[row * VECTORS + v], weights) * (scale * job->steps[row]));
    }
    finish(result, job, at);
}

/* A row [K] as whole numbers from 1 to 255, 128 for zero; returns what one quantum is worth. */
static float quantize(const float *x, int64_t size, uint8_t *to) {
    const float magic = 12582912.0f;
    vec most = {0};
    float high = 0;
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) most = highest(most, highest(load(x + i), -load(x + i)));
    for (int j = 0; j < LANES; j++) high = most[j] > high ? most[j] : high;
    for (; i < size; i++) high = fabsf(x[i]) > high ? fabsf(x[i]) : high;
    const float step = high > 0 ? high / 127.0f : 1.0f, inverse = 1.0f / step;
    for (i = 0; i + LANES <= size; i += LANES) {
        vec rounded = (load(x + i) * inverse + magic) - magic;
        *(bytes *)(to + i) = __builtin_convertvector(__builtin_convertvector(rounded, ivec) + 128, bytes);
    }
    for (; i < size; i++) to[i] = (uint8_t)(((x[i] * inverse + magic) - magic) + 128);
    return step;
}

/* A row [K] as bfloat16, the nearest; beside an odd last one stands 0. */
#if PAIRED
static void halve(const float *x, int64_t size, uint16_t *to) {
    int64_t i = 0;
    half rounded;
    for (; i + LANES <= size; i += LANES) {
        __asm__("vcvtneps2bf16 %1, %0" : "=v"(rounded) : "v"(load(x + i)));
        *(half *)(to + i) = rounded;
    }
    if (i == size) return;
    float rest[LANES] = {0};
    memcpy(rest, x + i, (size - i) * sizeof(float));
    __asm__("vcvtneps2bf16 %1, %0" : "=v"(rounded) : "v"(load(rest)));
    memcpy(to + i, &rounded, (size - i + 1) / 2 * sizeof(float));
}
#else
#define halve(x, size, to) (void)0
#endif

typedef uint32_t word __attribute__((may_alias)); /* four bytes, whatever they mean */

/* A group of rows, each [words], side by side: [words, rows]. */
static void pack(const word *from, int64_t rows, int64_t words, word *to) {
    for (int64_t start = 0; start < words; start += STRIDE) {
        const int64_t end = start + STRIDE < words ? start + STRIDE : words;
        for (int64_t r = 0; r < rows; r++)
            for (int64_t i = start; i < end; i++) to[i * rows + r] = from[r * words + i];
    }
}

/* See `product`; T is at most TOGETHER. */
static void multiply(const Product *p, const float *inputs, int64_t tokens, int64_t mode, float *out, int64_t stride,
                     void *room, float *steps) {
    const int pairs = p->kind == BFLOAT16 && PAIRED, each = p->kind == INT8 ? 4 : pairs ? 2 : 1;
    const int64_t tiles = (p->outputs + WIDTH - 1) / WIDTH, groups = (tokens + ROWS - 1) / ROWS;
    const int64_t words = (p->inputs + each - 1) / each, line = WIDTH * (p->kind == BFLOAT16 && !PAIRED ? 2 : 4);
    const Job job = {p, room, steps, tokens, groups, words, mode, out, stride};
#pragma omp parallel num_threads(team) if (tokens * p->inputs * p->outputs > PARALLEL_FROM)
    {
#pragma omp for schedule(static)
        for (int64_t group = 0; group < groups; group++) {
            const int64_t first = first_row(tokens, groups, group), rows = first_row(tokens, groups, group + 1) - first;
            const float *from = inputs + first * p->inputs;
            word *to = (word *)room + first * words;
            if (each == 1) {
                pack((const word *)from, rows, words, to);
                continue;
            }
            word rounded[rows * words];
            for (int64_t r = 0; r < rows; r++) {
                if (pairs) halve(from + r * p->inputs, p->inputs, (uint16_t *)(rounded + r * words));
                else steps[first + r] = quantize(from + r * p->inputs, p->inputs, (uint8_t *)(rounded + r * words));
            }
            pack(rounded, rows, words, to);
        }
#pragma omp for schedule(static)
        for (int64_t tile = 0; tile < tiles; tile++) {
            Place at = {.weights = (const char *)p->weights + tile * words * line, .column = tile * WIDTH};
            at.next = at.weights + words * line, at.pace = line / (p->kind == INT8 ? 4 : 1) / groups;
            (p->kind == INT8 ? int8_tile : float_tile)(&job, &at);
        }
    }
}

/* inputs [T, K] to out [T, stride]; K is a multiple of 4 for int8. room: of 4 * TOGETHER * K bytes, or 4 * T * K where
   that is less. steps [TOGETHER]: room, too. */
void product(const Product *p, const float *inputs, int64_t tokens, int64_t mode, float *out, int64_t stride,
             void *room, float *steps) {
    for (int64_t first = 0; first < tokens; first += TOGETHER) {
        const int64_t count = first + TOGETHER < tokens ? TOGETHER : tokens - first;
        multiply(p, inputs + first * p->inputs, count, mode, out + first * stride, stride, room, steps);
    }
}

/* ---- Norms ---- */

INLINE void normed(const float *x, const float *scale, const float *bias, int64_t size, int64_t centred, float eps,
                   float *out) {
    vec sums = {0}, squares = {0};
    float rest = 0, mean = 0;
    int64_t i = 0;
    if (centred) {
        for (; i + LANES <= size; i += LANES) sums += load(x + i);
        for (; i < size; i++) rest += x[i];
        mean = (sum(sums) + rest) / size;
    }
    for (i = 0, rest = 0; i + LANES <= size; i += LANES) {
        vec off = load(x + i) - mean;
        squares += off * off;
    }
    for (; i < size; i++) rest += (x[i] - mean) * (x[i] - mean);
    const float factor = 1.0f / sqrtf((sum(squares) + rest) / size + eps);
    for (i = 0; i + LANES <= size; i += LANES) {
        vec value = (load(x + i) - mean) * factor * load(scale + i);
        store(out + i, bias ? value + load(bias + i) : value);
    }
    for (; i < size; i++) out[i] = (x[i] - mean) * factor * scale[i] + (bias ? bias[i] : 0);
}

/* RMS norm (arXiv:1910.07467), or layer norm where `centred`, of rows [T, size]. */
void norm(const float *inputs, const float *scale, const float *bias, int64_t tokens, int64_t size, int64_t centred,
          float eps, float *out) {
#pragma omp parallel for num_threads(team) schedule(static) if (tokens * size > PARALLEL_FROM)
    for (int64_t row = 0; row < tokens; row++)
        normed(inputs + row * size, scale, bias, size, centred, eps, out + row * size);
}

/* ---- Attention ---- */

/* Rotate one head (arXiv:2104.09864), halves paired. */
INLINE void rotate(float *head, const float *cos, const float *sin, int64_t half_size) {
    int64_t i = 0;
    for (; i + LANES <= half_size; i += LANES) {
        vec a = load(head + i), b = load(head + half_size + i), c = load(cos + i), s = load(sin + i);
        store(head + i, a * c - b * s);
        store(head + half_size + i, b * c + a * s);
    }
    for (; i < half_size; i++) {
        const float a = head[i], b = head[half_size + i];
        head[i] = a * cos[i] - b * sin[i];
        head[half_size + i] = b * cos[i] + a * sin[i];
    }
}

/* Norm and rotate queries and keys where they stand, and store keys and values. */
static void place(const Model *m, const Layer *layer, const Step *step) {
    const int64_t size = m->head_dim, heads = m->heads + 2 * m->kv_heads;
#pragma omp parallel for num_threads(team) schedule(static) if (step->tokens * heads * size > PARALLEL_FROM)
    for (int64_t row = 0; row < step->tokens; row++) {
        float *qkv = step->qkv + row * heads * size;
        const int64_t turn = step->positions[row] * (size / 2);
        for (int64_t head = 0; head < m->heads + m->kv_heads; head++) {
            float *at = qkv + head * size;
            if (layer->head_norm) normed(at, layer->head_norm + head * size, 0, size, 0, m->eps, at);
            if (m->cos) rotate(at, m->cos + turn, m->sin + turn, size / 2);
        }
        if (row >= step->stored) continue;
        for (int64_t head = 0; head < m->kv_heads; head++) {
            const int64_t slot = step->slots[row], to = head * m->head_stride + slot * size;
            const float *key = qkv + (m->heads + head) * size;
            float *keys = layer->keys + to - slot % BLOCK * size + slot % BLOCK;
            for (int64_t i = 0; i < size; i++) keys[i * BLOCK] = key[i];
            memcpy(layer->values + to, key + m->kv_heads * size, size * sizeof(float));
        }
    }
}

/* Up to QUERIES queries of one key head on their way over their stream's positions, SPAN of them at a time, the softmax
   kept up as they go (arXiv:2112.05682). Each span is whole for each of them: what one may not see weighs 0. So a
   query's numbers come about in the same way alone and beside others. */
typedef struct {
    const float *packed;       /* [D, QUERIES], the queries */
    float *out[QUERIES];       /* [D] */
    int64_t position[QUERIES]; /* never falls */
    float most[QUERIES];       /* highest score so far */
    vec weight[QUERIES];       /* its lanes' sum: of all shares so far */
    int64_t rows;
} Look;

/* packed: [D, QUERIES]. keys: a block's. */
INLINE void score(const int rows, const float *packed, const float *keys, int64_t size, float scores[][SPAN]) {
    vec total[QUERIES][PARTS][2];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int p = 0; p < PARTS; p++) UNROLL for (int k = 0; k < 2; k++)
        total[r][p][k] = (vec){0};
    for (int64_t i = 0; i < size; i += 2) { /* two chains of sums: a chain alone would wait for itself */
        UNROLL for (int k = 0; k < 2; k++) UNROLL for (int p = 0; p < PARTS; p++) {
            vec key = load(keys + (i + k) * BLOCK + p * LANES);
            UNROLL for (int r = 0; r < rows; r++)
                total[r][p][k] = fused(fill(packed[(i + k) * QUERIES + r]), key, total[r][p][k]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int p = 0; p < PARTS; p++)
        store(scores[r] + p * LANES, total[r][p][0] + total[r][p][1]);
}

/* Scores of `count` positions from `start` on become shares, as far as they count. */
INLINE void weigh(const Model *m, int64_t window, int64_t position, int64_t start, int count, float *scores,
                  float *most, vec *weight, float *keep) {
    ivec place;
    float lanes[LANES];
    for (int lane = 0; lane < LANES; lane++) place[lane] = lane;
    const int32_t last = (int32_t)(position - start), before = window ? last - (int32_t)window : -1;
    vec high = fill(*most), total = {0};
    for (int i = 0; i < count; i += LANES) {
        const ivec at = place + i;
        vec own = choose((at <= last) & (at > before), load(scores + i) * m->scaling, fill(-INFINITY));
        store(scores + i, own);
        high = highest(high, own);
    }
    store(lanes, high);
    UNROLL for (int half = LANES / 2; half; half /= 2) UNROLL for (int i = 0; i < half; i++)
        lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
    const float top = lanes[0];
    for (int i = 0; i < count; i += LANES) {
        vec own = load(scores + i);
        own = choose(own == -INFINITY, (vec){0}, exponential(own - top));
        store(scores + i, own);
        total += own;
    }
    *keep = *most == top ? 1.0f : *most == -INFINITY ? 0.0f : exponential(fill(*most - top))[0];
    *weight = fused(*weight, fill(*keep), total);
    *most = top;
}

/* values: of each block in the span. */
INLINE void mix(const int rows, const Look *look, const float *const *values, int blocks, int64_t size,
                float shares[][SPAN], const float *keep) {
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) {
        vec total[QUERIES];
        UNROLL for (int r = 0; r < rows; r++) total[r] = load(look->out[r] + i) * keep[r];
        for (int block = 0; block < blocks; block++) for (int j = 0; j < BLOCK; j++) {
            vec value = load(values[block] + j * size + i);
            UNROLL for (int r = 0; r < rows; r++)
                total[r] = fused(fill(shares[r][block * BLOCK + j]), value, total[r]);
        }
        UNROLL for (int r = 0; r < rows; r++) store(look->out[r] + i, total[r]);
    }
    for (; i < size; i++) for (int r = 0; r < rows; r++) {
        float total = look->out[r][i] * keep[r];
        for (int j = 0; j < blocks * BLOCK; j++)
            total = fused(fill(shares[r][j]), fill(values[j / BLOCK][j % BLOCK * size + i]), fill(total))[0];
        look->out[r][i] = total;
    }
}

INLINE void look_rows(const int rows, const Model *m, const Layer *layer, Look *look, const int64_t *at, int64_t start,
                      int blocks) {
    const int64_t size = m->head_dim;
    const float *values[SPAN / BLOCK];
    float keep[QUERIES], scores[QUERIES][SPAN];
    for (int block = 0; block < blocks; block++) {
        float(*own)[SPAN] = (float(*)[SPAN])(scores[0] + block * BLOCK);
        score(rows, look->packed, layer->keys + at[block], size, own);
        values[block] = layer->values + at[block];
    }
    for (int r = 0; r < rows; r++)
        weigh(m, layer->window, look->position[r], start, blocks * BLOCK, scores[r], look->most + r, look->weight + r,
              keep + r);
    mix(rows, look, values, blocks, size, scores, keep);
}

/* at: where the keys of each block begin, from position `start` on. */
#define LOOK_CASE(n) case n: if (n <= QUERIES) look_rows(n, m, layer, look, at, start, blocks); break;
static void look_at(const Model *m, const Layer *layer, Look *look, const int64_t *at, int64_t start, int blocks) {
    switch (look->rows) {
        LOOK_CASE(1) LOOK_CASE(2) LOOK_CASE(3) LOOK_CASE(4) LOOK_CASE(5) LOOK_CASE(6) LOOK_CASE(7) LOOK_CASE(8)
    }
}

/* All queries of a unit under one key head; a span's keys and values stay in the cache for all of them. */
static void attend_unit(const Model *m, const Layer *layer, const Step *step, const Group *group, int64_t unit,
                        int64_t kv_head) {
    const int64_t size = m->head_dim, each = m->heads / m->kv_heads, all = m->heads + 2 * m->kv_heads;
    const int64_t *positions = group->positions + unit * group->queries, *table = group->table + unit * group->width;
    const int64_t rows = group->queries * each, count = (rows + QUERIES - 1) / QUERIES, window = layer->window;
    const int64_t first = window && positions[0] >= window ? positions[0] - window + 1 : 0;
    const int64_t end = positions[group->queries - 1] / BLOCK + 1;
    float packed[count * size * QUERIES];
    Look looks[count];
    for (int64_t row = 0; row < rows; row++) {
        const int64_t one = row / each, head = kv_head * each + row % each, r = row % QUERIES;
        const int64_t token = group->rows ? group->rows[unit * group->queries + one] : unit * group->queries + one;
        const float *query = step->qkv + (token * all + head) * size;
        Look *look = looks + row / QUERIES;
        float *own = packed + row / QUERIES * size * QUERIES;
        look->packed = own, look->rows = r + 1;
        look->out[r] = step->attended + (token * m->heads + head) * size;
        look->position[r] = positions[one], look->most[r] = -INFINITY, look->weight[r] = (vec){0};
        for (int64_t i = 0; i < size; i++) own[i * QUERIES + r] = query[i], look->out[r][i] = 0;
    }
    for (int64_t start = first / SPAN * (SPAN / BLOCK); start < end; start += SPAN / BLOCK) {
        const int blocks = end - start < SPAN / BLOCK ? (int)(end - start) : SPAN / BLOCK;
        int64_t at[SPAN / BLOCK];
        for (int i = 0; i < blocks; i++) at[i] = kv_head * m->head_stride + table[start + i] * BLOCK * size;
        for (int64_t i = 0; i < count; i++) look_at(m, layer, looks + i, at, start * BLOCK, blocks);
    }
    for (int64_t row = 0; row < rows; row++) {
        const Look *look = looks + row / QUERIES;
        const float weight = sum(look->weight[row % QUERIES]);
        for (int64_t i = 0; i < size; i++) look->out[row % QUERIES][i] /= weight;
    }
}

static void attend(const Model *m, const Layer *layer, const Step *step, const Group *group) {
    const int64_t work = group->count * group->queries * group->width * BLOCK * m->heads * m->head_dim;
#pragma omp parallel for num_threads(team) schedule(dynamic, 1) if (work > 4 * PARALLEL_FROM)
    for (int64_t task = 0; task < group->count * m->kv_heads; task++)
        attend_unit(m, layer, step, group, task / m->kv_heads, task % m->kv_heads);
}

/* ---- Layers ---- */

static void layer(const Model *m, const Layer *own, const Step *step) {
    const int64_t tokens = step->tokens;
    norm(step->hidden, own->norm, own->norm_bias, tokens, m->hidden, m->centred, m->eps, step->normed);
    product(&own->qkv, step->normed, tokens, STORE, step->qkv, own->qkv.outputs, step->room, step->steps);
    place(m, own, step);
    for (int64_t group = 0; group < step->group_count; group++) attend(m, own, step, step->groups + group);
    product(&own->output, step->attended, tokens, ADD, step->hidden, m->hidden, step->room, step->steps);
    norm(step->hidden, own->mlp_norm, own->mlp_norm_bias, tokens, m->hidden, m->centred, m->eps, step->normed);
    product(&own->up, step->normed, tokens, m->gated ? GATED : GELU, step->inner, m->inner, step->room,
            step->steps);
    product(&own->down, step->inner, tokens, ADD, step->hidden, m->hidden, step->room, step->steps);
}

/* All layers, over the hidden states in place. */
void layers(const Model *m, const Layer *all, int64_t count, const Step *step) {
    for (int64_t index = 0; index < count; index++) layer(m, all + index, step);
}

/* What the layout of weights depends on: outputs in a tile, and whether inputs stand two by two in bfloat16. */
int64_t tile_width(void) { return WIDTH; }
int64_t paired(void) { return PAIRED; }

/* The instructions that these functions were compiled for, as people call them. */
const char *instructions(void) {
#if PAIRED
    return "AVX512-BF16";
#elif defined(__AVX512F__)
    return "AVX512";
#elif defined(__AVX2__)
    return "AVX2";
#elif defined(__ARM_NEON)
    return "NEON";
#else
    return "plain C";
#endif
}
