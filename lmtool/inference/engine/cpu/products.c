/* Matrix products with packed weights, over plain arrays.

   Letters: T tokens (rows of inputs), K inputs and N outputs of a product.

   Weights lie in tiles of WIDTH outputs, N being filled up with zeros:
   float32   [K, WIDTH]
   bfloat16  [K / 2, WIDTH, 2] where the processor multiplies pairs (PAIRED), else [K, WIDTH]
   int8      [K / 32, 34 * WIDTH bytes]: of each GROUP of inputs WIDTH float16 scales, then [8, WIDTH, 4] bytes, BYTE_ZERO
             for zero
   int4      [K / 32, 18 * WIDTH bytes]: scales alike, then [4, WIDTH, 4] bytes; byte i of quarter s has input 4 s + i in
             its low bits and input 16 + 4 s + i in its high ones, 8 for zero
   Q4_K, Q5_K, Q6_K    [K / 256, bytes], see quantized.c

   A row of inputs becomes words of 4 bytes: a float32, a pair of bfloat16, or for quantized weights GROUP_WORDS a group.

   A row of a product is one chain of operations over K for each output, whatever the other rows are, and rounding
   an input depends on its own row alone. So a row has the same bits in any batch, also alone. */

#include "kernels.h"

INLINE vec silu(vec x) { return x / (exponential(-x) + 1.0f); }

/* The tanh approximation (arXiv:1606.08415): 0.5 (1 + tanh(u)) is the logistic function of 2 u. */
INLINE vec gelu(vec x) { return x / (exponential((x * x * x * 0.044715f + x) * -1.5957691216f) + 1.0f); }

/* The rows of `finish`. Mode and bias are known where this is compiled: a row is short. */
INLINE void finish_rows(const int64_t mode, const float *bias, const float *result, const Job *job, const Place *at) {
    const int vectors = mode == GATED ? VECTORS / 2 : VECTORS, width = vectors * LANES;
    const int64_t tokens = job->tokens, stride = job->stride, outputs = job->product->outputs;
    const int64_t from = mode == GATED ? at->column / 2 : at->column, all = mode == GATED ? outputs / 2 : outputs;
    const int64_t left = all - from < width ? all - from : width;
    float *to = job->out + from;
    for (int64_t row = 0; row < tokens; row++, result += WIDTH, to += stride) {
        vec value[VECTORS];
        UNROLL for (int v = 0; v < VECTORS; v++) {
            value[v] = load(result + v * LANES);
            if (bias) value[v] += load(bias + v * LANES);
            if (mode == GELU) value[v] = gelu(value[v]);
        }
        if (mode == GATED) UNROLL for (int v = 0; v < vectors; v++) value[v] = silu(value[v]) * value[v + VECTORS / 2];
        if (left == width) {
            UNROLL for (int v = 0; v < vectors; v++)
                store(to + v * LANES, mode == ADD ? load(to + v * LANES) + value[v] : value[v]);
            continue;
        }
        float part[WIDTH];
        UNROLL for (int v = 0; v < VECTORS; v++) store(part + v * LANES, value[v]);
        for (int64_t i = 0; i < left; i++) to[i] = mode == ADD ? to[i] + part[i] : part[i];
    }
}

#define FINISH(mode) \
    case mode: \
        if (bias) finish_rows(mode, bias, result, job, at); \
        else finish_rows(mode, NULL, result, job, at); \
        break;
void finish(const float *result, const Job *job, const Place *at) {
    const float *bias = job->product->bias ? job->product->bias + at->column : NULL;
    switch (job->mode) { FINISH(STORE) FINISH(ADD) FINISH(GATED) FINISH(GELU) }
}

INLINE vec widened(const uint16_t *at) {
    typedef uint32_t wide __attribute__((vector_size(LANES * 4)));
    return (vec)(__builtin_convertvector(*(const half *)at, wide) << 16);
}

/* total + x * w; of pairs, both products are added. */
INLINE vec accumulated(const int kind, vec total, ivec x, vec w) {
#if defined(__AVX512BF16__)
    if (kind == BFLOAT16) {
        __asm__("vdpbf16ps %2, %1, %0" : "+v"(total) : "v"(x), "v"(w));
        return total;
    }
#elif PAIRED
    if (kind == BFLOAT16)
        return (vec)vbfdotq_f32((float32x4_t)total, (bfloat16x8_t)(float32x4_t)w, (bfloat16x8_t)(int32x4_t)x);
#else
    (void)kind;
#endif
    return fused((vec)x, w, total);
}

/* Rows of a group, [size, rows], with weights [size, WIDTH], added to their results [rows, WIDTH]. */
INLINE void float_rows(const int rows, const int kind, const int stride, const float *inputs, const void *weights,
                       int64_t size, int64_t from, const Place *at, float *result) {
    vec total[ROWS][VECTORS];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < VECTORS; v++)
        total[r][v] = load(result + r * WIDTH + v * LANES);
    for (int64_t start = 0; start < size; start += stride) {
        const int64_t end = start + stride < size ? start + stride : size;
        fetch_next(at, from + start, stride);
        for (int64_t k = start; k < end; k++) {
            vec w[VECTORS];
            UNROLL for (int v = 0; v < VECTORS; v++) {
                const int64_t index = k * WIDTH + v * LANES;
                w[v] = kind == FLOAT32 || PAIRED ? load((const float *)weights + index)
                                                 : widened((const uint16_t *)weights + index);
            }
            UNROLL for (int r = 0; r < rows; r++) {
                const ivec x = repeated(inputs + k * rows + r);
                UNROLL for (int v = 0; v < VECTORS; v++) total[r][v] = accumulated(kind, total[r][v], x, w[v]);
            }
        }
    }
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < VECTORS; v++)
        store(result + r * WIDTH + v * LANES, total[r][v]);
}

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

/* ---- Any kind ---- */

/* A row [K] as bfloat16, the nearest; beside an odd last one stands 0. */
#if PAIRED
INLINE void halve_vector(const float *x, uint16_t *to) {
#if defined(__AVX512BF16__)
    half rounded;
    __asm__("vcvtneps2bf16 %1, %0" : "=v"(rounded) : "v"(load(x)));
    *(half *)to = rounded;
#else
    vst1_bf16((bfloat16_t *)to, vcvt_bf16_f32((float32x4_t)load(x)));
#endif
}

static void halve(const float *x, int64_t size, uint16_t *to) {
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) halve_vector(x + i, to + i);
    if (i == size) return;
    float rest[LANES] = {0};
    uint16_t rounded[LANES];
    memcpy(rest, x + i, (size - i) * sizeof(float));
    halve_vector(rest, rounded);
    memcpy(to + i, rounded, (size - i + 1) / 2 * sizeof(float));
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

/* Words of a row of inputs. */
static int64_t row_words(const Product *p) {
    switch (p->kind) {
        case BFLOAT16: return PAIRED ? (p->inputs + 1) / 2 : p->inputs;
        case FLOAT32: return p->inputs;
        default: return (p->inputs + GROUP - 1) / GROUP * GROUP_WORDS;
    }
}

/* Bytes of a tile of weights. */
static int64_t tile_bytes(const Product *p, int64_t words) {
    const BlockFormat *format = block_format(p->kind);
    if (format) return words / GROUP_WORDS / format->groups * format->bytes * WIDTH;
    return words * WIDTH * (p->kind == BFLOAT16 && !PAIRED ? 2 : 4);
}

/* A row of inputs [K] as words. */
static void round_row(const Product *p, const float *x, word *to) {
    if (block_format(p->kind)) quantize_groups(x, p->inputs, p->kind, (int32_t *)to);
    else halve(x, p->inputs, (uint16_t *)to);
}

/* See `product`; T is at most TOGETHER. */
static void multiply(const Product *p, const float *inputs, int64_t tokens, int64_t mode, float *out, int64_t stride,
                     void *room) {
    const int as_they_are = p->kind == FLOAT32 || (p->kind == BFLOAT16 && !PAIRED);
    const int64_t tiles = (p->outputs + WIDTH - 1) / WIDTH, groups = (tokens + ROWS - 1) / ROWS;
    const int64_t words = row_words(p), size = tile_bytes(p, words);
    const int grouped = block_format(p->kind) != NULL;
    const int64_t paces = grouped ? words / GROUP_WORDS : words;
    const int few = p->kind >= Q4_K ? 1 : FEW_ROWS; /* K-quants keep a processor busy for longer */
    const Job job = {p, room, tokens, groups, words, mode, out, stride};
#pragma omp parallel num_threads(team) if (tokens * p->inputs * p->outputs > PARALLEL_FROM)
    {
#pragma omp for schedule(static)
        for (int64_t group = 0; group < groups; group++) {
            const int64_t first = first_row(tokens, groups, group), rows = first_row(tokens, groups, group + 1) - first;
            const float *from = inputs + first * p->inputs;
            word *to = (word *)room + first * words;
            if (as_they_are) {
                pack((const word *)from, rows, words, to);
                continue;
            }
            word rounded[rows * words];
            for (int64_t r = 0; r < rows; r++) round_row(p, from + r * p->inputs, rounded + r * words);
            pack(rounded, rows, words, to);
        }
#pragma omp for schedule(static)
        for (int64_t tile = 0; tile < tiles; tile++) {
            Place at = {.weights = (const char *)p->weights + tile * size, .column = tile * WIDTH};
            at.next = at.weights + (tokens > few ? size : NEARBY);
            at.pace = size / paces / groups, at.near = groups > 2;
            (grouped ? block_tile : float_tile)(&job, &at);
        }
    }
}

void product(const Product *p, const float *inputs, int64_t tokens, int64_t mode, float *out, int64_t stride,
             void *room) {
    for (int64_t first = 0; first < tokens; first += TOGETHER) {
        const int64_t count = first + TOGETHER < tokens ? TOGETHER : tokens - first;
        multiply(p, inputs + first * p->inputs, count, mode, out + first * stride, stride, room);
    }
}

/* What the layout of weights depends on: outputs in a tile, and whether inputs stand two by two in bfloat16. */
int64_t tile_width(void) { return WIDTH; }
int64_t paired(void) { return PAIRED; }

/* Whether calls may use more than one thread. */
int64_t threaded(void) {
#if defined(_OPENMP)
    return 1;
#else
    return 0;
#endif
}

/* The instructions that these functions were compiled for, as people call them. */
const char *instructions(void) {
#if defined(__AVX512BF16__)
    return "AVX512-BF16";
#elif defined(__AVX512F__)
    return "AVX512";
#elif defined(__AVX2__)
    return "AVX2";
#elif defined(__ARM_NEON) && PAIRED
    return "NEON-BF16";
#elif defined(__ARM_NEON)
    return "NEON";
#else
    return "plain C";
#endif
}

/* ---- What is possible ---- */

static volatile float spin_sink;

/* Multiply and add in registers alone, `count` times a full tile: what no product can be faster than. Returns the number
   of operations, 2 for each multiply-add. */
int64_t spin(int64_t kind, int64_t count) {
    vec total[ROWS][VECTORS];
    ivec whole_total[ROWS][VECTORS];
    const uint8_t inputs[4] = {1, 0, 0, 0};
    const int bytes = block_format(kind) != NULL, pairs = kind == BFLOAT16 && PAIRED;
    for (int r = 0; r < ROWS; r++) for (int v = 0; v < VECTORS; v++) /* each another, or they would be computed once */
        total[r][v] = fill(r * VECTORS + v), whole_total[r][v] = (ivec){r * VECTORS + v};
    const ivec bytes_of = repeated(inputs), x = (ivec)fill(1.0f);
    if (bytes) {
        for (int64_t i = 0; i < count; i++)
            UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int v = 0; v < VECTORS; v++)
                whole_total[r][v] = four_bytes(whole_total[r][v], bytes_of, bytes_of);
    } else if (pairs) {
        for (int64_t i = 0; i < count; i++)
            UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int v = 0; v < VECTORS; v++)
                total[r][v] = accumulated(BFLOAT16, total[r][v], x, (vec)x);
    } else {
        for (int64_t i = 0; i < count; i++)
            UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int v = 0; v < VECTORS; v++)
                total[r][v] = accumulated(FLOAT32, total[r][v], x, (vec)x);
    }
    UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int v = 0; v < VECTORS; v++)
        spin_sink += total[r][v][0] + (float)whole_total[r][v][0];
    return count * ROWS * WIDTH * (bytes ? 8 : pairs ? 4 : 2);
}
