/* Samples tokens from rows of logits, over plain arrays. A row's result depends on that row alone. */

#include "vectors.h"

#define WORD 32       /* ids in a word of a mask */
#define BLOCK 256     /* ids whose probabilities are summed up first */
#define BLOCKS 8192   /* most of them, for which there is room on a thread's stack */
#define NOTHING -87.0f /* e to the power of less is 0 here */

/* Logits where their bit is set, -inf where not; the first one has the lowest bit. */
INLINE vec masked(vec x, uint32_t bits) {
    ivec place;
    for (int lane = 0; lane < LANES; lane++) place[lane] = lane;
    return choose(-(((ivec){0} + (int32_t)bits) >> place & 1), x, fill(-INFINITY));
}

/* Make -inf every logit whose bit is 0. logits: [.., vocabulary], of which the given rows; words: [count, width]. */
void apply_masks(float *logits, const int64_t *rows, const uint32_t *words, int64_t count, int64_t vocabulary, int64_t width) {
    for (int64_t one = 0; one < count; one++) {
        float *row = logits + rows[one] * vocabulary;
        for (int64_t i = 0; i < width; i++, row += WORD) {
            const uint32_t word = words[one * width + i];
            const int64_t left = vocabulary - WORD * i;
            if (word == UINT32_MAX) continue;
            if (left < WORD) {
                for (int64_t j = 0; j < left; j++) row[j] = word >> j & 1 ? row[j] : -INFINITY;
                continue;
            }
            for (int j = 0; j < WORD; j += LANES) store(row + j, masked(load(row + j), word >> j));
        }
    }
}

typedef struct {
    const uint32_t *allowed; /* bits, or NULL: all; words without any are skipped */
    const int64_t *barred;   /* ids that count in the normaliser, but are not sampled */
    int64_t bars;            /* how many */
    int64_t row;             /* in the batch */
    int64_t token;           /* the one to be scored, or -1: sampled here */
    int64_t mask_logits;     /* whether all that is not allowed must become -inf in the batch, too */
    double uniform;          /* in [0, 1): how far into the cumulative sum of probabilities */
    float temperature;       /* 0: the likeliest */
    float highest;           /* logit; not finite where the row is no distribution */
    float normaliser;        /* log of the sum of all exponentials */
} Row;

typedef struct {
    float *row;       /* the whole words of it */
    float rest[WORD]; /* what is behind them, -inf behind the last one */
    const uint32_t *allowed;
    int64_t whole, words;
} View;

INLINE uint32_t word_of(const View *v, int64_t i) { return v->allowed ? v->allowed[i] : UINT32_MAX; }

INLINE const float *logits_of(const View *v, int64_t i) { return i < v->whole ? v->row + WORD * i : v->rest; }

INLINE float *logit_of(View *v, int64_t id) { return id < WORD * v->whole ? v->row + id : v->rest + id % WORD; }

INLINE float highest_lane(vec x) {
    float best = x[0];
    for (int lane = 1; lane < LANES; lane++) best = x[lane] > best ? x[lane] : best;
    return best;
}

INLINE vec weight(vec x) { return choose(x > fill(NOTHING), exponential(x), fill(0)); }

/* Put the mask on, and find the highest logit; NaN where there is one. */
static float mask(View *v, float *row, int64_t vocabulary, int in_place) {
    vec most = fill(-INFINITY);
    ivec odd = {0};
    for (int64_t i = 0; i < v->words; i++) {
        const uint32_t word = word_of(v, i);
        const int64_t left = vocabulary - WORD * i;
        float *at = row + WORD * i;
        if (left < WORD) {
            for (int64_t j = 0; j < left; j++) {
                v->rest[j] = word >> j & 1 ? at[j] : -INFINITY;
                if (in_place) at[j] = v->rest[j];
            }
            at = v->rest;
        } else if (!word) {
            if (in_place) for (int j = 0; j < WORD; j += LANES) store(at + j, fill(-INFINITY));
            continue;
        }
        for (int j = 0; j < WORD; j += LANES) {
            vec x = load(at + j);
            if (word != UINT32_MAX && left >= WORD) {
                x = masked(x, word >> j);
                store(at + j, x);
            }
            odd |= x != x;
            most = highest(x, most);
        }
    }
    int32_t any = 0;
    for (int lane = 0; lane < LANES; lane++) any |= odd[lane];
    return any ? NAN : highest_lane(most);
}

static float highest_logit(const View *v) {
    vec most = fill(-INFINITY);
    for (int64_t i = 0; i < v->words; i++) {
        if (!word_of(v, i)) continue;
        for (int j = 0; j < WORD; j += LANES) most = highest(load(logits_of(v, i) + j), most);
    }
    return highest_lane(most);
}

static int64_t likeliest(const View *v, float best) {
    for (int64_t i = 0; i < v->words; i++) {
        if (!word_of(v, i)) continue;
        const float *at = logits_of(v, i);
        for (int j = 0; j < WORD; j++) {
            if (at[j] == best) return WORD * i + j;
        }
    }
    return 0;
}

/* Sum up exponentials of the heated logits block by block, each sum with those before it; the last one is of all. */
static double sum_up(const View *v, float best, float heat, double *sums) {
    double total = 0;
    for (int64_t block = 0; block * BLOCK < v->words * WORD; block++) {
        const int64_t first = block * (BLOCK / WORD), behind = first + BLOCK / WORD;
        vec own = {0};
        for (int64_t i = first; i < behind && i < v->words; i++) {
            if (!word_of(v, i)) continue;
            for (int j = 0; j < WORD; j += LANES) own += weight((load(logits_of(v, i) + j) - best) * heat);
        }
        total += sum(own);
        sums[block] = total;
    }
    return total;
}

/* Where the cumulative sum of probabilities passes a part of all. */
static int64_t passed(const View *v, float best, float heat, const double *sums, double uniform) {
    const int64_t blocks = (v->words * WORD + BLOCK - 1) / BLOCK;
    const double goal = uniform * sums[blocks - 1];
    int64_t block = 0; /* the last one with any weight, should rounding let none pass */
    for (int64_t b = 0; b < blocks; b++) {
        if (sums[b] > (b ? sums[b - 1] : 0)) block = b;
        if (sums[b] > goal) break;
    }
    double at = block ? sums[block - 1] : 0;
    int64_t token = 0;
    for (int64_t i = block * (BLOCK / WORD); i < (block + 1) * (BLOCK / WORD) && i < v->words; i++) {
        if (!word_of(v, i)) continue;
        float weights[WORD];
        for (int j = 0; j < WORD; j += LANES) store(weights + j, weight((load(logits_of(v, i) + j) - best) * heat));
        for (int j = 0; j < WORD; j++) {
            if (weights[j] == 0) continue;
            token = WORD * i + j;
            at += weights[j];
            if (at > goal) return token;
        }
    }
    return token;
}

/* Sample from what is not barred; sums: those of the logits as they are. */
static int64_t sample_view(View *v, const Row *one, double *sums) {
    const float best = one->bars ? highest_logit(v) : one->highest, heat = one->temperature > 0 ? 1 / one->temperature : 0;
    if (best == -INFINITY) return -1;
    if (!heat) return likeliest(v, best);
    if (one->bars || heat != 1) sum_up(v, best, heat, sums);
    return passed(v, best, heat, sums, one->uniform);
}

static void sample_row(float *row, int64_t vocabulary, Row *one) {
    View v = {row, {0}, one->allowed, vocabulary / WORD, (vocabulary + WORD - 1) / WORD};
    for (int j = 0; j < WORD; j++) v.rest[j] = -INFINITY;
    const int samples = one->token < 0;
    one->highest = mask(&v, row, vocabulary, (int)one->mask_logits);
    one->normaliser = NAN;
    if (samples) one->token = 0;
    if (!isfinite(one->highest)) return;
    double sums[BLOCKS];
    one->normaliser = one->highest + (float)log(sum_up(&v, one->highest, 1, sums));
    if (!samples) return;
    float counted[one->bars + 1];
    for (int64_t i = 0; i < one->bars; i++) {
        counted[i] = *logit_of(&v, one->barred[i]);
        *logit_of(&v, one->barred[i]) = -INFINITY;
    }
    one->token = sample_view(&v, one, sums);
    for (int64_t i = 0; i < one->bars; i++) *logit_of(&v, one->barred[i]) = counted[i];
    if (one->token < 0) one->token = 0, one->highest = -INFINITY;
}

/* Sample from rows, or score them. logits: [.., vocabulary], changed where masks forbid. */
void sample(float *logits, int64_t vocabulary, Row *all, int64_t count) {
#pragma omp parallel for num_threads(team) schedule(dynamic, 1) if (count * vocabulary > 4 * PARALLEL_FROM)
    for (int64_t i = 0; i < count; i++) sample_row(logits + all[i].row * vocabulary, vocabulary, all + i);
}

/* The widest rows there is room for. */
int64_t max_vocabulary(void) { return (int64_t)BLOCK * BLOCKS; }
