/* Vectors of as many numbers as this processor computes at once, and what all sources share. */

#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__FMA__) || defined(__AVX512F__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif

#define LINE 64 /* bytes of a cache line */
#define PARALLEL_FROM 32768 /* multiplications for which a second thread pays */
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#define MAGIC 12582912.0f /* adding it to a small number rounds that to a whole one */

typedef float vec __attribute__((vector_size(LANES * 4)));
typedef int32_t ivec __attribute__((vector_size(LANES * 4)));
typedef uint16_t half __attribute__((vector_size(LANES * 2), aligned(2), may_alias));
typedef uint8_t bytes __attribute__((vector_size(LANES), aligned(1), may_alias));
typedef float loose __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

/* How many threads a call may use. */
extern int team __attribute__((visibility("hidden")));

INLINE vec load(const float *at) { return *(const loose *)at; }
INLINE void store(float *at, vec value) { *(loose *)at = value; }
INLINE vec fill(float value) { return value - (vec){0}; }

/* a * b + c, rounded once where the processor can. Compilers decide that loop by loop, so that one with fewer rows may
   give other bits: GCC does not do it for AMD processors where each turn waits for the one before. */
INLINE vec fused(vec a, vec b, vec c) {
#if defined(__AVX512F__)
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__) && LANES == 8
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__FMA__)
    return (vec)_mm_fmadd_ps((__m128)a, (__m128)b, (__m128)c);
#elif defined(__ARM_NEON) && defined(__ARM_FEATURE_FMA)
    return (vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}
/* The nearest whole numbers to a * b, small ones. The product is rounded on its own: a compiler may else multiply and add
   at once, on some processors, and so round what lies in the middle to the other side. */
INLINE vec whole_product(vec a, vec b) {
    vec product = a * b;
#if defined(__AVX512F__)
    __asm__("" : "+v"(product));
#elif defined(__x86_64__)
    __asm__("" : "+x"(product));
#elif defined(__aarch64__)
    __asm__("" : "+w"(product));
#endif
    return (product + MAGIC) - MAGIC;
}
INLINE vec choose(ivec mask, vec yes, vec no) { return (vec)(((ivec)yes & mask) | ((ivec)no & ~mask)); }
INLINE vec highest(vec a, vec b) { return choose(a > b, a, b); }
INLINE vec lowest(vec a, vec b) { return choose(a < b, a, b); }

/* Numbers in float16 as float32: exact. */
INLINE vec from_float16(const uint16_t *at) {
#if defined(__AVX512F__)
    return (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at));
#elif defined(__F16C__) && LANES == 8
    return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)at));
#elif defined(__aarch64__)
    return (vec)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(at)));
#else
    const ivec word = __builtin_convertvector(*(const half *)at, ivec);
    const ivec shifted = (word & 0x7fff) << 13;
    const vec finite = (vec)shifted * 0x1p112f; /* its exponent was counted from 15, not from 127 */
    const vec size = choose(shifted >= 0x7c00 << 13, (vec)(shifted | 0xff << 23), finite); /* infinity and NaN */
    return (vec)((ivec)size | (word & 0x8000) << 16);
#endif
}

/* The number in float16 at `at`. */
INLINE float float16_at(const void *at) {
    uint16_t halves[LANES] = {0};
    memcpy(halves, at, 2);
    return from_float16(halves)[0];
}

/* Numbers as the nearest ones in float16, ties to even; beyond its largest one that. NaN stays NaN. */
INLINE void to_float16(vec value, uint16_t *at) {
    value = choose(value > 65504.0f, fill(65504.0f), choose(value < -65504.0f, fill(-65504.0f), value));
#if defined(__AVX512F__)
    _mm256_storeu_si256((__m256i *)at, _mm512_cvtps_ph((__m512)value, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__) && LANES == 8
    _mm_storeu_si128((__m128i *)at, _mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__aarch64__)
    vst1_u16(at, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)value)));
#else
    const ivec word = (ivec)value & 0x7fffffff, sign = ((ivec)value >> 16) & 0x8000;
    const ivec whole = (word + 0xfff + ((word >> 13) & 1) - (112 << 23)) >> 13; /* the exponent is counted from 15 */
    const ivec small = (ivec)((vec)word + 0.5f) - 0x3f000000; /* in steps of 2^-24, as the sum has them */
    const ivec number = (ivec)choose(word < 113 << 23, (vec)small, (vec)whole);
    *(half *)at = __builtin_convertvector(sign | (ivec)choose(value == value, (vec)number, (vec)(number | 0x7e00)), half);
#endif
}

INLINE uint16_t nearest_float16(float value) {
    uint16_t halves[LANES];
    to_float16(fill(value), halves);
    return halves[0];
}

INLINE float sum(vec value) {
    float total = 0;
    for (int i = 0; i < LANES; i++) total += value[i];
    return total;
}

/* The largest number, and the sum of numbers in another order than `sum` has. */
#if defined(__AVX512F__)
INLINE float largest(vec value) { return _mm512_reduce_max_ps((__m512)value); }
INLINE float quick_sum(vec value) { return _mm512_reduce_add_ps((__m512)value); }
#else
INLINE float largest(vec value) {
    for (int n = LANES / 2; n; n /= 2)
        for (int i = 0; i < n; i++) value[i] = value[i] > value[i + n] ? value[i] : value[i + n];
    return value[0];
}
INLINE float quick_sum(vec value) {
    for (int n = LANES / 2; n; n /= 2)
        for (int i = 0; i < n; i++) value[i] += value[i + n];
    return value[0];
}
#endif

/* The sum of small whole numbers, exact. */
INLINE int32_t whole_sum(ivec value) { return (int32_t)quick_sum(__builtin_convertvector(value, vec)); }

/* e to the power of x, within 2 units of the last place (Cephes' polynomial). */
INLINE vec exponential(vec x) {
    x = highest(lowest(x, fill(88.0f)), fill(-87.0f));
    vec n = (x * 1.44269504f + MAGIC) - MAGIC;
    vec r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    vec p = fill(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    ivec exponent = (__builtin_convertvector(n, ivec) + 127) << 23;
    return p * (vec)exponent;
}

/* ---- Products of bytes: what tiles of quantized weights are multiplied by ---- */

/* What stands for a weight of 0 in int8. The instruction of x86 multiplies bytes without a sign by bytes with one. */
#if defined(__AVX512VNNI__)
#define BYTE_ZERO 128
#else
#define BYTE_ZERO 0
#endif

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

/* The same for weights from 0 to 63, which are the same bytes with a sign and without one. */
INLINE ivec four_small_bytes(ivec total, ivec weights, ivec inputs) {
#if defined(__AVX512VNNI__)
    __asm__("vpdpbusd %2, %1, %0" : "+v"(total) : "v"(weights), "v"(inputs));
    return total;
#elif defined(__AVX512BW__)
    const __m512i pairs = _mm512_maddubs_epi16((__m512i)weights, (__m512i)inputs); /* at most 2 * 63 * 127 */
    return total + (ivec)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#elif defined(__AVX2__) && LANES == 8
    const __m256i pairs = _mm256_maddubs_epi16((__m256i)weights, (__m256i)inputs);
    return total + (ivec)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#elif defined(__ARM_FEATURE_DOTPROD)
    return (ivec)vdotq_s32((int32x4_t)total, (int8x16_t)(int32x4_t)weights, (int8x16_t)(int32x4_t)inputs);
#else
    UNROLL for (int i = 0; i < 4; i++) total += ((weights >> 8 * i) & 255) * ((inputs << (24 - 8 * i)) >> 24);
    return total;
#endif
}

/* ---- Matrix products with packed weights: their interface, and what every product of a tile needs ---- */

enum { FLOAT32, BFLOAT16, INT8, INT4, Q4_K, Q5_K, Q6_K }; /* what weights are stored as */
enum { STORE, ADD, GATED, GELU };                         /* what becomes of a product */

typedef struct {
    const void *weights; /* tiles, see products.c */
    const float *bias;   /* [N] or NULL */
    int64_t inputs, outputs, kind;
} Product;

/* inputs [T, K] to out [T, stride]. room: of 4 * TOGETHER * max(K, 10) bytes, or 4 * T * max(K, 10) where that is less. */
void product(const Product *p, const float *inputs, int64_t tokens, int64_t mode, float *out, int64_t stride, void *room);

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
#define FLOAT_PART 512 /* words whose weights in a tile stay near: in the nearest cache 128 would, and take 2 % longer */
#define GROUP_PART 16 /* groups, the same in the nearest cache */
#define TOGETHER 256 /* rows whose results of a tile are kept at once, on a thread's stack */

#define GROUP 32 /* inputs that are quantized to bytes together */
#define GROUP_WORDS (2 + GROUP / 4) /* of a row: what depends on the sum of its bytes, its quantum, the bytes */

#define INTERNAL __attribute__((visibility("hidden"))) /* for the other sources of this library alone */

#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define PAIRED 1 /* bfloat16 is multiplied two by two, inputs being rounded to it */
#else
#define PAIRED 0 /* it is widened to float32 */
#endif

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
    int64_t pace;        /* so many bytes of `next` for each word, each group of quantized weights */
    int64_t column;      /* first output */
    int64_t near;        /* whether to ask for it into the nearest cache: where rows take so long that it comes in time */
} Place;

/* Rows of a group, [blocks * groups in one, GROUP_WORDS, rows], by blocks of a tile, of which `from` groups come before
   these, added to their results [rows, WIDTH]. */
typedef void BlockRows(int64_t rows, const int32_t *inputs, const uint8_t *weights, int64_t blocks, int64_t from,
                       const Place *at, float *result);

typedef struct { /* how quantized weights lie in a tile: of consecutive inputs a block for all its outputs */
    int64_t groups; /* of GROUP inputs in a block */
    int64_t bytes;  /* of a block for each output */
    BlockRows *rows;
    void (*numbers)(const uint8_t *block, int64_t lane, float *out); /* of one of the outputs: [groups * GROUP] */
} BlockFormat;

extern const BlockFormat int8_format INTERNAL, int4_format INTERNAL;
extern const BlockFormat q4_k_format INTERNAL, q5_k_format INTERNAL, q6_k_format INTERNAL;

/* The format of a kind; NULL of float32 and bfloat16. */
INLINE const BlockFormat *block_format(int64_t kind) {
    switch (kind) {
        case INT8: return &int8_format;
        case INT4: return &int4_format;
        case Q4_K: return &q4_k_format;
        case Q5_K: return &q5_k_format;
        case Q6_K: return &q6_k_format;
        default: return NULL;
    }
}

/* A row [K] as groups of GROUP_WORDS for weights of a kind, see quantized.c. */
INTERNAL void quantize_groups(const float *x, int64_t size, int64_t kind, int32_t *to);

/* Compute a tile of quantized weights. */
INTERNAL void block_tile(const Job *job, const Place *at);

/* Store the results [T, WIDTH] of a tile as the job wants them. Gated: the tile's first half are the gates. */
INTERNAL void finish(const float *result, const Job *job, const Place *at);

/* The first row of a group; the groups are of nearly equal height. */
INLINE int64_t first_row(int64_t tokens, int64_t groups, int64_t group) { return tokens * group / groups; }

/* Ask memory for the part of the next tile that belongs to `count` words from k on. */
INLINE void fetch_next(const Place *at, int64_t k, int64_t count) {
    const char *from = at->next + k * at->pace, *to = from + count * at->pace;
    if (at->near) for (; from < to; from += LINE) __builtin_prefetch(from, 0, 3);
    else for (; from < to; from += LINE) __builtin_prefetch(from, 0, 2);
}

/* The word at `at` in each lane, whatever it means: arithmetic would not keep the bits of every pair. */
INLINE ivec repeated(const void *at) {
    int32_t word;
    memcpy(&word, at, 4);
    return word - (ivec){0};
}

#define EACH_COUNT(CASE, ...) \
    CASE(1, __VA_ARGS__) CASE(2, __VA_ARGS__) CASE(3, __VA_ARGS__) CASE(4, __VA_ARGS__) CASE(5, __VA_ARGS__) \
    CASE(6, __VA_ARGS__) CASE(7, __VA_ARGS__) CASE(8, __VA_ARGS__) CASE(9, __VA_ARGS__) CASE(10, __VA_ARGS__) \
    CASE(11, __VA_ARGS__) CASE(12, __VA_ARGS__)

/* A BlockRows, name, out of `rows_of(rows, kind, ...)`, compiled for each number of rows. */
#define HEIGHT_CASE(n, rows_of, kind) \
    case n: if (n <= ROWS) rows_of(n, kind, inputs, weights, blocks, from, at, result); break;
#define EACH_HEIGHT(name, rows_of, kind) \
    static void name(int64_t rows, const int32_t *inputs, const uint8_t *weights, int64_t blocks, int64_t from, \
                     const Place *at, float *result) { switch (rows) { EACH_COUNT(HEIGHT_CASE, rows_of, kind) } }
