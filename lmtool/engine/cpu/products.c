/* Matrix products with packed weights, over plain arrays.

   Letters: T tokens (rows of inputs), K inputs and N outputs of a product.

   Weights lie in tiles of WIDTH outputs, N being filled up with zeros:
   float32   [K, WIDTH]
   bfloat16  [K / 2, WIDTH, 2] where the processor multiplies pairs (PAIRED), else [K, WIDTH]
   int8      [K / 32, 34 * WIDTH bytes]: of each GROUP of inputs WIDTH float16 scales, then [8, WIDTH, 4] bytes, BYTE_ZERO
             for zero
   int4      [K / 32, 18 * WIDTH bytes]: scales alike, then [4, WIDTH, 4] bytes; byte i of quarter s has input 4 s + i in
             its low bits and input 16 + 4 s + i in its high ones, 8 for zero

   A row of inputs becomes words of 4 bytes: a float32, a pair of bfloat16, or for int8 and int4 GROUP_WORDS a group.

   A row of a product is one chain of operations over K for each output, whatever the other rows are, and rounding
   an input depends on its own row alone. So a row has the same bits in any batch, also alone. */

#include <string.h>

#include "products.h"

/* A tile is VECTORS vectors of LANES outputs wide and at most ROWS rows high: what fits into the registers. */
#if defined(__AVX512F__)
#define ROWS 12
#define VECTORS 2
#elif defined(__aarch64__)
#define ROWS 6
#define VECTORS 4
#else
#define ROWS 6
#define VECTORS 2
#endif
#define WIDTH (VECTORS * LANES)

#define STRIDE 16 /* words of a row between two looks at memory */
#define SHORT_STRIDE 2 /* the same for so few rows that memory is what is waited for */
#define FEW_ROWS 2 /* so few that nothing but memory is waited for */
#define NEARBY 1024 /* bytes: how far ahead of so few rows memory is asked, about what comes while it answers */
#define FLOAT_PART 128 /* words whose weights in a tile stay in the nearest cache */
#define GROUP_PART 16 /* groups, the same */
#define TOGETHER 256 /* rows whose results of a tile are kept at once, on a thread's stack */

#define GROUP 32 /* inputs with a scale of their own, in int8 and int4 */
#define GROUP_BYTES(kind) (2 + GROUP / ((kind) == INT4 ? 2 : 1)) /* of an output's weights */
#define GROUP_WORDS (2 + GROUP / 4) /* of a row: the sum of its bytes times minus ZERO, its quantum, the bytes */

/* What stands for a weight of 0. The instruction of x86 multiplies bytes without a sign by bytes with one. */
#if defined(__AVX512VNNI__)
#define BYTE_ZERO 128
#else
#define BYTE_ZERO 0
#endif
#define ZERO(kind) ((kind) == INT4 ? 8 : BYTE_ZERO)

#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define PAIRED 1 /* bfloat16 is multiplied two by two, inputs being rounded to it */
#else
#define PAIRED 0 /* it is widened to float32 */
#endif

INLINE vec silu(vec x) { return x / (exponential(-x) + 1.0f); }

/* The tanh approximation (arXiv:1606.08415): 0.5 (1 + tanh(u)) is the logistic function of 2 u. */
INLINE vec gelu(vec x) { return x / (exponential((x * x * x * 0.044715f + x) * -1.5957691216f) + 1.0f); }

typedef struct {
    const Product *product;
    const void *inputs; /* groups of rows, each [words, rows] */
    int64_t tokens, groups, words;
    int64_t mode;
    float *out; /* [T, stride] */
    int64_t stride;
} Job;

typedef struct {
    const char *weights; /* of the tile */
    const char *next;    /* what to ask memory for while we compute: of the next one, of few rows what comes soon */
    int64_t pace;        /* so many bytes of `next` for each word, each group of int8 and int4 */
    int64_t column;      /* first output */
    int64_t near;        /* whether to ask for it into the nearest cache: where rows take so long that it comes in time */
} Place;

/* The first row of a group; the groups are of nearly equal height. */
INLINE int64_t first_row(int64_t tokens, int64_t groups, int64_t group) { return tokens * group / groups; }

/* Store the results [T, WIDTH] of a tile as the job wants them. Gated: the tile's first half are the gates. */
static void finish(const float *result, const Job *job, const Place *at) {
    const Product *p = job->product;
    const int gated = job->mode == GATED, vectors = gated ? VECTORS / 2 : VECTORS, width = vectors * LANES;
    const int64_t from = gated ? at->column / 2 : at->column, all = gated ? p->outputs / 2 : p->outputs;
    const int64_t left = all - from < width ? all - from : width;
    for (int64_t row = 0; row < job->tokens; row++, result += WIDTH) {
        float *to = job->out + row * job->stride + from;
        vec value[VECTORS];
        UNROLL for (int v = 0; v < VECTORS; v++) {
            value[v] = load(result + v * LANES);
            if (p->bias) value[v] += load(p->bias + at->column + v * LANES);
            if (job->mode == GELU) value[v] = gelu(value[v]);
        }
        if (gated) UNROLL for (int v = 0; v < VECTORS / 2; v++) value[v] = silu(value[v]) * value[v + VECTORS / 2];
        if (left == width) {
            for (int v = 0; v < vectors; v++)
                store(to + v * LANES, job->mode == ADD ? load(to + v * LANES) + value[v] : value[v]);
            continue;
        }
        float part[WIDTH];
        UNROLL for (int v = 0; v < VECTORS; v++) store(part + v * LANES, value[v]);
        for (int64_t i = 0; i < left; i++) to[i] = job->mode == ADD ? to[i] + part[i] : part[i];
    }
}

/* Ask memory for the part of the next tile that belongs to `count` words from k on. */
INLINE void fetch_next(const Place *at, int64_t k, int64_t count) {
    const char *from = at->next + k * at->pace, *to = from + count * at->pace;
    if (at->near) for (; from < to; from += LINE) __builtin_prefetch(from, 0, 3);
    else for (; from < to; from += LINE) __builtin_prefetch(from, 0, 2);
}

INLINE vec widened(const uint16_t *at) {
    typedef uint32_t wide __attribute__((vector_size(LANES * 4)));
    return (vec)(__builtin_convertvector(*(const half *)at, wide) << 16);
}

/* The word at `at` in each lane, whatever it means: arithmetic would not keep the bits of every pair. */
INLINE ivec repeated(const void *at) {
    int32_t word;
    memcpy(&word, at, 4);
    return word - (ivec){0};
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

/* ---- int8 and int4 ---- */

/* Four products of bytes, weights by signed inputs, added to each number of `total`. Weights have no sign where BYTE_ZERO
   is not 0. */
#if defined(__AVX512VNNI__)
INLINE ivec four_bytes(ivec total, ivec weights, ivec inputs) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(total) : "v"(weights), "v"(inputs));
    return total;
}
#elif defined(__ARM_FEATURE_DOTPROD)
INLINE ivec four_bytes(ivec total, ivec weights, ivec inputs) {
    return (ivec)vdotq_s32((int32x4_t)total, (int8x16_t)(int32x4_t)weights, (int8x16_t)(int32x4_t)inputs);
}
#elif defined(__AVX512BW__) || (defined(__AVX2__) && LANES == 8)
typedef int16_t shorts __attribute__((vector_size(LANES * 4)));
/* The first and third byte of each number by those of the other, then the second and fourth, as 16 bits. */
INLINE ivec four_bytes(ivec total, ivec weights, ivec inputs) {
    const shorts w = (shorts)weights, x = (shorts)inputs, v = (w << 8) >> 8, u = (x << 8) >> 8;
#if defined(__AVX512BW__)
    total += (ivec)_mm512_madd_epi16((__m512i)v, (__m512i)u);
    return total + (ivec)_mm512_madd_epi16((__m512i)(w >> 8), (__m512i)(x >> 8));
#else
    total += (ivec)_mm256_madd_epi16((__m256i)v, (__m256i)u);
    return total + (ivec)_mm256_madd_epi16((__m256i)(w >> 8), (__m256i)(x >> 8));
#endif
}
#else
INLINE ivec four_bytes(ivec total, ivec weights, ivec inputs) {
    UNROLL for (int i = 0; i < 4; i++)
        total += ((weights << (24 - 8 * i)) >> 24) * ((inputs << (24 - 8 * i)) >> 24);
    return total;
}
#endif

/* Four products of bytes, weights from 0 to 15 by signed inputs, added to each number of `total`. */
INLINE ivec four_nibbles(ivec total, ivec weights, ivec inputs) {
#if defined(__AVX512VNNI__)
    __asm__("vpdpbusd %2, %1, %0" : "+v"(total) : "v"(weights), "v"(inputs));
    return total;
#elif defined(__AVX512BW__)
    const __m512i pairs = _mm512_maddubs_epi16((__m512i)weights, (__m512i)inputs); /* at most 2 * 15 * 127 */
    return total + (ivec)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#elif defined(__AVX2__) && LANES == 8
    const __m256i pairs = _mm256_maddubs_epi16((__m256i)weights, (__m256i)inputs);
    return total + (ivec)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#elif defined(__ARM_FEATURE_DOTPROD)
    return (ivec)vdotq_s32((int32x4_t)total, (int8x16_t)(int32x4_t)weights, (int8x16_t)(int32x4_t)inputs);
#else
    UNROLL for (int i = 0; i < 4; i++) total += ((weights >> 8 * i) & 15) * ((inputs << (24 - 8 * i)) >> 24);
    return total;
#endif
}

/* The products of a group, whole numbers, of rows by weights behind their scales. */
INLINE void add_bytes(const int rows, const int32_t *inputs, const uint8_t *weights, ivec total[ROWS][VECTORS]) {
    UNROLL for (int s = 0; s < GROUP / 4; s++) {
        ivec w[VECTORS];
        UNROLL for (int v = 0; v < VECTORS; v++) memcpy(w + v, weights + (s * VECTORS + v) * 4 * LANES, sizeof(ivec));
        UNROLL for (int r = 0; r < rows; r++) {
            const ivec x = repeated(inputs + (2 + s) * rows + r);
            UNROLL for (int v = 0; v < VECTORS; v++) total[r][v] = four_bytes(total[r][v], w[v], x);
        }
    }
}

INLINE void add_nibbles(const int rows, const int32_t *inputs, const uint8_t *weights, ivec total[ROWS][VECTORS]) {
    UNROLL for (int s = 0; s < GROUP / 8; s++) {
        ivec low[VECTORS], high[VECTORS];
        UNROLL for (int v = 0; v < VECTORS; v++) {
            memcpy(low + v, weights + (s * VECTORS + v) * 4 * LANES, sizeof(ivec));
            high[v] = (low[v] >> 4) & 0x0f0f0f0f, low[v] &= 0x0f0f0f0f;
        }
        UNROLL for (int r = 0; r < rows; r++) {
            const ivec x = repeated(inputs + (2 + s) * rows + r), y = repeated(inputs + (6 + s) * rows + r);
            UNROLL for (int v = 0; v < VECTORS; v++) total[r][v] = four_nibbles(total[r][v], low[v], x);
            UNROLL for (int v = 0; v < VECTORS; v++) total[r][v] = four_nibbles(total[r][v], high[v], y);
        }
    }
}

/* As `float_rows`, of groups: inputs [groups, GROUP_WORDS, rows], weights [groups, GROUP_BYTES * WIDTH]. A group's
   products are whole numbers; its sum times both scales is added to the result. */
INLINE void group_rows(const int rows, const int kind, const int32_t *inputs, const uint8_t *weights, int64_t groups,
                       int64_t from, const Place *at, float *result) {
    for (int64_t g = 0; g < groups; g++, inputs += GROUP_WORDS * rows, weights += GROUP_BYTES(kind) * WIDTH) {
        ivec total[ROWS][VECTORS];
        fetch_next(at, from + g, 1);
        UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < VECTORS; v++) total[r][v] = repeated(inputs + r);
        if (kind == INT4) add_nibbles(rows, inputs, weights + 2 * WIDTH, total);
        else add_bytes(rows, inputs, weights + 2 * WIDTH, total);
        vec scale[VECTORS];
        UNROLL for (int v = 0; v < VECTORS; v++) scale[v] = from_float16((const uint16_t *)weights + v * LANES);
        UNROLL for (int r = 0; r < rows; r++) {
            const vec step = (vec)repeated(inputs + rows + r);
            UNROLL for (int v = 0; v < VECTORS; v++) {
                float *to = result + r * WIDTH + v * LANES;
                store(to, fused(__builtin_convertvector(total[r][v], vec), scale[v] * step, load(to)));
            }
        }
    }
}

#define GROUP_CASE(n, kind) \
    case n: if (n <= ROWS) group_rows(n, kind, inputs, weights, groups, from, at, result); break;
#define GROUPS(name, kind) \
    static void name(int64_t rows, const int32_t *inputs, const uint8_t *weights, int64_t groups, int64_t from, \
                     const Place *at, float *result) { switch (rows) { EACH_COUNT(GROUP_CASE, kind) } }
GROUPS(int8_groups, INT8)
GROUPS(int4_groups, INT4)

static void group_tile(const Job *job, const Place *at) {
    const int kind = job->product->kind;
    const int64_t all = job->words / GROUP_WORDS, part = job->groups > 1 ? GROUP_PART : all;
    float result[job->tokens * WIDTH];
    memset(result, 0, sizeof result);
    for (int64_t from = 0; from < all; from += part) {
        const int64_t size = from + part < all ? part : all - from;
        const uint8_t *weights = (const uint8_t *)at->weights + from * GROUP_BYTES(kind) * WIDTH;
        for (int64_t group = 0; group < job->groups; group++) {
            const int64_t first = first_row(job->tokens, job->groups, group);
            const int64_t rows = first_row(job->tokens, job->groups, group + 1) - first;
            Place own = *at;
            own.next += all * own.pace * group;
            (kind == INT4 ? int4_groups : int8_groups)(
                rows, (const int32_t *)job->inputs + first * job->words + from * GROUP_WORDS * rows, weights, size, from,
                &own, result + first * WIDTH);
        }
    }
    finish(result, job, at);
}

/* A row [K] as groups of GROUP_WORDS, each with a quantum of its own; the last one is filled up with zeros. A number that
   is none, or infinite, makes its group's quantum none. */
static void quantize_groups(const float *x, int64_t size, int zero, int32_t *to) {
    for (int64_t start = 0; start < size; start += GROUP, to += GROUP_WORDS) {
        float rest[GROUP] = {0};
        const float *from = x + start;
        if (size - start < GROUP) from = memcpy(rest, from, (size - start) * sizeof(float));
        vec most = {0}, nothing = {0};
        UNROLL for (int i = 0; i < GROUP; i += LANES) {
            most = highest(most, highest(load(from + i), -load(from + i)));
            nothing += load(from + i) * 0.0f;
        }
        const float high = largest(most), none = quick_sum(nothing);
        const float inverse = high > 0 && none == 0 ? 127.0f / high : 0.0f, step = high / 127.0f + none;
        if (none != 0) from = memset(rest, 0, sizeof rest);
        ivec total = {0};
        UNROLL for (int i = 0; i < GROUP; i += LANES) {
            const ivec whole = __builtin_convertvector(whole_product(load(from + i), fill(inverse)), ivec);
            *(bytes *)((uint8_t *)(to + 2) + i) = __builtin_convertvector(whole, bytes);
            total += whole;
        }
        const int32_t shift = zero ? -zero * (int32_t)quick_sum(__builtin_convertvector(total, vec)) : 0;
        memcpy(to, &shift, 4);
        memcpy(to + 1, &step, 4);
    }
}

/* The nearest float16; at most the largest one. */
static uint16_t to_float16(float x) {
    const float shifted = fabsf(x) * 0x1p-112f; /* its exponent is counted from 15, not from 127 */
    uint32_t word;
    memcpy(&word, &shifted, 4);
    word = (word + 0xfff + (word >> 13 & 1)) >> 13;
    return (uint16_t)((word < 0x7bff ? word : 0x7bff) | (x < 0 ? 0x8000 : 0));
}

/* Weights of a group as whole numbers from -8 to 7, `inverse` quanta each. */
INLINE void whole_weights(const float *x, float inverse, float *to) {
    for (int i = 0; i < GROUP; i += LANES)
        store(to + i, highest(lowest((load(x + i) * inverse + MAGIC) - MAGIC, fill(7)), fill(-8)));
}

/* The quantum of a group of weights: of several, whose largest weight becomes -8.5 to -6.5, or 6.5 to 8.5, the one whose
   error is the least in its squares, moved to where that is least for its whole numbers. */
static float best_quantum(const float *x) {
    float high = 0, best = 0, best_gain = 0, q[GROUP];
    for (int i = 0; i < GROUP; i++) high = fabsf(x[i]) > fabsf(high) ? x[i] : high;
    if (high == 0) return 0;
    for (int step = -8; step <= 8; step++) {
        if (!step) continue;
        whole_weights(x, (step < 0 ? step * 0.25f - 6.25f : step * 0.25f + 6.25f) / high, q);
        vec products = {0}, squares = {0};
        for (int i = 0; i < GROUP; i += LANES) products += load(x + i) * load(q + i), squares += load(q + i) * load(q + i);
        const float along = sum(products), length = sum(squares);
        if (length > 0 && along * along > best_gain * length) best_gain = along * along / length, best = along / length;
    }
    return best;
}

/* Weights of a group as whole numbers from -127 to 127: the largest becomes one of them, as in llama.cpp's Q8_0. Returns
   their scale. */
static uint16_t pack_bytes(const float *x, uint8_t *to) {
    vec most = {0};
    for (int i = 0; i < GROUP; i += LANES) most = highest(most, highest(load(x + i), -load(x + i)));
    const float high = largest(most), inverse = high > 0 ? 127.0f / high : 0.0f;
    float q[GROUP];
    for (int i = 0; i < GROUP; i += LANES) store(q + i, whole_product(load(x + i), fill(inverse)));
    for (int i = 0; i < GROUP; i++) to[i / 4 * WIDTH * 4 + i % 4] = (uint8_t)((int)q[i] + BYTE_ZERO);
    return to_float16(high / 127.0f);
}

/* The same from -8 to 7, two in a byte. */
static uint16_t pack_nibbles(const float *x, uint8_t *to) {
    float q[GROUP];
    uint16_t scales[LANES] = {to_float16(best_quantum(x))};
    const float quantum = from_float16(scales)[0];
    whole_weights(x, quantum != 0 ? 1.0f / quantum : 0.0f, q);
    for (int i = 0; i < GROUP / 2; i++)
        to[i / 4 * WIDTH * 4 + i % 4] = (uint8_t)((uint8_t)((int)q[i] + 8) | (uint8_t)((int)q[i + GROUP / 2] + 8) << 4);
    return scales[0];
}

/* Pack weights [tiles * WIDTH, K] of whole tiles as int8 or int4. */
void pack_groups(int64_t kind, const float *weights, int64_t tiles, int64_t inputs, uint8_t *packed) {
    const int64_t groups = (inputs + GROUP - 1) / GROUP;
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t tile = 0; tile < tiles; tile++) for (int64_t group = 0; group < groups; group++) {
        uint8_t *to = packed + (tile * groups + group) * GROUP_BYTES(kind) * WIDTH;
        const int64_t left = inputs - group * GROUP < GROUP ? inputs - group * GROUP : GROUP;
        for (int64_t output = 0; output < WIDTH; output++) {
            float x[GROUP] = {0};
            memcpy(x, weights + (tile * WIDTH + output) * inputs + group * GROUP, left * sizeof(float));
            uint8_t *own = to + 2 * WIDTH + output * 4;
            const uint16_t scale = kind == INT4 ? pack_nibbles(x, own) : pack_bytes(x, own);
            memcpy(to + 2 * output, &scale, 2);
        }
    }
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
        case INT8:
        case INT4: return (p->inputs + GROUP - 1) / GROUP * GROUP_WORDS;
        default: return p->inputs;
    }
}

/* Bytes of a tile of weights. */
static int64_t tile_bytes(const Product *p, int64_t words) {
    if (p->kind == INT8 || p->kind == INT4) return words / GROUP_WORDS * GROUP_BYTES(p->kind) * WIDTH;
    return words * WIDTH * (p->kind == BFLOAT16 && !PAIRED ? 2 : 4);
}

/* A row of inputs [K] as words. */
static void round_row(const Product *p, const float *x, word *to) {
    if (p->kind == INT8 || p->kind == INT4) quantize_groups(x, p->inputs, ZERO(p->kind), (int32_t *)to);
    else halve(x, p->inputs, (uint16_t *)to);
}

/* See `product`; T is at most TOGETHER. */
static void multiply(const Product *p, const float *inputs, int64_t tokens, int64_t mode, float *out, int64_t stride,
                     void *room) {
    const int as_they_are = p->kind == FLOAT32 || (p->kind == BFLOAT16 && !PAIRED);
    const int64_t tiles = (p->outputs + WIDTH - 1) / WIDTH, groups = (tokens + ROWS - 1) / ROWS;
    const int64_t words = row_words(p), size = tile_bytes(p, words);
    const int grouped = p->kind == INT8 || p->kind == INT4;
    const int64_t paces = grouped ? words / GROUP_WORDS : words;
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
            at.next = at.weights + (tokens > FEW_ROWS ? size : NEARBY);
            at.pace = size / paces / groups, at.near = groups > 2;
            (grouped ? group_tile : float_tile)(&job, &at);
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

/* What the layout of weights depends on: outputs in a tile, whether inputs stand two by two in bfloat16, and what stands
   for 0 in a byte. */
int64_t tile_width(void) { return WIDTH; }
int64_t paired(void) { return PAIRED; }
int64_t byte_zero(void) { return BYTE_ZERO; }

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
    const int bytes = kind == INT8 || kind == INT4, pairs = kind == BFLOAT16 && PAIRED;
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
