/* Products of bytes: what tiles of quantized weights are multiplied by. */

#pragma once

#include "vectors.h"

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
