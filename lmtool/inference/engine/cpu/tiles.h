/* Tiles of packed weights, and what every product of one needs. */

#pragma once

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
