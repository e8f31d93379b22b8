/* Matrix products with packed weights: what the layers need of products.c. */

#pragma once

#include "vectors.h"

enum { FLOAT32, BFLOAT16, INT8, INT4, Q4_K, Q5_K, Q6_K }; /* what weights are stored as */
enum { STORE, ADD, GATED, GELU };                         /* what becomes of a product */

typedef struct {
    const void *weights; /* tiles, see products.c */
    const float *bias;   /* [N] or NULL */
    int64_t inputs, outputs, kind;
} Product;

/* inputs [T, K] to out [T, stride]. room: of 4 * TOGETHER * max(K, 10) bytes, or 4 * T * max(K, 10) where that is less. */
void product(const Product *p, const float *inputs, int64_t tokens, int64_t mode, float *out, int64_t stride, void *room);
