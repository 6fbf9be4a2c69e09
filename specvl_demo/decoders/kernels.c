/* Products of one to a few rows with a matrix, on processors with AVX-512. `kernels.py` builds this
 * file and calls it.
 *
 * A matrix is packed in groups of 32 outputs: whatever a group reads lies in one stream, and is
 * fetched AHEAD bytes before it is used. Without that, arithmetic waits for memory, and memory for
 * arithmetic, so that every row costs time although one reading of the matrix serves all of them.
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

/* Whether this processor runs the products in half precision (1) and in 8 bits (2). */
int supported(void) {
  __builtin_cpu_init();
  int half = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl");
  return half ? 1 + 2 * !!__builtin_cpu_supports("avx512vnni") : 0;
}
