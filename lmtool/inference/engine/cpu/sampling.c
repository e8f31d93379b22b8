/* Samples tokens from rows of logits, over plain arrays. A row's result depends on that row alone. */

#include <float.h>
#include <string.h>

#include "kernels.h"

#define WORD 32       /* ids in a word of a mask */
#define BLOCK 256     /* ids whose probabilities are summed up first */
#define BLOCKS 8192   /* most of them, for which there is room on a thread's stack */
#define NOTHING -87.0f /* e to the power of less is 0 here */
#define NEAR 3.0f      /* nats under the likeliest, within which a cut is looked for first, then within more */
#define MOST_NEAR 4096 /* logits that are looked at by themselves for that; a multiple of WORD */

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
    int64_t *barred;         /* ids that count in the normaliser, but are not sampled; then as many words to work in */
    int64_t bars;            /* how many ids */
    int64_t row;             /* in the batch; -1: its place here */
    int64_t token;           /* the one to be scored, or -1: sampled here */
    int64_t mask_logits;     /* whether all that is not allowed must become -inf in the batch, too */
    int64_t top_k;           /* the likeliest that stay; 0: all */
    double uniform;          /* in [0, 1): how far into the cumulative sum of probabilities */
    float temperature;       /* 0: the likeliest */
    float top_p, min_p;      /* shares: of all that top_k leaves, and of the likeliest; 1 and 0: all */
    float highest;           /* logit; not finite where the row is no distribution */
    float normaliser;        /* log of the sum of all exponentials */
    int32_t sampled;         /* the token */
    float logprob;           /* of it, at most 0 and finite; NaN where the row is no distribution */
    int32_t likeliest;       /* of all that is allowed, the first one */
    float highest_logprob;   /* of that */
} Row;

/* The ids that are left of a row: those above `tie`, and as likely ones up to the id `last`; none below `floor`. */
typedef struct {
    float tie, floor;
    int64_t last;
} Cut;

typedef struct {
    float *row;       /* the whole words of it */
    float rest[WORD]; /* what is behind them, -inf behind the last one */
    const uint32_t *allowed;
    int64_t whole, words;
    const Cut *cut; /* or NULL: all are left */
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

/* Exponentials of the heated logits from id `WORD * i + j` on; 0 for what is cut. */
INLINE vec weights_at(const View *v, int64_t i, int j, float best, float heat) {
    const vec x = load(logits_of(v, i) + j), all = weight((x - best) * heat);
    if (!v->cut) return all;
    ivec id;
    for (int lane = 0; lane < LANES; lane++) id[lane] = lane;
    id += (int32_t)(WORD * i + j);
    const ivec kept = (x > v->cut->tie) | ((x == v->cut->tie) & (id <= (int32_t)v->cut->last));
    return choose(kept & (x >= v->cut->floor), all, (vec){0});
}

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

INLINE float at_most_zero(float x) { return x > 0 ? 0 : x; }

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
        ivec equal = {0};
        for (int j = 0; j < WORD; j += LANES) equal |= load(at + j) == best;
        int32_t any = 0;
        for (int lane = 0; lane < LANES; lane++) any |= equal[lane];
        for (int j = 0; any && j < WORD; j++) {
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
            for (int j = 0; j < WORD; j += LANES) own += weights_at(v, i, j, best, heat);
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
        for (int j = 0; j < WORD; j += LANES) store(weights + j, weights_at(v, i, j, best, heat));
        for (int j = 0; j < WORD; j++) {
            if (weights[j] == 0) continue;
            token = WORD * i + j;
            at += weights[j];
            if (at > goal) return token;
        }
    }
    return token;
}

/* Above a logit: how many there are, and the sum of their exponentials. */
typedef struct {
    int64_t count;
    double mass;
} Above;

static Above above(const View *v, float best, float heat, float limit) {
    Above found = {0, 0};
    for (int64_t first = 0; first < v->words; first += BLOCK / WORD) {
        const int64_t behind = first + BLOCK / WORD;
        vec own = {0};
        ivec count = {0};
        for (int64_t i = first; i < behind && i < v->words; i++) {
            if (!word_of(v, i)) continue;
            for (int j = 0; j < WORD; j += LANES) {
                const vec x = load(logits_of(v, i) + j);
                const ivec higher = x > limit;
                count -= higher;
                own += choose(higher, weight((x - best) * heat), (vec){0});
            }
        }
        for (int lane = 0; lane < LANES; lane++) found.count += count[lane];
        found.mass += sum(own);
    }
    return found;
}

/* Numbers in their order as whole ones, both zeros as one, and back. */
INLINE int64_t rank_of(float x) {
    int32_t bits;
    memcpy(&bits, &x, 4);
    return bits < 0 ? (int64_t)INT32_MIN - bits : bits;
}

INLINE float of_rank(int64_t rank) {
    const int32_t bits = (int32_t)(rank < 0 ? INT32_MIN - rank : rank);
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* The lowest logit above which there are fewer than `count`, weighing less than `mass`, by bisection; `over` is set to
   what is above it. There are as many above `under`. */
static float lowest_kept(const View *v, float best, float heat, int64_t count, double mass, float under, Above *over) {
    int64_t low = rank_of(under), high = rank_of(best);
    *over = (Above){0, 0};
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        const Above found = above(v, best, heat, of_rank(middle));
        if (found.count < count && found.mass < mass) high = middle, *over = found;
        else low = middle;
    }
    return of_rank(high);
}

/* The logits near the likeliest, in `room` of MOST_NEAR, as a view of their own; 0 where there are more. */
static int near_ones(const View *v, float limit, float *room, View *near) {
    int64_t count = 0;
    for (int64_t i = 0; i < v->words; i++) {
        if (!word_of(v, i)) continue;
        const float *at = logits_of(v, i);
        vec most = load(at);
        for (int j = LANES; j < WORD; j += LANES) most = highest(most, load(at + j));
        if (!(highest_lane(most) > limit)) continue;
        if (count + WORD > MOST_NEAR) return 0;
        for (int j = 0; j < WORD; j++) {
            room[count] = at[j];
            count += at[j] > limit;
        }
    }
    for (; count % WORD; count++) room[count] = -INFINITY;
    *near = (View){.row = room, .whole = count / WORD, .words = count / WORD};
    return 1;
}

/* Of so many equally likely ones the first `count`: the last one's id. */
static int64_t last_of_equals(const View *v, float tie, int64_t count) {
    int64_t last = -1;
    for (int64_t i = 0; i < v->words; i++) {
        if (!word_of(v, i)) continue;
        const float *at = logits_of(v, i);
        for (int j = 0; j < WORD; j++) {
            if (at[j] != tie) continue;
            last = WORD * i + j;
            if (!--count) return last;
        }
    }
    return last;
}

/* The lowest logit that stays, as `lowest_kept`; looked for among the likeliest first. */
static float find_lowest(const View *v, float best, float heat, int64_t count, double mass, Above *over) {
    float room[MOST_NEAR];
    View near;
    for (float nats = NEAR; nats < -NOTHING; nats *= 1.5f) {
        const float limit = best - nats / heat;
        if (!near_ones(v, limit, room, &near)) break;
        const Above inside = above(&near, best, heat, limit);
        if (inside.count >= count || inside.mass >= mass) return lowest_kept(&near, best, heat, count, mass, limit, over);
    }
    return lowest_kept(v, best, heat, count, mass, -INFINITY, over);
}

/* What top-k, then top-p of the rest, then min-p leave. total: sum of all exponentials. */
static Cut find_cut(const View *v, const Row *one, float best, float heat, double total) {
    Cut cut = {-INFINITY, one->min_p > 0 ? best + logf(one->min_p) / heat : -INFINITY, INT64_MAX};
    int64_t ties = INT64_MAX;
    Above over;
    if (one->top_k) {
        cut.tie = find_lowest(v, best, heat, one->top_k, INFINITY, &over);
        ties = one->top_k - over.count;
        total = over.mass + (double)ties * weight(fill((cut.tie - best) * heat))[0];
    }
    if (one->top_p < 1) {
        const double goal = one->top_p * total;
        const float tie = find_lowest(v, best, heat, INT64_MAX, goal, &over);
        const double own = weight(fill((tie - best) * heat))[0], missing = goal - over.mass;
        const int64_t fitting = missing > 0 && own > 0 ? (int64_t)ceil(missing / own) : 1;
        if (tie > cut.tie || fitting < ties) ties = fitting;
        if (tie > cut.tie) cut.tie = tie;
    }
    if (ties < INT64_MAX) cut.last = last_of_equals(v, cut.tie, ties);
    return cut;
}

/* Sample from what is not barred; sums: those of the logits as they are. */
static int64_t sample_view(View *v, const Row *one, double *sums) {
    const float best = one->bars ? highest_logit(v) : one->highest, heat = one->temperature > 0 ? 1 / one->temperature : 0;
    if (best == -INFINITY) return -1;
    if (!heat) return one->bars ? likeliest(v, best) : one->likeliest;
    if (one->bars || heat != 1) sum_up(v, best, heat, sums);
    if (one->top_k || one->top_p < 1 || one->min_p > 0) {
        const Cut cut = find_cut(v, one, best, heat, sums[(v->words * WORD + BLOCK - 1) / BLOCK - 1]);
        v->cut = &cut;
        sum_up(v, best, heat, sums);
        return passed(v, best, heat, sums, one->uniform);
    }
    return passed(v, best, heat, sums, one->uniform);
}

/* Sample what is allowed and not barred, into the row's token; its highest logit is -inf where that is nothing. */
static void sample_allowed(View *v, Row *one, double *sums) {
    float *counted = (float *)(one->barred + one->bars);
    for (int64_t i = 0; i < one->bars; i++) {
        counted[i] = *logit_of(v, one->barred[i]);
        *logit_of(v, one->barred[i]) = -INFINITY;
    }
    one->token = sample_view(v, one, sums);
    for (int64_t i = 0; i < one->bars; i++) *logit_of(v, one->barred[i]) = counted[i];
    if (one->token < 0) one->token = 0, one->highest = -INFINITY;
}

static void sample_row(float *row, int64_t vocabulary, Row *one) {
    View v = {row, {0}, one->allowed, vocabulary / WORD, (vocabulary + WORD - 1) / WORD, NULL};
    for (int j = 0; j < WORD; j++) v.rest[j] = -INFINITY;
    const int samples = one->token < 0;
    one->highest = mask(&v, row, vocabulary, (int)one->mask_logits);
    one->normaliser = one->logprob = NAN;
    if (samples) one->token = 0;
    one->sampled = (int32_t)one->token;
    if (!isfinite(one->highest)) return;
    double sums[BLOCKS];
    one->normaliser = one->highest + (float)log(sum_up(&v, one->highest, 1, sums));
    one->likeliest = (int32_t)likeliest(&v, one->highest);
    one->highest_logprob = at_most_zero(one->highest - one->normaliser);
    if (samples) sample_allowed(&v, one, sums);
    if (one->highest == -INFINITY) return;
    one->sampled = (int32_t)one->token;
    const float logprob = at_most_zero(*logit_of(&v, one->token) - one->normaliser);
    one->logprob = logprob < -FLT_MAX ? -FLT_MAX : logprob; /* a scored id may be impossible */
}

/* Sample from rows, or score them. logits: [.., vocabulary], changed where masks forbid. */
void sample(float *logits, int64_t vocabulary, Row *all, int64_t count) {
#pragma omp parallel for num_threads(team) schedule(dynamic, 1) if (count * vocabulary > 4 * PARALLEL_FROM)
    for (int64_t i = 0; i < count; i++) {
        sample_row(logits + (all[i].row < 0 ? i : all[i].row) * vocabulary, vocabulary, all + i);
    }
}

/* The widest rows there is room for. */
int64_t max_vocabulary(void) { return (int64_t)BLOCK * BLOCKS; }
