/* A Llama-type decoder's layers, products of rows with a matrix, and attention, on processors with
 * AVX-512. `build_kernels.py` builds this file, and `kernels.py` calls it.
 *
 * A matrix is packed in groups of 32 outputs: whatever a group reads lies in one stream, and is
 * fetched before it is used. Otherwise memory is idle while sums are computed, and every row costs
 * time although the matrix is read only once for all of them.
 *
 * Each sum belongs to one row and adds its terms in a fixed order. A row's bits therefore depend
 * neither on the rows beside it nor on the number of threads.
 */
#include <immintrin.h>
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni,f16c,fma")))
#define GROUP 32
#define MOST_ROWS 14 /* Two sums each, of 32 registers. */

enum { SINGLE, HALF, EIGHT_BITS, SIXTEEN_BITS, EIGHT_BY_SIXTEEN };

/* A packed matrix [n, k]. Floats: [n / 32, k, 32] float32 or float16, summed in float32, and
 * `unit`, the number that one stands for.
 *
 * Integers: `step` [n] with the number that one stands for, and `start` [n] with what sums begin
 * with. In 8 bits [n / 32, k / 4, 32, 4] int8, rows are uint8 with 128 for zero, and `unit` is the
 * number that one stands for in them; without one (0), a 127th of each row's largest number. In 16
 * bits [n / 32, k / 2, 32, 2] int16, or 8 bits by 16 with the same as int8, rows are int16, and
 * `unit` times a row's length is the least number that one stands for in it, with which no sum
 * overflows. */
typedef struct {
  const void *packed;
  const int32_t *start;
  const float *step;
  int64_t k, n;
  float unit;
  int32_t kind;
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

/* Fetch what is read 8 KB after p. With more than two rows, sums take long enough for two steps:
 * early into the second cache, and from there into the first, which has little room beside the
 * rows. */
#define FETCH(p, rows)                                                        \
  (_mm_prefetch((const char *)(p) + ((rows) > 2 ? 2048 : 8192), _MM_HINT_T0), \
   (rows) > 2 ? _mm_prefetch((const char *)(p) + 24576, _MM_HINT_T1) : (void)0)

/* One group with rows of integers, as they are interleaved: [k / 4, rows, 4] uint8 or [k / 2, rows,
 * 2] int16, of these scales. */
typedef void TileInt(const Matrix *w, int64_t group, const int32_t *x, const float *scale,
                     float *out, int64_t stride, int add);

#define BEGIN_INT(r) __m512i a##r = start_a, b##r = start_b;
#define STEP_8(r)                           \
  row = _mm512_set1_epi32(x[r]);            \
  a##r = _mm512_dpbusd_epi32(a##r, row, a); \
  b##r = _mm512_dpbusd_epi32(b##r, row, b);
#define STEP_16(r)                          \
  row = _mm512_set1_epi32(x[r]);            \
  a##r = _mm512_dpwssd_epi32(a##r, row, a); \
  b##r = _mm512_dpwssd_epi32(b##r, row, b);
#define END_INT(r)                                        \
  put_int(a##r, step_a, scale[r], out + r * stride, add); \
  put_int(b##r, step_b, scale[r], out + r * stride + 16, add);

AVX512 static inline __m512i take_whole(const char *p, int at) {
  return _mm512_loadu_si512(p + 64 * at);
}
AVX512 static inline __m512i take_bytes(const char *p, int at) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(p + 32 * at)));
}
AVX512 static inline void put_int(__m512i sum, __m512 step, float scale, float *out, int add) {
  __m512 y = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), step), by = _mm512_set1_ps(scale);
  y = add ? _mm512_fmadd_ps(y, by, _mm512_loadu_ps(out)) : _mm512_mul_ps(y, by);
  _mm512_storeu_ps(out, y);
}

/* `bits` of rows, of which 32 are summed at once, and of weights. */
#define TILE_INT(name, bits, weights, take, rows)                                            \
  AVX512 static void tile_##name##_##rows(const Matrix *w, int64_t group, const int32_t *x,  \
                                          const float *scale, float *out, int64_t stride,    \
                                          int add) {                                         \
    enum { EACH = 32 / bits, BYTES = EACH * GROUP * weights / 8 };                           \
    const char *p = (const char *)w->packed + group * (w->k / EACH) * BYTES;                 \
    const int32_t *start = w->start + group * GROUP;                                         \
    const float *step = w->step + group * GROUP;                                             \
    __m512i start_a = _mm512_loadu_si512(start), start_b = _mm512_loadu_si512(start + 16);   \
    ROWS_##rows(BEGIN_INT) for (int64_t i = 0; i < w->k; i += EACH, p += BYTES, x += rows) { \
      __m512i row, a = take(p, 0), b = take(p, 1);                                           \
      FETCH(p, rows);                                                                        \
      if (BYTES > 64) FETCH(p + 64, rows);                                                   \
      ROWS_##rows(STEP_##bits)                                                               \
    }                                                                                        \
    __m512 step_a = _mm512_loadu_ps(step), step_b = _mm512_loadu_ps(step + 16);              \
    ROWS_##rows(END_INT)                                                                     \
  }
#define TILE_8(rows) TILE_INT(8, 8, 8, take_whole, rows)
#define TILE_16(rows) TILE_INT(16, 16, 16, take_whole, rows)
#define TILE_8_BY_16(rows) TILE_INT(8_by_16, 16, 8, take_bytes, rows)
EVERY_COUNT(TILE_8)
EVERY_COUNT(TILE_16)
EVERY_COUNT(TILE_8_BY_16)
#define NAME_8(rows) tile_8_##rows,
#define NAME_16(rows) tile_16_##rows,
#define NAME_8_BY_16(rows) tile_8_by_16_##rows,
static TileInt *const tiles_int[][MOST_ROWS] = {
    [EIGHT_BITS] = {EVERY_COUNT(NAME_8)},
    [SIXTEEN_BITS] = {EVERY_COUNT(NAME_16)},
    [EIGHT_BY_SIXTEEN] = {EVERY_COUNT(NAME_8_BY_16)},
};

/* The same with rows [k, rows] float32. */
typedef void TileFloat(const Matrix *w, int64_t group, const float *x, float *out, int64_t stride,
                       int add);

AVX512 static inline __m512 take_single(const float *p) { return _mm512_loadu_ps(p); }
AVX512 static inline __m512 take_half(const uint16_t *p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

#define BEGIN_FLOAT(r) __m512 a##r = _mm512_setzero_ps(), b##r = _mm512_setzero_ps();
#define STEP_FLOAT(r)                   \
  row = _mm512_set1_ps(x[r]);           \
  a##r = _mm512_fmadd_ps(row, a, a##r); \
  b##r = _mm512_fmadd_ps(row, b, b##r);
#define END_FLOAT(r)                            \
  put_float(a##r, unit, out + r * stride, add); \
  put_float(b##r, unit, out + r * stride + 16, add);

AVX512 static inline void put_float(__m512 sum, __m512 unit, float *out, int add) {
  sum = _mm512_mul_ps(sum, unit);
  _mm512_storeu_ps(out, add ? _mm512_add_ps(_mm512_loadu_ps(out), sum) : sum);
}

#define TILE_FLOAT(kind, type, rows)                                                      \
  AVX512 static void tile_##kind##_##rows(const Matrix *w, int64_t group, const float *x, \
                                          float *out, int64_t stride, int add) {          \
    const type *p = (const type *)w->packed + group * GROUP * w->k;                       \
    __m512 unit = _mm512_set1_ps(w->unit);                                                \
    ROWS_##rows(BEGIN_FLOAT) for (int64_t i = 0; i < w->k; i++, p += GROUP, x += rows) {  \
      __m512 row, a = take_##kind(p), b = take_##kind(p + 16);                            \
      FETCH(p, rows);                                                                     \
      if (sizeof(type) > 2) FETCH(p + 16, rows);                                          \
      ROWS_##rows(STEP_FLOAT)                                                             \
    }                                                                                     \
    ROWS_##rows(END_FLOAT)                                                                \
  }
#define TILE_SINGLE(rows) TILE_FLOAT(single, float, rows)
#define TILE_HALF(rows) TILE_FLOAT(half, uint16_t, rows)
EVERY_COUNT(TILE_SINGLE)
EVERY_COUNT(TILE_HALF)
#define NAME_SINGLE(rows) tile_single_##rows,
#define NAME_HALF(rows) tile_half_##rows,
static TileFloat *const tiles_float[][MOST_ROWS] = {
    [SINGLE] = {EVERY_COUNT(NAME_SINGLE)},
    [HALF] = {EVERY_COUNT(NAME_HALF)},
};

static inline int64_t fewer(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t more(int64_t a, int64_t b) { return a > b ? a : b; }

/* Rows of a tile: as many tiles as are needed, of nearly equal size. */
static int64_t tile_rows(int64_t rows) {
  int64_t tiles = (rows + MOST_ROWS - 1) / MOST_ROWS;
  return (rows + tiles - 1) / tiles;
}

/* The number that one stands for in a row [k] of integers of 16 bits, or that its numbers are
 * divided by for 8 bits; not a number if one of the row is not finite. */
AVX512 static float scale_of(const Matrix *w, const float *row) {
  __m512 most = _mm512_set1_ps(1e-20f), squares = _mm512_setzero_ps();
  for (int64_t i = 0; i < w->k; i += 16) {
    __m512 x = _mm512_loadu_ps(row + i);
    most = _mm512_max_ps(most, _mm512_abs_ps(x));
    squares = _mm512_fmadd_ps(x, x, squares);
  }
  float sum = _mm512_reduce_add_ps(squares), doubt = sum - sum;
  float largest = _mm512_reduce_max_ps(most) + doubt;
  if (w->kind == EIGHT_BITS) return w->unit == 0 ? largest : 1 + doubt;
  float least = _mm512_cvtss_f32(_mm512_sqrt_ps(_mm512_set1_ps(sum))) * w->unit;
  return least > largest / 32767 ? least : largest / 32767;
}

/* Round a row's inputs from .. end to 8 bits, 128 for zero, into column `at` of [k / 4, rows, 4].
 */
AVX512 static void round_8(const float *row, float scale, float unit, int64_t from, int64_t end,
                           int32_t *to, int64_t at, int64_t rows) {
  __m512 divisor = _mm512_set1_ps(scale), inverse = _mm512_set1_ps(1 / unit);
  __m512 middle = _mm512_set1_ps(128);
  for (int64_t i = from; i < end; i += 16) {
    __m512 x = _mm512_div_ps(_mm512_loadu_ps(row + i), divisor);
    __m512i n = _mm512_cvtps_epi32(_mm512_fmadd_ps(x, inverse, middle));
    n = _mm512_min_epi32(_mm512_max_epi32(n, _mm512_setzero_si512()), _mm512_set1_epi32(255));
    int32_t four[4];
    _mm_storeu_si128((__m128i *)four, _mm512_cvtepi32_epi8(n));
    for (int j = 0; j < 4; j++) to[(i / 4 + j) * rows + at] = four[j];
  }
}

/* The same to 16 bits, 0 for zero, into [k / 2, rows, 2]. */
AVX512 static void round_16(const float *row, float scale, int64_t from, int64_t end, int32_t *to,
                            int64_t at, int64_t rows) {
  __m512 inverse = _mm512_set1_ps(1 / scale);
  for (int64_t i = from; i < end; i += 16) {
    __m512 x = _mm512_mul_ps(_mm512_loadu_ps(row + i), inverse);
    int32_t eight[8];
    _mm256_storeu_si256((__m256i *)eight, _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(x)));
    for (int j = 0; j < 8; j++) to[(i / 2 + j) * rows + at] = eight[j];
  }
}

/* How the rows of a product are normed first: x / sqrt(|x|^2 + root^2), times `weight` [k] if there
 * is one. `kept` has room for one row. */
typedef struct {
  const float *weight;
  float root, *kept;
} Norm;

AVX512 static const float *norm_row(const Norm *norm, const float *row, int64_t k) {
  __m512 squares = _mm512_setzero_ps();
  for (int64_t i = 0; i < k; i += 16) {
    __m512 x = _mm512_loadu_ps(row + i);
    squares = _mm512_fmadd_ps(x, x, squares);
  }
  __m512 sum = _mm512_set1_ps(_mm512_reduce_add_ps(squares) + norm->root * norm->root);
  __m512 by = _mm512_div_ps(_mm512_set1_ps(1), _mm512_sqrt_ps(sum));
  for (int64_t i = 0; i < k; i += 16) {
    __m512 x = _mm512_mul_ps(_mm512_loadu_ps(row + i), by);
    if (norm->weight) x = _mm512_mul_ps(x, _mm512_loadu_ps(norm->weight + i));
    _mm512_storeu_ps(norm->kept + i, x);
  }
  return norm->kept;
}

/* Rows of a product as tiles read them, each tile's side by side, and the scales of integers. */
typedef struct {
  float *scale;
  char *x;
  int64_t rows, most; /* Of all tiles, and of one. */
} Rows;

static int64_t row_bytes(const Matrix *w) {
  return w->k * (w->kind == EIGHT_BITS ? 1 : w->kind <= HALF ? 4 : 2);
}

static Rows rows_in(void *memory, int64_t rows) {
  return (Rows){memory, (char *)memory + rows * sizeof(float), rows, tile_rows(rows)};
}

/* Arrange the inputs from .. end of x [rows, k], rows apart by `stride`; `norm` may be none. Inputs
 * are multiples of 16, except for floats without a norm. */
static void arrange(const Matrix *w, const float *x, int64_t stride, const Norm *norm, int64_t from,
                    int64_t end, Rows *to) {
  for (int64_t r = 0; r < to->rows; r++) {
    int64_t first = r / to->most * to->most, count = fewer(to->most, to->rows - first);
    const float *row = norm ? norm_row(norm, x + r * stride, w->k) : x + r * stride;
    char *tile = to->x + first * row_bytes(w);
    if (w->kind <= HALF) {
      for (int64_t i = from; i < end; i++) ((float *)tile)[i * count + r - first] = row[i];
      continue;
    }
    float scale = scale_of(w, row);
    if (from == 0) to->scale[r] = scale;
    if (w->kind == EIGHT_BITS)
      round_8(row, scale, w->unit == 0 ? (float)(1 / 127.0) : w->unit, from, end, (int32_t *)tile,
              r - first, count);
    else
      round_16(row, scale, from, end, (int32_t *)tile, r - first, count);
  }
}

/* A group's outputs for the tile that begins at row `first`: out [.., 32], rows apart by `stride`.
 */
static void multiply_tile(const Matrix *w, int64_t group, const Rows *rows, int64_t first,
                          float *out, int64_t stride, int add) {
  int64_t at = fewer(rows->most, rows->rows - first) - 1;
  const void *x = rows->x + first * row_bytes(w);
  if (w->kind <= HALF)
    tiles_float[w->kind][at](w, group, x, out, stride, add);
  else
    tiles_int[w->kind][at](w, group, x, rows->scale + first, out, stride, add);
}

/* Write the product of rows into out, or add it; for all threads of a region. */
static void multiply_rows(const Matrix *w, const Rows *rows, float *out, int64_t stride, int add) {
#pragma omp for schedule(static)
  for (int64_t group = 0; group < w->n / GROUP; group++)
    for (int64_t first = 0; first < rows->rows; first += rows->most)
      multiply_tile(w, group, rows, first, out + first * stride + group * GROUP, stride, add);
}

/* out[r * stride ...] = x[r] W^T for x [rows, k]; 0 without memory. */
int multiply(const Matrix *w, const float *x, int64_t rows, float *out, int64_t stride,
             int threads) {
  void *memory = malloc(rows * (sizeof(float) + row_bytes(w)));
  if (!memory) return 0;
  Rows arranged = rows_in(memory, rows);
  arrange(w, x, w->k, NULL, 0, w->k, &arranged);
#pragma omp parallel num_threads(threads) if (threads > 1)
  multiply_rows(w, &arranged, out, stride, 0);
  free(memory);
  return 1;
}

/* One layer. `bias` of qkv [qkv.n] and the norms' weights may be none. With `kv`, it attends to
 * features: `qkv` makes only queries, `kv` makes keys and values of the features, nothing is
 * rotated, and queries and keys are normed in each head, queries times `head_norm` [head_width]. */
typedef struct {
  Matrix qkv, out, gate_up, down;
  const float *bias, *norm, *after_norm;
  const Matrix *kv;
  const float *head_norm;
} Layer;

/* Layers of one size. Rotary pairs lie side by side in the outputs of qkv. `enter` maps embeddings
 * to what layers add to, and `leave` maps that back once it is normed; without `leave`, the last
 * norm has the weight `norm`. All three may be none. */
typedef struct {
  const Layer *layers;
  const Matrix *enter, *leave;
  const float *norm;
  int64_t width, heads, kv_heads, head_width;
  float root, scale; /* Of width times epsilon, and of scores. */
} Stack;

/* New rows of several sequences, which all have `at` rows in the cache. All strides in floats.
 * Layers skip the first `holes` rows of the cache, those that attend to features only the first
 * one. */
typedef struct {
  const float *embedded; /* [sequences * rows, width]: if given, x is made of it first. */
  float *x;              /* [sequences * rows, width]: what layers add to. */
  const float *input; /* [sequences * rows, qkv.k]: read as it is by the first attention instead, if
                         given. */
  float *hidden;      /* [sequences * rows, width]: if given, receives x after the last norm. */
  const float *turns; /* [.., head_width]: cosine and sine of every rotary pair. */
  float *cache;       /* Of the keys, rows [head_width]; values lie `to_values` behind. */
  const int64_t
      *positions; /* [sequences, rows], all below `turned`; without, turns are of the rows. */
  const float *features; /* [sequences * rows, kv.k]: the features before the rows. */
  int64_t turned, position_sequence;
  int64_t layer, sequence, head, row, to_values;
  const float *mask; /* Additive [sequences, rows, at + rows]; without one, rows see all before. */
  int64_t mask_sequence, mask_row;
  int64_t sequences, rows, at, holes;
} Step;

/* Attention.
 *
 * Every sum over keys adds them in the order of the cache, and a key that a row does not see adds
 * zero. The keys of a node's path are cached in the order of the text, so its result has the bits
 * of a plain step, whatever other nodes lie between them. */

/* Queries at a time: each has one sum per 16 numbers of its width. */
#define FEW_QUERIES 3
#define MANY_QUERIES 6

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

/* Turn scores [seen] into weights whose largest is 1, up to `all` with zeros; `scores` has room for
 * whole vectors. */
AVX512 static void weigh(float *scores, int64_t seen, int64_t all) {
  __m512 low = _mm512_set1_ps(-3.4e38f), most = low;
  int64_t whole = (all + 15) / 16 * 16;
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

/* Queries from `first` of a sequence that share a head of keys, so `many` and of `vectors` times 16
 * numbers each; the last one again where there are fewer. queries, out: [rows, heads, head_width]
 * of the sequence. scores: [many, room]. */
__attribute__((always_inline)) AVX512 static inline void attend_some(
    const Stack *m, const Step *s, int64_t layer, int64_t sequence, int64_t head, int64_t first,
    const float *queries, float *out, int vectors, int many, float *scores, int64_t room) {
  int64_t groups = m->heads / m->kv_heads, last = groups * s->rows - 1;
  const float *keys = s->cache + layer * s->layer + sequence * s->sequence + head * s->head;
  const float *values = keys + s->to_values;
  const float *query[MANY_QUERIES], *mask[MANY_QUERIES];
  float *to[MANY_QUERIES];
  int64_t seen[MANY_QUERIES], most = s->mask ? s->at + s->rows : 0;
  __m128 scale = _mm_set1_ps(m->scale);
  for (int q = 0; q < many; q++) {
    int64_t at = fewer(first + q, last), row = at / groups;
    int64_t column = (row * m->heads + head * groups + at % groups) * m->head_width;
    query[q] = queries + column;
    to[q] = out + column;
    mask[q] = s->mask ? s->mask + sequence * s->mask_sequence + row * s->mask_row : NULL;
    seen[q] = s->mask ? most : s->at + row + 1;
    most = more(most, seen[q]);
  }
  for (int64_t i = 0; i < most; i += 4) {
    __mmask8 here = (1 << fewer(4, most - i)) - 1;
    const float *key[4];
    for (int j = 0; j < 4; j++) key[j] = keys + fewer(i + j, most - 1) * s->row;
#pragma GCC unroll 8
    for (int q = 0; q < many; q++) {
      __m512 sum[4];
#pragma GCC unroll 8
      for (int v = 0; v < vectors; v++) {
        __m512 part = _mm512_loadu_ps(query[q] + 16 * v);
#pragma GCC unroll 8
        for (int j = 0; j < 4; j++) {
          __m512 numbers = _mm512_loadu_ps(key[j] + 16 * v);
          sum[j] = v ? _mm512_fmadd_ps(part, numbers, sum[j]) : _mm512_mul_ps(part, numbers);
        }
      }
      __m128 score = _mm_mul_ps(sum_each(sum[0], sum[1], sum[2], sum[3]), scale);
      if (mask[q]) score = _mm_add_ps(score, _mm_maskz_loadu_ps(here, mask[q] + i));
      _mm_storeu_ps(scores + q * room + i, score);
    }
  }
  for (int q = 0; q < many; q++) weigh(scores + q * room, seen[q], most);
  __m512 sums[MANY_QUERIES][8], total[MANY_QUERIES];
#pragma GCC unroll 8
  for (int q = 0; q < many; q++) {
    total[q] = _mm512_setzero_ps();
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) sums[q][v] = _mm512_setzero_ps();
  }
  for (int64_t i = 0; i < most; i++) {
#pragma GCC unroll 8
    for (int q = 0; q < many; q++) {
      __m512 weight = _mm512_set1_ps(scores[q * room + i]);
      total[q] = _mm512_add_ps(total[q], weight);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; v++)
        sums[q][v] =
            _mm512_fmadd_ps(weight, _mm512_loadu_ps(values + i * s->row + 16 * v), sums[q][v]);
    }
  }
#pragma GCC unroll 8
  for (int q = 0; q < many; q++)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++)
      _mm512_storeu_ps(to[q] + 16 * v, _mm512_div_ps(sums[q][v], total[q]));
}

typedef void Attend(const Stack *m, const Step *s, int64_t layer, int64_t sequence, int64_t head,
                    int64_t first, const float *queries, float *out, float *scores, int64_t room);
#define ATTEND(vectors, many)                                                                      \
  AVX512 static void attend_##vectors##_##many(                                                    \
      const Stack *m, const Step *s, int64_t layer, int64_t sequence, int64_t head, int64_t first, \
      const float *queries, float *out, float *scores, int64_t room) {                             \
    attend_some(m, s, layer, sequence, head, first, queries, out, vectors, many, scores, room);    \
  }
ATTEND(1, 3)
ATTEND(2, 3)
ATTEND(4, 3) ATTEND(8, 3) ATTEND(1, 6) ATTEND(2, 6) ATTEND(4, 6)

    /* Attention of all rows, out of queries [sequences * rows, heads, head_width] into `out`. */
    static void attend(const Stack *m, const Step *s, int64_t layer, const float *queries,
                       float *out, float *scores, int64_t room) {
  int64_t each = s->rows * m->heads * m->head_width, shared = m->heads / m->kv_heads * s->rows;
  Attend *few = attend_8_3, *many = attend_8_3;
  if (m->head_width == 16) few = attend_1_3, many = attend_1_6;
  if (m->head_width == 32) few = attend_2_3, many = attend_2_6;
  if (m->head_width == 64) few = attend_4_3, many = attend_4_6;
  /* Keys are read again for every part; a wider head has no registers for more. */
  int64_t most = many == few || shared <= FEW_QUERIES ? FEW_QUERIES : MANY_QUERIES;
  int64_t parts = (shared + most - 1) / most;
#pragma omp for schedule(static)
  for (int64_t task = 0; task < s->sequences * m->kv_heads * parts; task++) {
    int64_t head = task / parts % m->kv_heads, sequence = task / parts / m->kv_heads;
    int64_t first = task % parts * most;
    (shared - first > FEW_QUERIES ? many : few)(m, s, layer, sequence, head, first,
                                                queries + sequence * each, out + sequence * each,
                                                scores, room);
  }
}

/* Rotate the rotary pairs of a vector. */
AVX512 static inline __m512 rotate(__m512 x, __m512 turns) {
  __m512 other = _mm512_mul_ps(_mm512_permute_ps(x, 0xb1), _mm512_movehdup_ps(turns));
  return _mm512_fmaddsub_ps(x, _mm512_moveldup_ps(turns), other);
}

/* Put 32 outputs of qkv [count, 32], of the rows from `first` and from `column`, where they belong:
 * queries [.., heads, head_width], and rotated keys and values in the cache. */
AVX512 static void place(const Stack *m, const Step *s, int64_t layer, const float *outputs,
                         int64_t count, int64_t first, int64_t column, float *queries) {
  const float *bias = m->layers[layer].bias;
  for (int64_t end = column + GROUP; column < end; column += 16, outputs += 16) {
    int64_t head = column / m->head_width, offset = column % m->head_width;
    for (int64_t i = 0; i < count; i++) {
      int64_t row = first + i, sequence = row / s->rows, position = row;
      if (s->positions) position = s->positions[sequence * s->position_sequence + row % s->rows];
      __m512 x = _mm512_loadu_ps(outputs + i * GROUP);
      if (bias) x = _mm512_add_ps(x, _mm512_loadu_ps(bias + column));
      if (head < m->heads + m->kv_heads)
        x = rotate(x, _mm512_loadu_ps(s->turns + position * m->head_width + offset));
      float *to = queries + (row * m->heads + head) * m->head_width;
      if (head >= m->heads) {
        int64_t at = head - m->heads, values = at >= m->kv_heads;
        to = s->cache + layer * s->layer + sequence * s->sequence + values * s->to_values +
             (at - values * m->kv_heads) * s->head + (s->at + row % s->rows) * s->row;
      }
      _mm512_storeu_ps(to + offset, x);
    }
  }
}

/* gate = silu(gate) * up, for [count, 32], rows of `to` apart by `stride`. */
AVX512 static void gated(const float *gate, const float *up, int64_t count, float *to,
                         int64_t stride) {
  __m512 one = _mm512_set1_ps(1);
  for (int64_t i = 0; i < count; i++)
    for (int64_t j = 0; j < GROUP; j += 16) {
      __m512 x = _mm512_loadu_ps(gate + i * GROUP + j), size = _mm512_abs_ps(x);
      __m512 small = exponential(_mm512_sub_ps(_mm512_setzero_ps(), size));
      __mmask16 positive = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GE_OQ);
      __m512 share =
          _mm512_div_ps(_mm512_mask_mov_ps(small, positive, one), _mm512_add_ps(one, small));
      x = _mm512_mul_ps(_mm512_mul_ps(x, share), _mm512_loadu_ps(up + i * GROUP + j));
      _mm512_storeu_ps(to + i * stride + j, x);
    }
}

/* What a layer's parts leave to the next ones: queries, mixed [rows, heads, head_width] and inner
 * [rows, down.k]; and what a thread needs. */
typedef struct {
  float *queries, *mixed, *inner, *scores;
  int64_t room;
  float *normed;
  void *arranged; /* All threads' if there are more than FEW_ROWS, else each one's. */
} Work;

#define FEW_ROWS 2 /* It takes longer to share their arrangement. */

static Rows share(const Matrix *w, const float *x, int64_t rows, const Norm *norm,
                  const Work *work) {
  Rows to = rows_in(work->arranged, rows);
  if (rows <= FEW_ROWS) {
    arrange(w, x, w->k, norm, 0, w->k, &to);
    return to;
  }
  int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads(), parts = w->k / 16;
  arrange(w, x, w->k, norm, parts * thread / threads * 16, parts * (thread + 1) / threads * 16,
          &to);
#pragma omp barrier
  return to;
}

/* Divide a head's numbers by their length, and multiply them by `weight` if there is one. */
AVX512 static void norm_head(const Stack *m, const float *from, const float *weight, float *to) {
  float root = m->root * m->root * m->head_width / m->width;
  __m512 squares = _mm512_setzero_ps();
  for (int64_t i = 0; i < m->head_width; i += 16) {
    __m512 x = _mm512_loadu_ps(from + i);
    squares = _mm512_fmadd_ps(x, x, squares);
  }
  __m512 length = _mm512_sqrt_ps(_mm512_set1_ps(_mm512_reduce_add_ps(squares) + root));
  for (int64_t i = 0; i < m->head_width; i += 16) {
    __m512 x = _mm512_div_ps(_mm512_loadu_ps(from + i), length);
    _mm512_storeu_ps(to + i, weight ? _mm512_mul_ps(x, _mm512_loadu_ps(weight + i)) : x);
  }
}

/* Make queries of the rows, and write keys and values of the features before them. */
static void read_features(const Stack *m, const Step *s, int64_t layer, const Work *work) {
  const Layer *l = m->layers + layer;
  int64_t rows = s->sequences * s->rows, width = m->head_width;
  Norm norm = {l->norm, m->root, work->normed};
  Rows x = share(l->kv, s->features, rows, NULL, work);
  multiply_rows(l->kv, &x, work->inner, l->kv->n, 0);
#pragma omp for schedule(static)
  for (int64_t r = 0; r < rows; r++) {
    float *to =
        s->cache + layer * s->layer + r / s->rows * s->sequence + (s->at + r % s->rows) * s->row;
    const float *from = work->inner + r * l->kv->n;
    for (int64_t head = 0; head < m->kv_heads; head++, from += width)
      norm_head(m, from, NULL, to + head * s->head);
    for (int64_t head = 0; head < m->kv_heads; head++, from += width)
      memcpy(to + s->to_values + head * s->head, from, width * sizeof(float));
  }
  x = share(&l->qkv, s->x, rows, &norm, work);
  multiply_rows(&l->qkv, &x, work->queries, l->qkv.n, 0);
#pragma omp for schedule(static)
  for (int64_t head = 0; head < rows * m->heads; head++)
    norm_head(m, work->queries + head * width, l->head_norm, work->queries + head * width);
}

/* Make queries of the rows, and write their keys and values. */
static void read_rows(const Stack *m, const Step *s, int64_t layer, const Work *work) {
  const Layer *l = m->layers + layer;
  int64_t rows = s->sequences * s->rows;
  float outputs[MOST_ROWS * GROUP];
  Norm norm = {l->norm, m->root, work->normed};
  Rows x = share(&l->qkv, s->input ? s->input : s->x, rows, s->input ? NULL : &norm, work);
#pragma omp for schedule(static)
  for (int64_t group = 0; group < l->qkv.n / GROUP; group++)
    for (int64_t first = 0; first < rows; first += x.most) {
      multiply_tile(&l->qkv, group, &x, first, outputs, GROUP, 0);
      place(m, s, layer, outputs, fewer(x.most, rows - first), first, group * GROUP, work->queries);
    }
}

static void run_layer(const Stack *m, const Step *whole, int64_t layer, int leads,
                      const Work *work) {
  const Layer *l = m->layers + layer;
  int64_t skipped = l->kv ? 1 : whole->holes, rows = whole->sequences * whole->rows;
  int64_t inner = l->down.k;
  float outputs[2][MOST_ROWS * GROUP];
  Norm after_norm = {l->after_norm, m->root, work->normed};
  Step own = *whole, *s = &own;
  own.cache += skipped * own.row, own.at -= skipped;
  if (own.mask) own.mask += skipped;
  if (!leads) own.input = NULL;
  if (l->kv)
    read_features(m, s, layer, work);
  else
    read_rows(m, s, layer, work);
  attend(m, s, layer, work->queries, work->mixed, work->scores, work->room);
  Rows x = share(&l->out, work->mixed, rows, NULL, work);
  multiply_rows(&l->out, &x, s->x, m->width, 1);
  x = share(&l->gate_up, s->x, rows, &after_norm, work);
#pragma omp for schedule(static)
  for (int64_t group = 0; group < inner / GROUP; group++)
    for (int64_t first = 0; first < rows; first += x.most) {
      multiply_tile(&l->gate_up, group, &x, first, outputs[0], GROUP, 0);
      multiply_tile(&l->gate_up, inner / GROUP + group, &x, first, outputs[1], GROUP, 0);
      gated(outputs[0], outputs[1], fewer(x.most, rows - first),
            work->inner + first * inner + group * GROUP, inner);
    }
  x = share(&l->down, work->inner, rows, NULL, work);
  multiply_rows(&l->down, &x, s->x, m->width, 1);
}

/* Make x of the embeddings. */
static void enter(const Stack *m, const Step *s, int64_t rows, const Work *work) {
  if (m->enter) {
    Rows x = share(m->enter, s->embedded, rows, NULL, work);
    multiply_rows(m->enter, &x, s->x, m->width, 0);
    return;
  }
#pragma omp for schedule(static)
  for (int64_t i = 0; i < rows * m->width; i++) s->x[i] = s->embedded[i];
}

/* Write x after the last norm. */
static void leave(const Stack *m, const Step *s, int64_t rows, const Work *work) {
  if (m->leave) {
    Norm norm = {NULL, m->root, work->normed};
    Rows x = share(m->leave, s->x, rows, &norm, work);
    multiply_rows(m->leave, &x, s->hidden, m->width, 0);
    return;
  }
#pragma omp for schedule(static)
  for (int64_t r = 0; r < rows; r++) {
    Norm norm = {m->norm, m->root, s->hidden + r * m->width};
    norm_row(&norm, s->x + r * m->width, m->width);
  }
}

/* Run layers first .. end: x is changed and the new rows' keys and values are written; 0 without
 * memory, 2 if a position is not below `turned`. A head's width is 16, 32, 64 or 128; numbers of
 * inputs are multiples of 16, and of outputs of 32. */
int run_layers(const Stack *m, const Step *s, int64_t first, int64_t end, int threads) {
  int64_t rows = s->sequences * s->rows, mixed = m->heads * m->head_width, inner = 0;
  int64_t most = more(mixed, m->width);
  for (int64_t r = 0; s->positions && r < rows; r++) {
    int64_t at = s->positions[r / s->rows * s->position_sequence + r % s->rows];
    if (at < 0 || at >= s->turned) return 2;
  }
  for (int64_t layer = first; layer < end; layer++) {
    const Layer *l = m->layers + layer;
    inner = more(inner, more(l->down.k, l->kv ? l->kv->n : 0));
    most = more(most, more(l->qkv.k, inner));
  }
  int64_t room = (s->at + s->rows + 15) / 16 * 16, arranged = rows * (1 + most);
  int64_t shared = rows * (2 * mixed + inner) + arranged;
  int64_t each = MANY_QUERIES * room + most + (rows > FEW_ROWS ? 0 : arranged);
  float *memory = malloc((shared + threads * each) * sizeof(float));
  if (!memory) return 0;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    float *own = memory + shared + omp_get_thread_num() * each, *after = own + MANY_QUERIES * room;
    Work work = {memory + arranged,
                 memory + arranged + rows * mixed,
                 memory + arranged + 2 * rows * mixed,
                 own,
                 room,
                 after,
                 rows > FEW_ROWS ? memory : after + most};
    if (s->embedded) enter(m, s, rows, &work);
    for (int64_t layer = first; layer < end; layer++) run_layer(m, s, layer, layer == first, &work);
    if (s->hidden) leave(m, s, rows, &work);
  }
  free(memory);
  return 1;
}

/* Turn rows x [rows, n] into log-probabilities; numbers at `never` are -inf first. */
AVX512 void log_softmax(float *x, int64_t rows, int64_t n, const int64_t *never, int64_t n_never) {
  __m512 none = _mm512_set1_ps(-INFINITY);
  __mmask16 rest = (1u << n % 16) - 1;
  for (; rows > 0; rows--, x += n) {
    for (int64_t i = 0; i < n_never; i++) x[never[i]] = -INFINITY;
    __m512 most = _mm512_mask_loadu_ps(none, rest, x + n / 16 * 16), sum = _mm512_setzero_ps();
    for (int64_t i = 0; i + 16 <= n; i += 16) most = _mm512_max_ps(most, _mm512_loadu_ps(x + i));
    most = _mm512_set1_ps(_mm512_reduce_max_ps(most));
    for (int64_t i = 0; i < n; i += 16) {
      __mmask16 here = i + 16 <= n ? 0xffff : rest;
      __m512 at = _mm512_mask_loadu_ps(none, here, x + i);
      sum = _mm512_add_ps(sum, exponential(_mm512_sub_ps(at, most)));
    }
    __m512 less = _mm512_add_ps(most, _mm512_set1_ps(logf(_mm512_reduce_add_ps(sum))));
    for (int64_t i = 0; i < n; i += 16) {
      __mmask16 here = i + 16 <= n ? 0xffff : rest;
      _mm512_mask_storeu_ps(x + i, here, _mm512_sub_ps(_mm512_maskz_loadu_ps(here, x + i), less));
    }
  }
}

/* Write rows x [rows, n] into out [rows, all] at the places `ids` [n], and -inf elsewhere. */
AVX512 void widen(const float *x, int64_t rows, int64_t n, const int64_t *ids, float *out,
                  int64_t all) {
  for (; rows > 0; rows--, x += n, out += all) {
    for (int64_t i = 0; i + 16 <= all; i += 16)
      _mm512_storeu_ps(out + i, _mm512_set1_ps(-INFINITY));
    for (int64_t i = all / 16 * 16; i < all; i++) out[i] = -INFINITY;
    for (int64_t i = 0; i < n; i++) out[ids[i]] = x[i];
  }
}

/* What a row is made of that drafts: the embedding of a token; the product (`join`) of it beside
 * the feature before it, plus the `bias` of its step; the two, normed, for an attention beside the
 * feature that layers add to; or the embedding, in layers of which one attends to features. The
 * feature after a row is what layers add to, and in the last case what is normed at the end. */
enum { EMBEDDING, PRODUCT, BOTH, ATTENDED };

/* What drafts tokens in a row. */
typedef struct {
  const Stack *stack;
  const Matrix *join, *head;
  const float *table, *bias; /* [known, width] by id; [steps, width]. */
  const int64_t *ids;        /* [n] the id of each output of the head; none if they are the ids. */
  const int64_t *never;      /* [n_never] outputs that are never drafted. */
  int64_t n, n_never, known, steps, layers, reads;
} Drafting;

/* Feed `fed` [rows], then up to most - 1 of the tokens that are drafted, each the likeliest after
 * the one before, until the probability of all of them falls below e to the power of `floor`.
 * `positions` [rows + most - 1] are those of all rows, and `features` [rows, width] those before
 * the first ones. Writes the tokens and their log-probabilities [most], those of all outputs
 * [most, n], and the feature of the row before each token, `made_features` [most, width].
 *
 * Returns how many were drafted; 0 without memory, -1 if a position has no rotation, -2 if a token
 * has no embedding. */
int draft_in_a_row(const Drafting *d, const Step *s, const int64_t *fed, int64_t rows,
                   const float *features, int64_t most, double floor, int64_t *tokens, float *logp,
                   float *log_probs, float *made_features, int threads) {
  const Stack *m = d->stack;
  int64_t width = m->width, size = width * sizeof(float), made = 0;
  int normed = m->norm || m->leave;
  float *memory = malloc(rows * 5 * size + d->head->n * sizeof(float));
  if (!memory) return 0;
  float *x = memory, *out = x + rows * width, *input = out + rows * width;
  float *both = input + rows * width, *logits = both + rows * 2 * width;
  Step step = *s;
  double sum = 0;
  while (made < most) {
    int64_t count = made ? 1 : rows;
    const float *before = made ? made_features + (made - 1) * width : features;
    for (int64_t r = 0; r < count; r++) {
      int64_t token = made ? tokens[made - 1] : fed[r];
      if (token < 0 || token >= d->known) {
        free(memory);
        return -2;
      }
      const float *row = d->table + token * width;
      float *at = both + r * 2 * width;
      if (d->reads == BOTH) {
        Norm norm = {NULL, m->root, at};
        norm_row(&norm, row, width);
        norm.kept += width;
        norm_row(&norm, before + r * width, width);
        memcpy(x + r * width, before + r * width, size);
      } else if (d->reads == PRODUCT) {
        memcpy(at, row, size);
        memcpy(at + width, before + r * width, size);
      } else {
        memcpy(input + r * width, row, size);
        memcpy(x + r * width, row, size);
      }
    }
    step.rows = count, step.x = x, step.features = before;
    step.hidden = normed ? out : NULL;
    if (d->reads == EMBEDDING) step.embedded = input;
    if (d->reads == BOTH) step.input = both;
    if (d->reads == ATTENDED) step.input = input;
    if (d->reads == PRODUCT) {
      if (!multiply(d->join, both, count, x, width, threads)) break;
      const float *bias = d->bias + fewer(made, d->steps - 1) * width;
      for (int64_t i = 0; i < count * width; i++) x[i] += bias[i % width];
      memcpy(input, x, count * size);
      step.input = input;
    }
    int done = run_layers(m, &step, 0, d->layers, threads);
    if (done != 1) {
      made = done ? -1 : 0;
      break;
    }
    const float *last = (normed ? out : x) + (count - 1) * width;
    memcpy(made_features + made * width, d->reads == ATTENDED ? last : x + (count - 1) * width,
           size);
    float *row = log_probs + made * d->n;
    if (!multiply(d->head, last, 1, logits, d->head->n, threads)) break;
    memcpy(row, logits, d->n * sizeof(float));
    log_softmax(row, 1, d->n, d->never, d->n_never);
    int64_t best = 0;
    for (int64_t i = 1; i < d->n; i++)
      if (row[i] > row[best]) best = i;
    tokens[made] = d->ids ? d->ids[best] : best;
    sum += logp[made++] = row[best];
    if (sum < floor) break;
    step.at += count, step.positions += count;
  }
  free(memory);
  return made;
}

/* Whether this processor runs these layers (1) and products in 8 bits too (2). */
int supported(void) {
  __builtin_cpu_init();
  int half = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl");
  return half ? 1 + 2 * !!__builtin_cpu_supports("avx512vnni") : 0;
}
