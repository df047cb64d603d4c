/* The elementwise steps of balance.py on a CPU, in two passes over memory; native.py compiles and calls this.
 *
 * The first pass sums what each sample gets and what the step would hand out, the second writes the scaled results. Blocks are
 * cut by size alone and summed in their order, so the number of threads changes nothing. Kinds and operands are those of
 * kernels.Recipe; an operand that is not there is a pointer to one number with strides of 0.
 */
#include <float.h>
#include <math.h>
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))
#define CHUNK 256
#define BLOCK 16384
#define NOISE 9.5367431640625e-07f /* 8 units in the last place */

enum { SHARES, HALVES, SUM, NORM, FACTOR };
enum { AGREE = 1, CENTRED = 2, WEIGHTED = 4, FIRST_COLUMNS = 8, SECOND_COLUMNS = 16 };

typedef struct {
    int64_t segments, middle, inner, neighbours, batch;
    int64_t strides[12]; /* of the operands b, c, d, e along segments, rows and columns */
    float eps, first, second;
    int32_t kind, flags, joint, threads;
} Job;

typedef struct {
    const float *r, *a, *b, *c, *d, *e;
    float *out, *other;
} Place;

typedef struct {
    float value, other, given;
} Term;

typedef struct {
    float up_high, up_low, down_high, down_low;
} Scale;

INLINE float above(float x) { return x < 0.0f ? 0.0f : x; } /* keeps what is not a number */

INLINE float share(float part, float h, float eps, const int agree) {
    if (agree) part = h < 0.0f ? -part : part;
    return above(part) / (fabsf(h) + eps);
}

/* What one element hands out unscaled, and its part of the sum; p is the place of the row, j the column. */
INLINE Term term(const Job *job, const Place *p, int64_t j, const int kind, const int flags) {
    const float eps = job->eps, r = p->r[j], x = p->a[j];
    const int agree = flags & AGREE;
    const int64_t k = flags & FIRST_COLUMNS ? j : 0, l = flags & SECOND_COLUMNS ? j : 0;
    Term t = {0.0f, 0.0f, 0.0f};
    if (kind == SHARES || kind == HALVES) {
        float total = p->b[j];
        t.value = r / (fabsf(x) + eps);
        if (kind == HALVES) {
            float kept = x - p->c[k];
            if (agree) kept = x < 0.0f ? -kept : kept;
            const float found = kept + total;
            total = found <= total * NOISE ? 0.0f : found * job->first;
        }
        t.given = t.value * total;
    } else if (kind == SUM) {
        const float y = p->b[k] * job->second, part = x * job->first, h = part + y;
        t.value = share(part, h, eps, agree) * r;
        t.other = share(y, h, eps, agree) * r;
        t.given = t.value + t.other;
    } else if (kind == NORM) {
        const float std = sqrtf(p->b[k] + job->second);
        float f = 1.0f, moved = x;
        if (flags & CENTRED) moved = x - p->c[k];
        if (flags & WEIGHTED) {
            const float part = moved * (p->d[l] / std);
            f = share(part, part + p->e[l], eps, agree);
        }
        if (flags & CENTRED) {
            const float own = agree && moved < 0.0f ? -x : x;
            f *= above(own) / (fabsf(moved) + std * eps);
        }
        t.value = t.given = f * r;
    } else {
        t.value = x * r;
        t.given = fabsf(x) * r;
    }
    return t;
}

INLINE void summed(const Job *job, const Place *p, int64_t n, double *sums, const int kind, const int flags) {
    for (int64_t start = 0; start < n; start += CHUNK) {
        const int64_t end = start + CHUNK < n ? start + CHUNK : n;
        float got_up = 0, handed_up = 0, got_down = 0, handed_down = 0;
#pragma omp simd reduction(+ : got_up, handed_up, got_down, handed_down)
        for (int64_t j = start; j < end; j++) {
            const float r = p->r[j], given = term(job, p, j, kind, flags).given;
            got_up += r > 0.0f ? r : 0.0f;
            handed_up += r > 0.0f ? given : 0.0f;
            got_down += r > 0.0f ? 0.0f : r;
            handed_down += r > 0.0f ? 0.0f : given;
        }
        sums[0] += got_up, sums[1] += handed_up, sums[2] += got_down, sums[3] += handed_down;
    }
}

INLINE void scaled(const Job *job, const Place *p, int64_t n, Scale s, const int kind, const int flags) {
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        const Term t = term(job, p, j, kind, flags);
        const float high = p->r[j] > 0.0f ? s.up_high : s.down_high, low = p->r[j] > 0.0f ? s.up_low : s.down_low;
        p->out[j] = t.value * high + t.value * low;
        if (kind == SUM) p->other[j] = t.other * high + t.other * low;
    }
}

INLINE const float *at(const float *base, const int64_t *strides, int64_t segment, int64_t row, int64_t column) {
    return base + segment * strides[0] + row * strides[1] + column * strides[2];
}

/* One block: a stretch of a segment, row by row. Sums where scale is null, else results. */
INLINE void block(const Job *job, const Place *all, int64_t number, int64_t groups, double *sums, const Scale *scale,
                  const int kind, const int flags) {
    const int64_t segment = number / groups, length = job->middle * job->inner;
    const int64_t start = number % groups * BLOCK, end = start + BLOCK < length ? start + BLOCK : length;
    if (!scale) sums[0] = sums[1] = sums[2] = sums[3] = 0.0;
    for (int64_t place = start; place < end;) {
        const int64_t row = place / job->inner, column = place - row * job->inner;
        const int64_t rest = job->inner - column, n = rest < end - place ? rest : end - place;
        const int64_t whole = segment * length + place;
        const int64_t *s = job->strides;
        const Place p = {
            all->r + whole,
            all->a + whole,
            kind == SHARES || kind == HALVES ? all->b + whole : at(all->b, s, segment, row, column),
            at(all->c, s + 3, segment, row, column),
            at(all->d, s + 6, segment, row, column),
            at(all->e, s + 9, segment, row, column),
            all->out + whole,
            all->other + whole,
        };
        if (scale)
            scaled(job, &p, n, *scale, kind, flags);
        else
            summed(job, &p, n, sums, kind, flags);
        place += n;
    }
}

/* As in balance.py: 0 where nothing is handed out, or 2^-103 of what was got at most. */
INLINE double ratio(double got, double handed) {
    return fabs(handed) <= fmax(fabs(got) * 0x1p-103, DBL_MIN) ? 0.0 : got / handed;
}

/* Factors of every sample, each as two numbers, so that rounding it shifts nothing. */
static void factors(const Job *job, int64_t groups, const double *sums, double *of_sample, Scale *scales) {
    for (int64_t k = 0; k < 4 * job->batch; k++) of_sample[k] = 0.0;
    for (int64_t segment = 0; segment < job->segments; segment++) {
        double *mine = of_sample + segment / job->neighbours % job->batch * 4;
        for (int64_t k = 0; k < groups; k++)
            for (int n = 0; n < 4; n++) mine[n] += sums[(segment * groups + k) * 4 + n];
    }
    for (int64_t sample = 0; sample < job->batch; sample++) {
        const double *s = of_sample + sample * 4;
        double up = ratio(s[0], s[1]), down = ratio(s[2], s[3]);
        if (job->joint) up = down = ratio(s[0] - s[2], s[1] - s[3]);
        Scale *made = scales + sample;
        made->up_high = (float)up, made->up_low = (float)(up - (double)(float)up);
        made->down_high = (float)down, made->down_low = (float)(down - (double)(float)down);
    }
}

#define RUN(KIND, FLAGS)                                                                                          \
    do {                                                                                                          \
        _Pragma("omp parallel for num_threads(job->threads) schedule(static)") for (int64_t n = 0; n < count; n++) \
            block(job, all, n, groups, sums + 4 * n, 0, KIND, FLAGS);                                             \
        factors(job, groups, sums, of_sample, scales);                                                            \
        _Pragma("omp parallel for num_threads(job->threads) schedule(static)") for (int64_t n = 0; n < count; n++) \
            block(job, all, n, groups, 0, scales + n / groups / job->neighbours % job->batch, KIND, FLAGS);       \
        return 0;                                                                                                 \
    } while (0)
#define CASE(KIND, FLAGS) \
    case (FLAGS):         \
        RUN(KIND, FLAGS)
#define WITH(KIND, FLAGS) CASE(KIND, FLAGS); CASE(KIND, (FLAGS) | AGREE)
#define COLUMNS(KIND, FLAGS)                    \
    WITH(KIND, FLAGS);                          \
    WITH(KIND, (FLAGS) | FIRST_COLUMNS);        \
    WITH(KIND, (FLAGS) | SECOND_COLUMNS);       \
    WITH(KIND, (FLAGS) | FIRST_COLUMNS | SECOND_COLUMNS)

int64_t abslrp_groups(const Job *job) { return (job->middle * job->inner + BLOCK - 1) / BLOCK; }

/* sums has room for segments × groups × 4, of_sample for batch × 4, scales for batch; 1 where the step is not known. */
int abslrp_run(const Job *job, const Place *all, double *sums, double *of_sample, Scale *scales) {
    const int64_t groups = abslrp_groups(job), count = job->segments * groups;
    switch (job->kind) {
    case SHARES:
        RUN(SHARES, 0);
    case FACTOR:
        RUN(FACTOR, 0);
    case HALVES:
        switch (job->flags) {
            WITH(HALVES, 0);
            WITH(HALVES, FIRST_COLUMNS);
        }
        return 1;
    case SUM:
        switch (job->flags) {
            WITH(SUM, 0);
            WITH(SUM, FIRST_COLUMNS);
        }
        return 1;
    case NORM:
        switch (job->flags) {
            COLUMNS(NORM, CENTRED);
            COLUMNS(NORM, WEIGHTED);
            COLUMNS(NORM, CENTRED | WEIGHTED);
        }
        return 1;
    }
    return 1;
}
