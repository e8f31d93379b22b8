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
