/* The decoder layers of the compiled forward pass on CPU, over plain arrays.

   Letters: T tokens of the batch, H query heads, KV key heads, G = H / KV, D head size.

   Every number is computed by the same operations in the same order whatever else is in the batch and however many
   threads there are: for products see products.c, a query's attention is one walk over its own stream's positions. So a
   stream's bits do not depend on its neighbours, not even on there being any.

   Compiled at load for the processor at hand, see library.py. Integers are int64 throughout, as in torch. */

#include <string.h>
#include <sys/mman.h>

#include "products.h"

#define BLOCK 16 /* positions in a block of the key-value cache */
#define PARTS (BLOCK / LANES)
#define SPAN (4 * BLOCK) /* positions that a query looks at together */
#define QUERIES (LANES / 2) /* that look together: what fits into the registers */

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
