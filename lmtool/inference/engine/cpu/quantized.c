/* Products with quantized weights: inputs are rounded to bytes, of a group of inputs whole numbers are multiplied.

   Of a group of a row the first word is what weights are off by times the sum of the row's bytes:
   int8, int4        an integer, minus the weight that stands for 0 times the sum
   Q4_K, Q5_K        a float32, minus the quantum times the sum: what the least weight is multiplied by
   Q6_K              the sums of both halves, 16 bits each
   then come its quantum, a float32, and its bytes. */

#include "kernels.h"

#define GROUP_BYTES(kind) (2 + GROUP / ((kind) == INT4 ? 2 : 1)) /* of an output's int8 or int4 */

/* ---- int8 and int4 ---- */

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
            UNROLL for (int v = 0; v < VECTORS; v++) total[r][v] = four_small_bytes(total[r][v], low[v], x);
            UNROLL for (int v = 0; v < VECTORS; v++) total[r][v] = four_small_bytes(total[r][v], high[v], y);
        }
    }
}

/* Rows by blocks of one group, see BlockRows. A group's products are whole numbers; its sum times both scales is added to
   the result. */
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

EACH_HEIGHT(int8_rows, group_rows, INT8)
EACH_HEIGHT(int4_rows, group_rows, INT4)

static void int8_numbers(const uint8_t *block, int64_t lane, float *out) {
    const float scale = float16_at(block + 2 * lane);
    for (int i = 0; i < GROUP; i++)
        out[i] = (int8_t)(block[2 * WIDTH + (i / 4 * WIDTH + lane) * 4 + i % 4] - BYTE_ZERO) * scale;
}

static void int4_numbers(const uint8_t *block, int64_t lane, float *out) {
    const float scale = float16_at(block + 2 * lane);
    for (int i = 0; i < GROUP / 2; i++) {
        const int pair = block[2 * WIDTH + (i / 4 * WIDTH + lane) * 4 + i % 4];
        out[i] = ((pair & 15) - 8) * scale, out[i + GROUP / 2] = ((pair >> 4) - 8) * scale;
    }
}

const BlockFormat int8_format = {1, GROUP_BYTES(INT8), int8_rows, int8_numbers};
const BlockFormat int4_format = {1, GROUP_BYTES(INT4), int4_rows, int4_numbers};

void block_tile(const Job *job, const Place *at) {
    const BlockFormat *format = block_format(job->product->kind);
    const int64_t words = format->groups * GROUP_WORDS, all = job->words / words;
    const int64_t part = job->groups > 1 ? GROUP_PART / format->groups : all;
    float result[job->tokens * WIDTH];
    memset(result, 0, sizeof result);
    for (int64_t from = 0; from < all; from += part) {
        const int64_t size = from + part < all ? part : all - from;
        const uint8_t *weights = (const uint8_t *)at->weights + from * format->bytes * WIDTH;
        for (int64_t group = 0; group < job->groups; group++) {
            const int64_t first = first_row(job->tokens, job->groups, group);
            const int64_t rows = first_row(job->tokens, job->groups, group + 1) - first;
            Place own = *at;
            own.next += all * format->groups * own.pace * group;
            format->rows(rows, (const int32_t *)job->inputs + first * job->words + from * words * rows, weights, size,
                         from * format->groups, &own, result + first * WIDTH);
        }
    }
    finish(result, job, at);
}

/* The weights of these outputs [count] as numbers: out [count, K]. */
void weight_rows(const Product *p, const int64_t *outputs, int64_t count, float *out) {
    const BlockFormat *format = block_format(p->kind);
    const int64_t size = format->groups * GROUP, blocks = (p->inputs + size - 1) / size;
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *tile = (const uint8_t *)p->weights + outputs[i] / WIDTH * blocks * format->bytes * WIDTH;
        for (int64_t b = 0; b < blocks; b++, tile += format->bytes * WIDTH) {
            float numbers[size];
            const int64_t left = p->inputs - b * size < size ? p->inputs - b * size : size;
            format->numbers(tile, outputs[i] % WIDTH, numbers);
            memcpy(out + i * p->inputs + b * size, numbers, left * sizeof(float));
        }
    }
}

/* What stands for 0 in a byte of int8. */
int64_t byte_zero(void) { return BYTE_ZERO; }

/* ---- Inputs ---- */

/* The first word of a group, of the sums of its halves' bytes: see the table above. */
static void offset_word(int64_t kind, const ivec halves[2], float step, int32_t *to) {
    const ivec both = halves[0] + halves[1];
    int32_t sums[2];
    float least;
    switch (kind) {
        case INT8: *to = BYTE_ZERO ? -BYTE_ZERO * whole_sum(both) : 0; return;
        case INT4: *to = -8 * whole_sum(both); return;
        case Q6_K:
            sums[0] = whole_sum(halves[0]), sums[1] = whole_sum(halves[1]);
            *to = (int32_t)((uint32_t)sums[1] << 16 | (uint16_t)sums[0]);
            return;
        default: least = -step * (float)whole_sum(both); memcpy(to, &least, 4);
    }
}

/* The last group is filled up with zeros. A number that is none, or infinite, makes its group's quantum none. */
void quantize_groups(const float *x, int64_t size, int64_t kind, int32_t *to) {
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
        ivec halves[2] = {{0}, {0}};
        UNROLL for (int i = 0; i < GROUP; i += LANES) {
            const ivec whole = __builtin_convertvector(whole_product(load(from + i), fill(inverse)), ivec);
            *(bytes *)((uint8_t *)(to + 2) + i) = __builtin_convertvector(whole, bytes);
            halves[i / (GROUP / 2)] += whole;
        }
        offset_word(kind, halves, step, to);
        memcpy(to + 1, &step, 4);
    }
}

/* ---- Packing ---- */

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
    return nearest_float16(high / 127.0f);
}

/* The same from -8 to 7, two in a byte. */
static uint16_t pack_nibbles(const float *x, uint8_t *to) {
    float q[GROUP];
    uint16_t scales[LANES] = {nearest_float16(best_quantum(x))};
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

/* ---- K-quants ----

   Products with llama.cpp's K-quants, in the file's own bits.

   A superblock has 256 inputs. What a weight is, q being a whole number from 0 on:
   Q4_K, Q5_K   d s q - m l, q of 4 or 5 bits; each 32 inputs share s and l, of 6 bits, and all share d and m in float16
   Q6_K         d s (q - 32), q of 6 bits; each 16 inputs share s, a signed byte, and all share d in float16

   In a tile: of each superblock WIDTH of d, and of m where there is one, in float16; then of each of 8 groups of inputs
   scales   [2, WIDTH] bytes: s and l, or s of both halves of the group
   planes   the highest bits of q, [WIDTH, 4] bytes of Q5_K: byte i has that of input 16 h + 4 s + i in bit 4 h + s;
            [2, WIDTH, 4] of Q6_K: byte i of plane h has those of that input in bits 2 s and 2 s + 1
   nibbles  [4, WIDTH, 4] bytes: its low bits as in int4, half 0 of the group in the low ones and half 1 in the high ones
   They are read in this order: with planes behind the nibbles one row took 1.8 times as long. */

#define GROUPS 8 /* in a superblock */
#define HALF (GROUP / 2)
#define HEAD_BYTES(kind) ((kind) == Q6_K ? 2 : 4) /* of an output's superblock, before its groups */
#define PLANES 2 /* where they begin in a group, bytes of an output */
#define NIBBLES(kind) (PLANES + ((kind) == Q6_K ? 8 : (kind) == Q5_K ? 4 : 0))
#define K_GROUP_BYTES(kind) (NIBBLES(kind) + HALF)
#define SUPERBLOCK_BYTES(kind) (HEAD_BYTES(kind) + GROUPS * K_GROUP_BYTES(kind))
#define SCALES(kind) ((kind) == Q6_K ? 2 : 1) /* of an output in a group: each for a part of its inputs */

/* LANES bytes with or without a sign as numbers. Compilers convert them one by one where they are not told how. */
INLINE vec byte_numbers(const uint8_t *at, const int sign) {
#if defined(__AVX512F__)
    const __m128i own = _mm_loadu_si128((const __m128i *)at);
    return __builtin_convertvector((ivec)(sign ? _mm512_cvtepi8_epi32(own) : _mm512_cvtepu8_epi32(own)), vec);
#elif defined(__AVX2__)
    const __m128i own = _mm_loadl_epi64((const __m128i *)at);
    return __builtin_convertvector((ivec)(sign ? _mm256_cvtepi8_epi32(own) : _mm256_cvtepu8_epi32(own)), vec);
#else
    const ivec own = repeated(at) << (ivec){24, 16, 8, 0}; /* byte i is the highest of number i */
    return __builtin_convertvector(sign ? own >> 24 : (own >> 24) & 255, vec);
#endif
}

/* Vector `index` of those that begin there. */
INLINE ivec vector_at(const uint8_t *at, int index) {
    ivec value;
    memcpy(&value, at + index * sizeof value, sizeof value);
    return value;
}

/* q of inputs 4 s to 4 s + 3 of a half of a group, for vector v of its outputs. */
INLINE ivec quants(const int kind, const uint8_t *group, const int half, const int s, const int v) {
    const ivec nibbles = vector_at(group + NIBBLES(kind) * WIDTH, s * VECTORS + v);
    const ivec low = (half ? nibbles >> 4 : nibbles) & 0x0f0f0f0f;
    if (kind == Q4_K) return low;
    const ivec plane = vector_at(group + PLANES * WIDTH, (kind == Q6_K ? half * VECTORS : 0) + v);
    if (kind == Q5_K) return low | ((half ? plane >> s : plane << (4 - s)) & 0x10101010);
    return low | ((s < 2 ? plane << (4 - 2 * s) : plane >> (2 * s - 4)) & 0x30303030);
}

/* The products of a part of a group, whole numbers, of rows by its q. */
INLINE void add_quants(const int rows, const int kind, const int part, const int32_t *inputs, const uint8_t *group,
                       ivec total[ROWS][VECTORS]) {
    const int words = GROUP / 4 / SCALES(kind);
    UNROLL for (int i = 0; i < words; i++) {
        const int half = kind == Q6_K ? part : i % 2, s = kind == Q6_K ? i : i / 2;
        ivec q[VECTORS];
        UNROLL for (int v = 0; v < VECTORS; v++) q[v] = quants(kind, group, half, s, v);
        UNROLL for (int r = 0; r < rows; r++) {
            const ivec x = repeated(inputs + (2 + 4 * half + s) * rows + r);
            UNROLL for (int v = 0; v < VECTORS; v++) total[r][v] = four_small_bytes(total[r][v], q[v], x);
        }
    }
}

/* What the sums of a part begin with: of Q6_K, whose q are 32 too large, minus 32 times that of the row's bytes. */
INLINE ivec first_total(const int kind, const int part, const int32_t *offsets) {
    if (kind != Q6_K) return (ivec){0};
    return -32 * (part ? *offsets >> 16 : (int16_t)*offsets) - (ivec){0};
}

/* d s of a part of a group, or m l. */
INLINE vec scale_of(const uint8_t *factor, const uint8_t *scale, const int v, const int sign) {
    return from_float16((const uint16_t *)factor + v * LANES) * byte_numbers(scale + v * LANES, sign);
}

/* Rows by superblocks, see BlockRows: the sums of a group's parts times their scales, times the row's quantum, are added to
   the result, and of Q4_K and Q5_K the least weight times the sum of the row. */
INLINE void superblock_rows(const int rows, const int kind, const int32_t *inputs, const uint8_t *weights, int64_t blocks,
                            int64_t from, const Place *at, float *result) {
    const int parts = SCALES(kind);
    for (int64_t g = 0; g < blocks * GROUPS; g++, inputs += GROUP_WORDS * rows) {
        const uint8_t *block = weights + g / GROUPS * SUPERBLOCK_BYTES(kind) * WIDTH;
        const uint8_t *group = block + (HEAD_BYTES(kind) + g % GROUPS * K_GROUP_BYTES(kind)) * WIDTH;
        vec scaled[ROWS][VECTORS];
        fetch_next(at, from + g, 1);
        UNROLL for (int part = 0; part < parts; part++) {
            ivec total[ROWS][VECTORS];
            UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < VECTORS; v++)
                total[r][v] = first_total(kind, part, inputs + r);
            add_quants(rows, kind, part, inputs, group, total);
            vec scale[VECTORS];
            UNROLL for (int v = 0; v < VECTORS; v++) scale[v] = scale_of(block, group + part * WIDTH, v, kind == Q6_K);
            UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < VECTORS; v++) {
                const vec sum = __builtin_convertvector(total[r][v], vec);
                scaled[r][v] = part ? fused(sum, scale[v], scaled[r][v]) : sum * scale[v];
            }
        }
        vec least[VECTORS];
        UNROLL for (int v = 0; v < VECTORS; v++)
            if (kind != Q6_K) least[v] = scale_of(block + 2 * WIDTH, group + WIDTH, v, 0);
        UNROLL for (int r = 0; r < rows; r++) {
            const vec offset = (vec)repeated(inputs + r), step = (vec)repeated(inputs + rows + r);
            UNROLL for (int v = 0; v < VECTORS; v++) {
                float *to = result + r * WIDTH + v * LANES;
                const vec sum = kind == Q6_K ? load(to) : fused(least[v], offset, load(to));
                store(to, fused(scaled[r][v], step, sum));
            }
        }
    }
}

EACH_HEIGHT(q4_k_rows, superblock_rows, Q4_K)
EACH_HEIGHT(q5_k_rows, superblock_rows, Q5_K)
EACH_HEIGHT(q6_k_rows, superblock_rows, Q6_K)

/* ---- One output ---- */

/* Its weights in a superblock of a tile: [256]. */
INLINE void superblock_numbers(const int kind, const uint8_t *block, int64_t lane, float *out) {
    const float d = float16_at(block + 2 * lane), m = kind == Q6_K ? 0 : float16_at(block + 2 * (WIDTH + lane));
    for (int k = 0; k < GROUPS * GROUP; k++) {
        const uint8_t *group = block + (HEAD_BYTES(kind) + k / GROUP * K_GROUP_BYTES(kind)) * WIDTH;
        const int half = k / HALF % 2, s = k / 4 % 4, i = k % 4;
        const uint8_t *planes = group + PLANES * WIDTH + 4 * lane + i;
        int q = group[NIBBLES(kind) * WIDTH + (s * WIDTH + lane) * 4 + i] >> 4 * half & 15;
        if (kind == Q5_K) q |= (planes[0] >> (4 * half + s) & 1) << 4;
        if (kind == Q6_K) q |= (planes[half * WIDTH * 4] >> 2 * s & 3) << 4;
        if (kind == Q6_K) out[k] = d * (int8_t)group[half * WIDTH + lane] * (q - 32);
        else out[k] = d * group[lane] * q - m * group[WIDTH + lane];
    }
}

/* q of input k in a file's superblock. */
INLINE int file_quant(const int kind, const uint8_t *block, const int k) {
    if (kind == Q6_K) { /* 128 bytes of low bits, 64 of high ones: of 128 inputs every 64th and every 32nd share a byte */
        const int low = block[k / 128 * 64 + k % 64] >> k / 64 % 2 * 4 & 15;
        return low | (block[128 + k / 128 * 32 + k % 32] >> k / 32 % 4 * 2 & 3) << 4;
    }
    const uint8_t *high = block + 16, *nibbles = high + (kind == Q5_K ? 32 : 0);
    const int low = nibbles[k / 64 * 32 + k % 32] >> k / 32 % 2 * 4 & 15;
    return kind == Q5_K ? low | (high[k % 32] >> k / 32 & 1) << 4 : low;
}

/* s and l of group g of a file's superblock: of Q4_K and Q5_K 6 bits each, in 12 bytes. */
INLINE void file_scales(const int kind, const uint8_t *block, int g, uint8_t scales[2]) {
    const uint8_t *packed = block + 4;
    if (kind == Q6_K) memcpy(scales, block + 192 + 2 * g, 2);
    else if (g < 4) scales[0] = packed[g] & 63, scales[1] = packed[g + 4] & 63;
    else {
        scales[0] = (packed[g + 4] & 15) | packed[g - 4] >> 6 << 4;
        scales[1] = packed[g + 4] >> 4 | packed[g] >> 6 << 4;
    }
}

/* A file's superblock into an output's lane of a tile's, which was 0. */
INLINE void pack_superblock(const int kind, const uint8_t *from, int64_t lane, uint8_t *to) {
    memcpy(to + 2 * lane, from + (kind == Q6_K ? 208 : 0), 2);
    if (kind != Q6_K) memcpy(to + 2 * (WIDTH + lane), from + 2, 2);
    for (int k = 0; k < GROUPS * GROUP; k++) {
        uint8_t *group = to + (HEAD_BYTES(kind) + k / GROUP * K_GROUP_BYTES(kind)) * WIDTH;
        const int half = k / HALF % 2, s = k / 4 % 4, i = k % 4, q = file_quant(kind, from, k);
        uint8_t *planes = group + PLANES * WIDTH + 4 * lane + i;
        group[NIBBLES(kind) * WIDTH + (s * WIDTH + lane) * 4 + i] |= (q & 15) << 4 * half;
        if (kind == Q5_K) planes[0] |= (q >> 4) << (4 * half + s);
        if (kind == Q6_K) planes[half * WIDTH * 4] |= (q >> 4) << 2 * s;
    }
    for (int g = 0; g < GROUPS; g++) {
        uint8_t scales[2], *own = to + (HEAD_BYTES(kind) + g * K_GROUP_BYTES(kind)) * WIDTH + lane;
        file_scales(kind, from, g, scales);
        own[0] = scales[0], own[WIDTH] = scales[1];
    }
}

#define FORMAT(kind, name) \
    static void name##_numbers(const uint8_t *block, int64_t lane, float *out) { \
        superblock_numbers(kind, block, lane, out); \
    } \
    static void name##_pack(const uint8_t *from, int64_t lane, uint8_t *to) { pack_superblock(kind, from, lane, to); } \
    const BlockFormat name##_format = {GROUPS, SUPERBLOCK_BYTES(kind), name##_rows, name##_numbers};
FORMAT(Q4_K, q4_k)
FORMAT(Q5_K, q5_k)
FORMAT(Q6_K, q6_k)

/* Pack a file's superblocks [tiles * WIDTH, count] of whole tiles. */
void pack_superblocks(int64_t kind, const uint8_t *blocks, int64_t tiles, int64_t count, uint8_t *packed) {
    const int64_t file_bytes = kind == Q4_K ? 144 : kind == Q5_K ? 176 : 210, size = block_format(kind)->bytes * WIDTH;
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t tile = 0; tile < tiles; tile++) for (int64_t b = 0; b < count; b++) {
        uint8_t *to = packed + (tile * count + b) * size;
        memset(to, 0, size);
        for (int64_t lane = 0; lane < WIDTH; lane++) {
            const uint8_t *from = blocks + ((tile * WIDTH + lane) * count + b) * file_bytes;
            (kind == Q4_K ? q4_k_pack : kind == Q5_K ? q5_k_pack : q6_k_pack)(from, lane, to);
        }
    }
}
