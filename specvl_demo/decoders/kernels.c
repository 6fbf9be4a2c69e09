/* Products of one to a few rows with a matrix, and attention of a few rows, on processors with
 * AVX-512. `build_kernels.py` builds this file, and `kernels.py` calls it.
 *
 * A matrix is packed in groups of 32 outputs: whatever a group reads lies in one stream, and is
 * fetched AHEAD bytes before it is used. Otherwise memory is idle while sums are computed, and every
 * row costs time although the matrix is read only once for all of them.
 *
 * Each sum belongs to one row and adds its terms in the order of the inputs. A row's bits therefore
 * depend neither on the rows beside it nor on the number of threads.
 */
#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni,f16c,fma")))
#define GROUP 32
#define MOST_ROWS 14 /* Two sums each, of 32 registers. */
#define AHEAD 8192

/* A packed matrix [n, k]. In half precision: [n / 32, k, 32] float16. In 8 bits: [n / 32, k / 4, 32,
 * 4] int8, `start` [n] with what 128 in every input adds to a sum, negated, `step` [n] with the number
 * that a sum of one stands for, and `unit`, the number that one stands for in a row. Without one (0),
 * rows are divided by their largest number first, and multiplied again in the end. */
typedef struct {
  const void *packed;
  const int32_t *start;
  const float *step;
  int64_t k, n;
  float unit;
} Matrix;

/* Sums must be variables for the compiler to keep them in registers, so the loop over a number of
 * rows that is known to it is written out. */
#define ROWS_1(X) X(0)
#define ROWS_2(X) ROWS_1(X) X(1)
#define ROWS_3(X) ROWS_2(X) X(2)
#define ROWS_4(X) ROWS_3(X) X(3)
#define ROWS_5(X) ROWS_4(X) X(4)
#define ROWS_6(X) ROWS_5(X) X(5)
#define ROWS_7(X) ROWS_6(X) X(6)
#define ROWS_8(X) ROWS_7(X) X(7)
#define ROWS_9(X) ROWS_8(X) X(8)
#define ROWS_10(X) ROWS_9(X) X(9)
#define ROWS_11(X) ROWS_10(X) X(10)
#define ROWS_12(X) ROWS_11(X) X(11)
#define ROWS_13(X) ROWS_12(X) X(12)
#define ROWS_14(X) ROWS_13(X) X(13)
#define EVERY_COUNT(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)

#define FETCH(p) _mm_prefetch((const char *)(p) + AHEAD, _MM_HINT_T0)

/* One group with rows [k / 4, rows, 4] uint8, as they are interleaved, of these scales. */
typedef void Tile8(const Matrix *w, int64_t group, const uint8_t *x, const float *scale, float *out,
                   int64_t stride, int add);

#define BEGIN_8(r) __m512i a##r = start_a, b##r = start_b;
#define STEP_8(r)                          \
  row = _mm512_set1_epi32(four[r]);        \
  a##r = _mm512_dpbusd_epi32(a##r, row, a); \
  b##r = _mm512_dpbusd_epi32(b##r, row, b);
#define END_8(r)                                                  \
  put_8(a##r, step_a, scale[r], out + r * stride, add);           \
  put_8(b##r, step_b, scale[r], out + r * stride + 16, add);

AVX512 static inline void put_8(__m512i sum, __m512 step, float scale, float *out, int add) {
  __m512 y = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), step), by = _mm512_set1_ps(scale);
  y = add ? _mm512_fmadd_ps(y, by, _mm512_loadu_ps(out)) : _mm512_mul_ps(y, by);
  _mm512_storeu_ps(out, y);
}

#define TILE_8(rows)                                                                         \
  AVX512 static void tile_8_##rows(const Matrix *w, int64_t group, const uint8_t *x,         \
                                   const float *scale, float *out, int64_t stride, int add) { \
    const int8_t *p = (const int8_t *)w->packed + group * GROUP * w->k;                      \
    const int32_t *start = w->start + group * GROUP, *four = (const int32_t *)x;             \
    const float *step = w->step + group * GROUP;                                             \
    __m512i start_a = _mm512_loadu_si512(start), start_b = _mm512_loadu_si512(start + 16);   \
    ROWS_##rows(BEGIN_8)                                                                     \
    for (int64_t i = 0; i < w->k; i += 4, p += 4 * GROUP, four += rows) {                    \
      __m512i row, a = _mm512_loadu_si512(p), b = _mm512_loadu_si512(p + 64);                \
      FETCH(p);                                                                              \
      FETCH(p + 64);                                                                         \
      ROWS_##rows(STEP_8)                                                                    \
    }                                                                                        \
    __m512 step_a = _mm512_loadu_ps(step), step_b = _mm512_loadu_ps(step + 16);              \
    ROWS_##rows(END_8)                                                                       \
  }
EVERY_COUNT(TILE_8)
#define NAME_8(rows) tile_8_##rows,
static Tile8 *const tiles_8[] = {EVERY_COUNT(NAME_8)};

/* The same with rows [k, rows] float32 and a matrix in half precision, summed in float32. */
typedef void TileHalf(const Matrix *w, int64_t group, const float *x, float *out, int64_t stride,
                      int add);

#define BEGIN_HALF(r) __m512 a##r = _mm512_setzero_ps(), b##r = _mm512_setzero_ps();
#define STEP_HALF(r)                     \
  row = _mm512_set1_ps(x[r]);            \
  a##r = _mm512_fmadd_ps(row, a, a##r);  \
  b##r = _mm512_fmadd_ps(row, b, b##r);
#define END_HALF(r)                       \
  put_half(a##r, out + r * stride, add);  \
  put_half(b##r, out + r * stride + 16, add);

AVX512 static inline void put_half(__m512 sum, float *out, int add) {
  _mm512_storeu_ps(out, add ? _mm512_add_ps(_mm512_loadu_ps(out), sum) : sum);
}

#define TILE_HALF(rows)                                                                        \
  AVX512 static void tile_half_##rows(const Matrix *w, int64_t group, const float *x, float *out, \
                                      int64_t stride, int add) {                               \
    const uint16_t *p = (const uint16_t *)w->packed + group * GROUP * w->k;                    \
    ROWS_##rows(BEGIN_HALF)                                                                    \
    for (int64_t i = 0; i < w->k; i++, p += GROUP, x += rows) {                                \
      __m512 row, a = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));                 \
      __m512 b = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p + 16)));               \
      FETCH(p);                                                                                \
      ROWS_##rows(STEP_HALF)                                                                   \
    }                                                                                          \
    ROWS_##rows(END_HALF)                                                                      \
  }
EVERY_COUNT(TILE_HALF)
#define NAME_HALF(rows) tile_half_##rows,
static TileHalf *const tiles_half[] = {EVERY_COUNT(NAME_HALF)};

/* Rows of a tile: as many tiles as are needed, of nearly equal size. */
static int64_t tile_rows(int64_t rows) {
  int64_t tiles = (rows + MOST_ROWS - 1) / MOST_ROWS;
  return (rows + tiles - 1) / tiles;
}

static inline int64_t fewer(int64_t a, int64_t b) { return a < b ? a : b; }

/* Round a row [k] to 8 bits, 128 for zero, into column `at` of [k / 4, rows, 4]; return its scale.
 * The operations are FBGEMM's, so that both give the same bits. */
AVX512 static float round_row(const Matrix *w, const float *row, int32_t *to, int64_t at,
                              int64_t rows) {
  float scale = 1, unit = w->unit;
  if (unit == 0) {
    unit = (float)(1 / 127.0);
    __m512 most = _mm512_set1_ps(1e-20f);
    for (int64_t i = 0; i < w->k; i += 16)
      most = _mm512_max_ps(most, _mm512_abs_ps(_mm512_loadu_ps(row + i)));
    scale = _mm512_reduce_max_ps(most);
  }
  __m512 divisor = _mm512_set1_ps(scale), inverse = _mm512_set1_ps(1 / unit);
  __m512 middle = _mm512_set1_ps(128);
  for (int64_t i = 0; i < w->k; i += 16) {
    __m512 x = _mm512_div_ps(_mm512_loadu_ps(row + i), divisor);
    __m512i n = _mm512_cvtps_epi32(_mm512_fmadd_ps(x, inverse, middle));
    n = _mm512_min_epi32(_mm512_max_epi32(n, _mm512_setzero_si512()), _mm512_set1_epi32(255));
    int32_t four[4];
    _mm_storeu_si128((__m128i *)four, _mm512_cvtepi32_epi8(n));
    for (int j = 0; j < 4; j++) to[(i / 4 + j) * rows + at] = four[j];
  }
  return scale;
}

/* out[r * stride ...] = x[r] W^T, or plus it, for x [rows, k]; 0 without memory. */
int multiply_8bit(const Matrix *w, const float *x, int64_t rows, float *out, int64_t stride,
                  int add, int threads) {
  int64_t most = tile_rows(rows), k = w->k;
  float *scale = malloc(rows * (sizeof(float) + k));
  if (!scale) return 0;
  uint8_t *rounded = (uint8_t *)(scale + rows);
  for (int64_t r = 0; r < rows; r++) {
    int64_t first = r / most * most;
    scale[r] = round_row(w, x + r * k, (int32_t *)(rounded + first * k), r - first,
                         fewer(most, rows - first));
  }
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t group = 0; group < w->n / GROUP; group++)
    for (int64_t r = 0; r < rows; r += most)
      tiles_8[fewer(most, rows - r) - 1](w, group, rounded + r * k, scale + r,
                                         out + r * stride + group * GROUP, stride, add);
  free(scale);
  return 1;
}

int multiply_half(const Matrix *w, const float *x, int64_t rows, float *out, int64_t stride,
                  int add, int threads) {
  int64_t most = tile_rows(rows), k = w->k;
  float *copy = rows > 1 ? malloc(rows * k * sizeof(float)) : NULL;
  if (rows > 1 && !copy) return 0;
  for (int64_t first = 0; rows > 1 && first < rows; first += most) {
    int64_t count = fewer(most, rows - first);
    for (int64_t i = 0; i < k; i++)
      for (int64_t r = 0; r < count; r++)
        copy[first * k + i * count + r] = x[(first + r) * k + i];
  }
  const float *interleaved = rows > 1 ? copy : x;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t group = 0; group < w->n / GROUP; group++)
    for (int64_t r = 0; r < rows; r += most)
      tiles_half[fewer(most, rows - r) - 1](w, group, interleaved + r * k,
                                            out + r * stride + group * GROUP, stride, add);
  free(copy);
  return 1;
}

/* Attention of a few rows over one sequence's cache of float32 keys and values.
 *
 * Every sum over keys adds them in the order of the cache, and a key that a row does not see adds
 * zero. The keys of a node's path are cached in the order of the text, so its result has the bits of
 * a plain step, whatever other nodes lie between them. */
typedef struct {
  /* Of a layer, a head, a row [width] of keys; values lie `to_values` behind. All in floats. */
  const float *cache;
  int64_t layer, head, row, to_values;
  const float *queries; /* [rows, heads, width], rows apart by `query_row`. */
  int64_t query_row;
  const float *mask; /* Additive [rows, seen], rows apart by `mask_row`; or none. */
  int64_t mask_row;
  float *out; /* [rows, heads, width] */
  int64_t heads, groups, width, rows, seen;
  float scale;
} Attention;

#define QUERIES 3 /* At a time: each has one sum per 16 numbers of its width. */

/* e to the power of x <= 0, to about one unit in the last place; 0 below -87. */
AVX512 static inline __m512 exponential(__m512 x) {
  __mmask16 small = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87), _CMP_LT_OQ);
  __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 8);
  x = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
  x = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), x);
  __m512 y = _mm512_set1_ps(1.9875691500e-4f);
  y = _mm512_fmadd_ps(y, x, _mm512_set1_ps(1.3981999507e-3f));
  y = _mm512_fmadd_ps(y, x, _mm512_set1_ps(8.3334519073e-3f));
  y = _mm512_fmadd_ps(y, x, _mm512_set1_ps(4.1665795894e-2f));
  y = _mm512_fmadd_ps(y, x, _mm512_set1_ps(1.6666665459e-1f));
  y = _mm512_fmadd_ps(y, x, _mm512_set1_ps(5.0000001201e-1f));
  y = _mm512_add_ps(_mm512_fmadd_ps(y, _mm512_mul_ps(x, x), x), _mm512_set1_ps(1));
  return _mm512_mask_mov_ps(_mm512_scalef_ps(y, n), small, _mm512_setzero_ps());
}

/* Turn scores [seen] into weights whose largest is 1; `scores` has room for whole vectors. */
AVX512 static void weigh(float *scores, int64_t seen) {
  __m512 low = _mm512_set1_ps(-3.4e38f), most = low;
  int64_t whole = (seen + 15) / 16 * 16;
  for (int64_t i = seen; i < whole; i++) scores[i] = -3.4e38f;
  for (int64_t i = 0; i < whole; i += 16) most = _mm512_max_ps(most, _mm512_loadu_ps(scores + i));
  most = _mm512_set1_ps(_mm512_reduce_max_ps(most));
  for (int64_t i = 0; i < whole; i += 16)
    _mm512_storeu_ps(scores + i, exponential(_mm512_sub_ps(_mm512_loadu_ps(scores + i), most)));
}

/* The sums of four vectors, each added up in the same order. */
AVX512 static inline __m128 sum_each(__m512 a, __m512 b, __m512 c, __m512 d) {
  __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  __m512 each = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
  __m256 half = _mm256_add_ps(_mm512_castps512_ps256(each),
                              _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(each), 1)));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

/* Queries first .. first + QUERIES of those that share a head of keys, of `vectors` times 16 numbers
 * each; the last one again where there are fewer. scores: [QUERIES, at least seen]. */
__attribute__((always_inline)) AVX512 static inline void attend_some(
    const Attention *a, int64_t layer, int64_t head, int64_t first, int vectors, float *scores,
    int64_t room) {
  int64_t last = a->groups * a->rows - 1;
  const float *keys = a->cache + layer * a->layer + head * a->head;
  const float *values = keys + a->to_values;
  const float *query[QUERIES], *mask[QUERIES];
  float *out[QUERIES];
  for (int q = 0; q < QUERIES; q++) {
    int64_t at = fewer(first + q, last), row = at / a->groups;
    int64_t column = (head * a->groups + at % a->groups) * a->width;
    query[q] = a->queries + row * a->query_row + column;
    mask[q] = a->mask ? a->mask + row * a->mask_row : NULL;
    out[q] = a->out + row * a->heads * a->width + column;
  }
  for (int64_t s = 0; s < a->seen; s += 4) {
    __mmask8 here = (1 << fewer(4, a->seen - s)) - 1;
    const float *key[4];
    for (int i = 0; i < 4; i++) key[i] = keys + fewer(s + i, a->seen - 1) * a->row;
#pragma GCC unroll 8
    for (int q = 0; q < QUERIES; q++) {
      __m512 sum[4];
#pragma GCC unroll 8
      for (int v = 0; v < vectors; v++) {
        __m512 part = _mm512_loadu_ps(query[q] + 16 * v);
#pragma GCC unroll 8
        for (int i = 0; i < 4; i++) {
          __m512 numbers = _mm512_loadu_ps(key[i] + 16 * v);
          sum[i] = v ? _mm512_fmadd_ps(part, numbers, sum[i]) : _mm512_mul_ps(part, numbers);
        }
      }
      __m128 score = _mm_mul_ps(sum_each(sum[0], sum[1], sum[2], sum[3]), _mm_set1_ps(a->scale));
      if (mask[q]) score = _mm_add_ps(score, _mm_maskz_loadu_ps(here, mask[q] + s));
      _mm_storeu_ps(scores + q * room + s, score);
    }
  }
  for (int q = 0; q < QUERIES; q++) weigh(scores + q * room, a->seen);
  __m512 sums[QUERIES][8], total[QUERIES];
#pragma GCC unroll 8
  for (int q = 0; q < QUERIES; q++) {
    total[q] = _mm512_setzero_ps();
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) sums[q][v] = _mm512_setzero_ps();
  }
  for (int64_t s = 0; s < a->seen; s++) {
#pragma GCC unroll 8
    for (int q = 0; q < QUERIES; q++) {
      __m512 weight = _mm512_set1_ps(scores[q * room + s]);
      total[q] = _mm512_add_ps(total[q], weight);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; v++)
        sums[q][v] = _mm512_fmadd_ps(weight, _mm512_loadu_ps(values + s * a->row + 16 * v),
                                     sums[q][v]);
    }
  }
#pragma GCC unroll 8
  for (int q = 0; q < QUERIES; q++)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++)
      _mm512_storeu_ps(out[q] + 16 * v, _mm512_div_ps(sums[q][v], total[q]));
}

#define ATTEND(vectors)                                                                      \
  AVX512 static void attend_##vectors(const Attention *a, int64_t layer, int64_t head,       \
                                      int64_t first, float *scores, int64_t room) {          \
    attend_some(a, layer, head, first, vectors, scores, room);                               \
  }
ATTEND(1) ATTEND(2) ATTEND(4) ATTEND(8)

/* Write one layer's attention into `out`; 0 without memory. The width is 16, 32, 64 or 128. */
int attend(const Attention *a, int64_t layer, int threads) {
  int64_t parts = (a->groups * a->rows + QUERIES - 1) / QUERIES, kv_heads = a->heads / a->groups;
  int64_t room = (a->seen + 15) / 16 * 16, tasks = kv_heads * parts;
  float *scores = malloc(tasks * QUERIES * room * sizeof(float));
  if (!scores) return 0;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t task = 0; task < tasks; task++) {
    int64_t head = task / parts, first = task % parts * QUERIES;
    float *own = scores + task * QUERIES * room;
    if (a->width == 16) attend_1(a, layer, head, first, own, room);
    if (a->width == 32) attend_2(a, layer, head, first, own, room);
    if (a->width == 64) attend_4(a, layer, head, first, own, room);
    if (a->width == 128) attend_8(a, layer, head, first, own, room);
  }
  free(scores);
  return 1;
}

/* Whether this processor runs the products in half precision (1) and in 8 bits (2). */
int supported(void) {
  __builtin_cpu_init();
  int half = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl");
  return half ? 1 + 2 * !!__builtin_cpu_supports("avx512vnni") : 0;
}
