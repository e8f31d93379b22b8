/* The decoder layers of the compiled forward pass on CPU, over plain arrays.

   Letters: T tokens of the batch, H query heads, KV key heads, G = H / KV, D head size.

   Every number is computed by the same operations in the same order whatever else is in the batch and however many
   threads there are: for products see products.c, a query's attention is one walk over its own stream's positions. So a
   stream's bits do not depend on its neighbours, not even on there being any.

   Compiled at load for the processor at hand, see library.py. Integers are int64 throughout, as in torch. */

#include <string.h>
#include <sys/mman.h>

#include "kernels.h"

#define BLOCK 16 /* positions in a block of the key-value cache */
#define PARTS (BLOCK / LANES)
#define SPAN (4 * BLOCK) /* positions that a query looks at together */
#define QUERIES (LANES / 2) /* that look together: what fits into the registers */
#define ABREAST 4 /* vectors of values that are mixed together */

typedef struct {
    const float *norm, *norm_bias;
    Product qkv[3]; /* side by side in one row of results; those behind the last one have no outputs */
    const float *head_norm; /* [H + KV, D] or NULL */
    Product output;
    const float *mlp_norm, *mlp_norm_bias;
    Product up; /* gated: in each tile a vector of gates, then one of what they let through */
    Product down;
    int64_t window; /* how many positions back a query sees, itself included; 0: all */
    void *keys;   /* [KV, blocks, D, BLOCK] */
    void *values; /* [KV, blocks, BLOCK, D] */
} Layer;

typedef struct {
    int64_t heads, kv_heads, head_dim, hidden, inner, head_stride; /* head_stride: numbers from one KV head to the next */
    int64_t centred; /* norms: 1 subtracts the mean (layer norm), 0 does not (RMS norm) */
    int64_t gated;   /* MLP: 1 SiLU-gated, 0 tanh-GELU */
    int64_t halved;  /* keys and values: 1 float16, 0 float32 */
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

/* Store one head's key and value at a place of a block. ahead: the block that the next ones go to, each of a decode
   step to one of its own. */
static void keep(const Layer *layer, const float *key, const float *value, int64_t size, int64_t block, int64_t place,
                 int64_t ahead) {
    float *keys = (float *)layer->keys + block + place;
    for (int64_t i = 0; i < size; i++) {
        __builtin_prefetch((float *)layer->keys + ahead + i * BLOCK, 1, 3);
        keys[i * BLOCK] = key[i];
    }
    memcpy((float *)layer->values + block + place * size, value, size * sizeof(float));
}

static void store_float16(const float *from, int64_t count, uint16_t *to) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) to_float16(load(from + i), to + i);
    if (i == count) return;
    float rest[LANES] = {0};
    uint16_t halves[LANES];
    memcpy(rest, from + i, (count - i) * sizeof(float));
    to_float16(load(rest), halves);
    memcpy(to + i, halves, (count - i) * sizeof(uint16_t));
}

static void keep_half(const Layer *layer, const float *key, const float *value, int64_t size, int64_t block,
                      int64_t place, int64_t ahead) {
    uint16_t *keys = (uint16_t *)layer->keys + block + place, halves[size];
    store_float16(key, size, halves);
    for (int64_t i = 0; i < size; i++) {
        __builtin_prefetch((uint16_t *)layer->keys + ahead + i * BLOCK, 1, 3);
        keys[i * BLOCK] = halves[i];
    }
    store_float16(value, size, (uint16_t *)layer->values + block + place * size);
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
        const int64_t slot = step->slots[row], next = step->slots[row + 1 < step->stored ? row + 1 : row];
        for (int64_t head = 0; head < m->kv_heads; head++) {
            const float *key = qkv + (m->heads + head) * size, *value = key + m->kv_heads * size;
            const int64_t block = head * m->head_stride + slot / BLOCK * BLOCK * size, place = slot % BLOCK;
            const int64_t ahead = head * m->head_stride + next / BLOCK * BLOCK * size;
            if (m->halved) keep_half(layer, key, value, size, block, place, ahead);
            else keep(layer, key, value, size, block, place, ahead);
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

/* A span of a stream's positions under one key head, on the way over all of them. */
typedef struct {
    const int64_t *table;
    int64_t head;                /* where the key head begins in keys and in values */
    int64_t start, end;          /* blocks of the stream: the span's first one, and behind the last one of all */
    int64_t at[SPAN / BLOCK];    /* where its blocks begin; those that it lacks: the first one again */
    int64_t next[SPAN / BLOCK];  /* the same of the span that comes next, wherever that is */
    int blocks;
} Walk;

static void place_blocks(const Model *m, Walk *walk, int64_t *at) {
    walk->blocks = walk->end - walk->start < SPAN / BLOCK ? (int)(walk->end - walk->start) : SPAN / BLOCK;
    for (int i = 0; i < SPAN / BLOCK; i++)
        at[i] = walk->head + walk->table[walk->start + (i < walk->blocks ? i : 0)] * BLOCK * m->head_dim;
}

/* A vector of stored numbers, from number `at` on. halved: whether they are float16. */
INLINE vec stored(const int halved, const void *memory, int64_t at) {
    return halved ? from_float16((const uint16_t *)memory + at) : load((const float *)memory + at);
}

/* Ask memory for so many numbers: keys and values of a block fill a page, beyond which processors do not look ahead. */
INLINE void fetch(const int halved, const void *memory, int64_t at, int64_t count) {
    const int64_t width = halved ? sizeof(uint16_t) : sizeof(float);
    const char *from = (const char *)memory + at * width;
    for (int64_t i = 0; i < count * width; i += LINE) __builtin_prefetch(from + i, 0, 2);
}

/* packed: [D, QUERIES]. own: where the block begins in `keys`; next: the one to ask memory for meanwhile. */
INLINE void score(const int rows, const int halved, const float *packed, const void *keys, int64_t own, int64_t next,
                  int64_t size, float scores[][SPAN]) {
    vec total[QUERIES][PARTS][2];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int p = 0; p < PARTS; p++) UNROLL for (int k = 0; k < 2; k++)
        total[r][p][k] = (vec){0};
    for (int64_t i = 0; i < size; i += 2) { /* two chains of sums: a chain alone would wait for itself */
        fetch(halved, keys, next + i * BLOCK, 2 * BLOCK);
        UNROLL for (int k = 0; k < 2; k++) UNROLL for (int p = 0; p < PARTS; p++) {
            vec key = stored(halved, keys, own + (i + k) * BLOCK + p * LANES);
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
    for (int lane = 0; lane < LANES; lane++) place[lane] = lane;
    const int32_t last = (int32_t)(position - start), before = window ? last - (int32_t)window : -1;
    vec high = fill(*most), total = {0};
    for (int i = 0; i < count; i += LANES) {
        const ivec at = place + i;
        vec own = choose((at <= last) & (at > before), load(scores + i) * m->scaling, fill(-INFINITY));
        store(scores + i, own);
        high = highest(high, own);
    }
    const float top = largest(high);
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

/* Mix `vectors` vectors of the values, from number i of each on. */
INLINE void mix_vectors(const int rows, const int halved, const int vectors, const Look *look, const Walk *walk,
                        const void *values, int64_t size, int64_t i, float shares[][SPAN], const float *keep) {
    vec total[QUERIES][ABREAST];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < vectors; v++)
        total[r][v] = load(look->out[r] + i + v * LANES) * keep[r];
    for (int block = 0; block < walk->blocks; block++) {
        int64_t own = walk->at[block] + i, next = walk->next[block] + i;
        for (int j = 0; j < BLOCK; j++, own += size, next += size) {
            vec value[ABREAST];
            fetch(halved, values, next, vectors * LANES);
            UNROLL for (int v = 0; v < vectors; v++) value[v] = stored(halved, values, own + v * LANES);
            UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < vectors; v++)
                total[r][v] = fused(fill(shares[r][block * BLOCK + j]), value[v], total[r][v]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < vectors; v++)
        store(look->out[r] + i + v * LANES, total[r][v]);
}

/* values: the layer's. Of few queries more vectors are mixed side by side: a chain alone would wait for itself. */
INLINE void mix(const int rows, const int halved, const Look *look, const Walk *walk, const void *values, int64_t size,
                float shares[][SPAN], const float *keep) {
    const int vectors = rows <= QUERIES / 2 ? ABREAST : ABREAST / 2;
    int64_t i = 0;
    for (; i + vectors * LANES <= size; i += vectors * LANES)
        mix_vectors(rows, halved, vectors, look, walk, values, size, i, shares, keep);
    for (; i + LANES <= size; i += LANES) mix_vectors(rows, halved, 1, look, walk, values, size, i, shares, keep);
    for (; i < size; i++) for (int r = 0; r < rows; r++) {
        float total = look->out[r][i] * keep[r];
        for (int j = 0; j < walk->blocks * BLOCK; j++) {
            const int64_t at = walk->at[j / BLOCK] + j % BLOCK * size + i;
            const float value = halved ? float16_at((const uint16_t *)values + at) : ((const float *)values)[at];
            total = fused(fill(shares[r][j]), fill(value), fill(total))[0];
        }
        look->out[r][i] = total;
    }
}

INLINE void look_rows(const int rows, const int halved, const Model *m, const Layer *layer, Look *look,
                      const Walk *walk) {
    const int64_t size = m->head_dim;
    float keep[QUERIES], scores[QUERIES][SPAN];
    for (int block = 0; block < walk->blocks; block++) {
        float(*own)[SPAN] = (float(*)[SPAN])(scores[0] + block * BLOCK);
        score(rows, halved, look->packed, layer->keys, walk->at[block], walk->next[block], size, own);
    }
    for (int r = 0; r < rows; r++)
        weigh(m, layer->window, look->position[r], walk->start * BLOCK, walk->blocks * BLOCK, scores[r],
              look->most + r, look->weight + r, keep + r);
    mix(rows, halved, look, walk, layer->values, size, scores, keep);
}

#define LOOK_CASE(n) case n: if (n <= QUERIES) look_rows(n, halved, m, layer, look, walk); break;
INLINE void look_at(const int halved, const Model *m, const Layer *layer, Look *look, const Walk *walk) {
    switch (look->rows) {
        LOOK_CASE(1) LOOK_CASE(2) LOOK_CASE(3) LOOK_CASE(4) LOOK_CASE(5) LOOK_CASE(6) LOOK_CASE(7) LOOK_CASE(8)
    }
}

static void look_at_floats(const Model *m, const Layer *layer, Look *look, const Walk *walk) {
    look_at(0, m, layer, look, walk);
}

static void look_at_halves(const Model *m, const Layer *layer, Look *look, const Walk *walk) {
    look_at(1, m, layer, look, walk);
}

/* The first span of a task: the queries of one unit under one key head. */
static Walk first_span(const Model *m, const Layer *layer, const Group *group, int64_t task) {
    const int64_t *positions = group->positions + task / m->kv_heads * group->queries, window = layer->window;
    const int64_t first = window && positions[0] >= window ? positions[0] - window + 1 : 0;
    Walk walk = {
        .table = group->table + task / m->kv_heads * group->width,
        .head = task % m->kv_heads * m->head_stride,
        .start = first / SPAN * (SPAN / BLOCK),
        .end = positions[group->queries - 1] / BLOCK + 1,
    };
    place_blocks(m, &walk, walk.at);
    return walk;
}

/* All queries of a task; a span's keys and values stay in the cache for all of them. then: a task that comes later. */
static void attend_task(const Model *m, const Layer *layer, const Step *step, const Group *group, int64_t task,
                        int64_t then) {
    const int64_t size = m->head_dim, each = m->heads / m->kv_heads, all = m->heads + 2 * m->kv_heads;
    const int64_t unit = task / m->kv_heads, kv_head = task % m->kv_heads;
    const int64_t *positions = group->positions + unit * group->queries;
    const int64_t rows = group->queries * each, count = (rows + QUERIES - 1) / QUERIES;
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
    Walk walk = first_span(m, layer, group, task), next = walk;
    for (; walk.start < walk.end; walk = next) {
        next.start += SPAN / BLOCK;
        if (next.start < next.end) place_blocks(m, &next, next.at);
        const Walk ahead = next.start < next.end ? next : first_span(m, layer, group, then);
        memcpy(walk.next, ahead.at, sizeof walk.next);
        for (int64_t i = 0; i < count; i++) {
            (m->halved ? look_at_halves : look_at_floats)(m, layer, looks + i, &walk);
            if (!i) memcpy(walk.next, walk.at, sizeof walk.next); /* asked for once: these are near */
        }
    }
    for (int64_t row = 0; row < rows; row++) {
        const Look *look = looks + row / QUERIES;
        const float weight = sum(look->weight[row % QUERIES]);
        for (int64_t i = 0; i < size; i++) look->out[row % QUERIES][i] /= weight;
    }
}

static void attend(const Model *m, const Layer *layer, const Step *step, const Group *group) {
    const int64_t work = group->count * group->queries * group->width * BLOCK * m->heads * m->head_dim;
    const int64_t tasks = group->count * m->kv_heads;
#pragma omp parallel for num_threads(team) schedule(dynamic, 1) if (work > 4 * PARALLEL_FROM)
    for (int64_t task = 0; task < tasks; task++)
        attend_task(m, layer, step, group, task, task + team < tasks ? task + team : task);
}

/* ---- Layers ---- */

/* Queries, keys and values, of as many products as their weights have formats. */
static void project(const Model *m, const Product qkv[3], const Step *step) {
    const int64_t stride = (m->heads + 2 * m->kv_heads) * m->head_dim;
    float *out = step->qkv;
    for (int i = 0; i < 3 && qkv[i].outputs; out += qkv[i++].outputs)
        product(qkv + i, step->normed, step->tokens, STORE, out, stride, step->room);
}

static void layer(const Model *m, const Layer *own, const Step *step) {
    const int64_t tokens = step->tokens;
    norm(step->hidden, own->norm, own->norm_bias, tokens, m->hidden, m->centred, m->eps, step->normed);
    project(m, own->qkv, step);
    place(m, own, step);
    for (int64_t group = 0; group < step->group_count; group++) attend(m, own, step, step->groups + group);
    product(&own->output, step->attended, tokens, ADD, step->hidden, m->hidden, step->room);
    norm(step->hidden, own->mlp_norm, own->mlp_norm_bias, tokens, m->hidden, m->centred, m->eps, step->normed);
    product(&own->up, step->normed, tokens, m->gated ? GATED : GELU, step->inner, m->inner, step->room);
    product(&own->down, step->inner, tokens, ADD, step->hidden, m->hidden, step->room);
}

/* All layers, over the hidden states in place. */
void layers(const Model *m, const Layer *all, int64_t count, const Step *step) {
    for (int64_t index = 0; index < count; index++) layer(m, all + index, step);
}
